"""Starting a model from a trained one that has fewer parts."""

import dataclasses
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import traverse_util

from fusion_jax.config import ModelConfig
from fusion_jax.data.tokenizer import Tokenizer
from fusion_jax.errors import InputError
from fusion_jax.fusion.shortcuts import fused_from_separate
from fusion_jax.fusion.streams import with_stream_norms
from fusion_jax.models.transformer import (
  Parameters,
  Transformer,
  initial_parameters,
)
from fusion_jax.runs.loading import TrainedModel, load_run

logger = logging.getLogger(__name__)

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
  _check_options(model.config, baseline.config.model, workdir)
  theirs = (baseline.source_tokenizer, baseline.target_tokenizer)
  for side, own, other in zip(
    ('source', 'target'), tokenizers, theirs, strict=True
  ):
    if own.digest != other.digest:
      raise InputError(
        f'--init_from={workdir}: trained with another {side} tokenizer; '
        f'prepare the data with --config.data.tokenizer.source_model='
        f'{workdir}/source.model'
      )
  try:
    jax.eval_shape(
      lambda own, trained: merged_parameters(own, trained, model),
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
  own, theirs = _flat(unstacked(fresh)), _flat(unstacked(baseline.parameters))
  logger.info('new here and fresh: %s', _some(own.keys() - theirs.keys()))
  logger.info('only there, not used: %s', _some(theirs.keys() - own.keys()))
  return merged_parameters(fresh, baseline.parameters, model)


def _check_options(own: ModelConfig, other: ModelConfig, workdir: Path) -> None:
  for name in _SHAPELESS:
    here, there = getattr(own, name), getattr(other, name)
    if here != there:
      raise InputError(
        f'--init_from={workdir}: config.model.{name} is {there!r} there and '
        f'{here!r} here; give the same'
      )


def merged_parameters(
  fresh: Parameters, trained: Parameters, model: Transformer
) -> Parameters:
  """Return fresh parameters with trained ones where both have them."""
  fresh, trained = unstacked(fresh), unstacked(trained)
  names = _flat(fresh).keys() & _backbone(model)
  merged = _merge(_flat(fresh), _flat(trained), names)
  tree = traverse_util.unflatten_dict(merged, sep='/')
  tree = _with_fused_maps(tree, trained, model.config)
  return stacked(tree) if model.config.scan_layers else tree


def _merge(
  own: dict[str, jax.Array],
  theirs: dict[str, jax.Array],
  backbone: Iterable[str],
) -> dict[str, jax.Array]:
  missing = sorted(name for name in backbone if name not in theirs)
  if missing:
    raise InputError(
      f'it lacks {len(missing)} parameters of the model: {_some(missing)}'
    )
  for name in sorted(own.keys() & theirs.keys()):
    if own[name].shape != theirs[name].shape:
      raise InputError(
        f'{name} is {theirs[name].shape} there and {own[name].shape} here; '
        'both need the same model sizes'
      )
  return own | {name: theirs[name] for name in own.keys() & theirs.keys()}


def _with_fused_maps(
  own: Parameters, theirs: Parameters, config: ModelConfig
) -> Parameters:
  """Set maps of feature fusion, and norms of streams, from the baseline's own.

  This is done only with start='baseline'; otherwise they start fresh, as in the
  paper.
  """
  result = dict(own)
  for side in ('encoder', 'decoder'):
    if config.side(side).start == 'baseline':
      result[side] = {
        name: _with_fused_attention(part, theirs[side].get(name))
        if name.startswith('layer_')
        else part
        for name, part in own[side].items()
      }
  return result


def _with_fused_attention(own: Parameters, theirs: Parameters) -> Parameters:
  if 'key_norm' in own['self_attention']:
    own = with_stream_norms(own, theirs)
  return {
    name: fused_from_separate(part, theirs[name])
    if isinstance(part, Mapping) and 'fused_key' in part
    else part
    for name, part in own.items()
  }


def _some(names: Iterable[str]) -> str:
  names = sorted(names)
  if len(names) > _LISTED:
    return f'{", ".join(names[:_LISTED])} and {len(names) - _LISTED} more'
  return ', '.join(names) or 'none'


def _flat(parameters: Parameters) -> dict[str, Any]:
  return traverse_util.flatten_dict(parameters, sep='/')


def _backbone(model: Transformer) -> set[str]:
  config = model.config.without_fusion
  plain = model.clone(config=dataclasses.replace(config, scan_layers=False))
  shapes = jax.eval_shape(lambda: initial_parameters(plain, 0))
  return set(_flat(shapes))


def unstacked(parameters: Parameters) -> Parameters:
  """Return the parameters in the form of a model that loops over its layers."""
  result = dict(parameters)
  for side in ('encoder', 'decoder'):
    stack = dict(result[side])
    if 'layers' in stack:
      together = stack.pop('layers')
      for index in range(jax.tree.leaves(together)[0].shape[0]):
        stack[f'layer_{index}'] = jax.tree.map(
          lambda leaf, index=index: leaf[index], together
        )
    result[side] = stack
  return result


def stacked(parameters: Parameters) -> Parameters:
  """Invert `unstacked`."""
  result = dict(parameters)
  for side in ('encoder', 'decoder'):
    stack = dict(result[side])
    count = sum(name.startswith('layer_') for name in stack)
    layers = [stack.pop(f'layer_{index}') for index in range(count)]
    stack['layers'] = jax.tree.map(lambda *xs: jnp.stack(xs), *layers)
    result[side] = stack
  return result
