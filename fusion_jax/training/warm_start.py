"""Starting a model from a trained one that has fewer parts."""

import dataclasses
import functools
import logging
import operator
from collections.abc import Iterable
from pathlib import Path

import jax
import jax.numpy as jnp
from flax import traverse_util

from fusion_jax.config import ModelConfig
from fusion_jax.config.fusion import SIDES, Side
from fusion_jax.data.tokenizer import Tokenizer
from fusion_jax.errors import InputError
from fusion_jax.fusion import plugs
from fusion_jax.models.transformer import (
  Parameters,
  Transformer,
  initial_parameters,
)
from fusion_jax.runs.loading import TrainedModel, load_run

logger = logging.getLogger(__name__)

_flat = functools.partial(traverse_util.flatten_dict, sep='/')

# Options that change what a model computes, but no parameter's shape.
_SHAPELESS = 'heads', 'activation', 'positions', 'scale_embedding'

# Largest number of names in a message.
_LISTED = 12


def read_baseline(
  fresh: Parameters,
  model: Transformer,
  tokenizers: tuple[Tokenizer, Tokenizer],
  workdir: Path,
) -> TrainedModel:
  """Read a trained run that a model can start from."""
  baseline = load_run(workdir)
  theirs = (baseline.source_tokenizer, baseline.target_tokenizer)
  try:
    for name in _SHAPELESS:
      ours = getattr(model.config, name)
      trained = getattr(baseline.config.model, name)
      if ours != trained:
        raise InputError(
          f'config.model.{name} is {trained!r} there and {ours!r} here; give '
          'the same'
        )
    for side, here, there in zip(
      ('source', 'target'), tokenizers, theirs, strict=True
    ):
      if here.digest != there.digest:
        raise InputError(
          f'trained with another {side} tokenizer; prepare the data with '
          # An absolute path, because others start from data.root.
          '--config.data.tokenizer.source_model='
          f'{workdir.absolute()}/source.model'
        )
    jax.eval_shape(
      lambda ours, trained: merged_parameters(ours, trained, model),
      fresh,
      baseline.parameters,
    )
  except InputError as error:
    raise InputError(f'--init_from={workdir}: {error}') from None
  return baseline


def with_baseline(
  fresh: Parameters, model: Transformer, baseline: TrainedModel
) -> Parameters:
  """Return fresh parameters with those of a trained run where both have them.

  Parameters that are new here stay fresh, and those that only the run has are
  not used; both are listed in the log.
  """
  ours, theirs = _flat(unstacked(fresh)), _flat(unstacked(baseline.parameters))
  logger.info('new here and fresh: %s', _some(ours.keys() - theirs.keys()))
  logger.info('only there, not used: %s', _some(theirs.keys() - ours.keys()))
  return merged_parameters(fresh, baseline.parameters, model)


def merged_parameters(
  fresh: Parameters, trained: Parameters, model: Transformer
) -> Parameters:
  """Return fresh parameters with trained ones where both have them."""
  fresh, trained = unstacked(fresh), unstacked(trained)
  ours, theirs = _flat(fresh), _flat(trained)
  _check_fits(ours, theirs, ours.keys() & _backbone(model))
  both = {name: theirs[name] for name in ours.keys() & theirs.keys()}
  merged = traverse_util.unflatten_dict(ours | both, sep='/')
  for side in SIDES:
    if model.config.side(side).start == 'baseline':
      merged[side] = _started(merged[side], trained[side], model.config, side)
  return stacked(merged) if model.config.scan_layers else merged


def _check_fits(
  ours: dict[str, jax.Array],
  theirs: dict[str, jax.Array],
  backbone: Iterable[str],
) -> None:
  missing = sorted(name for name in backbone if name not in theirs)
  if missing:
    raise InputError(
      f'it lacks {len(missing)} parameters of the model: {_some(missing)}'
    )
  for name in sorted(ours.keys() & theirs.keys()):
    if ours[name].shape != theirs[name].shape:
      raise InputError(
        f'{name} is {theirs[name].shape} there and {ours[name].shape} here; '
        'both need the same model sizes'
      )


def _started(
  stack: Parameters, trained: Parameters, config: ModelConfig, side: Side
) -> Parameters:
  """Let the attentions of a stack start as those of the trained stack."""
  result = dict(stack)
  for index in range(1, config.layers(side) + 1):
    name = f'layer_{index - 1}'
    layer, plain = dict(stack[name]), trained[name]
    attentions = {'self_attention': plugs.self_attention(config, side, index)}
    if side == 'decoder':
      attentions['cross_attention'] = plugs.cross_attention(config, index)
    for kind, attention in attentions.items():
      residual = plain.get(f'{kind}_residual', {})
      layer[kind] = attention.from_plain(layer[kind], plain[kind], residual)
    result[name] = layer
  return result


def _some(names: Iterable[str]) -> str:
  names = sorted(names)
  if len(names) > _LISTED:
    return f'{", ".join(names[:_LISTED])} and {len(names) - _LISTED} more'
  return ', '.join(names) or 'none'


def _backbone(model: Transformer) -> set[str]:
  config = model.config.without_fusion
  plain = model.clone(config=dataclasses.replace(config, scan_layers=False))
  shapes = jax.eval_shape(lambda: initial_parameters(plain, 0))
  return set(_flat(shapes))


def unstacked(parameters: Parameters) -> Parameters:
  """Return the parameters in the form of a model that loops over its layers."""
  result = dict(parameters)
  for side in SIDES:
    stack = dict(result[side])
    if together := stack.pop('layers', None):
      for index in range(len(jax.tree.leaves(together)[0])):
        layer = jax.tree.map(operator.itemgetter(index), together)
        stack[f'layer_{index}'] = layer
    result[side] = stack
  return result


def stacked(parameters: Parameters) -> Parameters:
  """Invert `unstacked`."""
  result = dict(parameters)
  for side in SIDES:
    stack = dict(result[side])
    count = sum(name.startswith('layer_') for name in stack)
    layers = [stack.pop(f'layer_{index}') for index in range(count)]
    stack['layers'] = jax.tree.map(lambda *xs: jnp.stack(xs), *layers)
    result[side] = stack
  return result
