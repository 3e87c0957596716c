"""Export of a run as a model of CTranslate2 (https://opennmt.net/CTranslate2).

CTranslate2 computes the plain Transformer, pre-norm or post-norm; every fusion
scheme is refused. The exported folder also has the two SentencePiece models: a
line is normalised as `fusion_jax.data.normalise` does, segmented by
source.model, translated, and joined by target.model.

Axis letters: D model width, P positions, V vocabulary.
"""

import dataclasses
import logging
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float32

from fusion_jax.config import ExperimentConfig, ModelConfig, Side
from fusion_jax.decoding.batches import target_limit
from fusion_jax.decoding.certify import rounding
from fusion_jax.errors import InputError
from fusion_jax.files import check_new_folder, whole_folder
from fusion_jax.layers.positions import sinusoids
from fusion_jax.models.transformer import Parameters
from fusion_jax.runs import run_directory
from fusion_jax.runs.loading import TrainedModel, load_run
from fusion_jax.tools.export.agreement import largest_difference

logger = logging.getLogger(__name__)

# CTranslate2 reads this number of source tokens by default.
_MAX_INPUT_LENGTH = 1_024

# Bias of forbidden pieces, which float16 can hold.
_NEVER = -1e4

_NAME = '--format=ctranslate2'


def export_run(
  workdir: str,
  step: int | str,
  average: int,
  output: Path,
  average_of: Literal['last', 'best'] = 'last',
  parameters: Literal['last', 'ema'] | None = None,
) -> None:
  """Load a run and export it."""
  library()
  check_new_folder(output)
  check_model(run_directory.read_config(Path(workdir)).model)
  run = load_run(workdir, step, average, average_of, parameters)
  export(run, output)


def export(run: TrainedModel, output: Path) -> None:
  """Write a run as a model of CTranslate2, and compare the two."""
  library()
  check_model(run.config.model)
  with whole_folder(output) as folder:
    model = specification(run)
    model.validate()
    model.optimize()
    model.save(str(folder))
    (folder / 'source.model').write_bytes(run.source_tokenizer.model)
    (folder / 'target.model').write_bytes(run.target_tokenizer.model)
    difference = largest_difference(run, folder)
    _save_without_forbidden(run, folder)
    # Both compute in float32, whatever the run's own dtype is.
    exact = dataclasses.replace(run.config.model, compute_dtype='float32')
    allowed = rounding(exact)
    if not difference <= allowed:
      raise RuntimeError(
        f'{output}: CTranslate2 differs by {difference:.1e} for each unit of '
        f"a token's log-probability, more than the {allowed:.1e} of rounding; "
        'not exported'
      )
  logger.info(
    '%s, step %d: written; log-probabilities of tokens differ by at most %.1e '
    'for each unit',
    output,
    run.step,
    difference,
  )


def _save_without_forbidden(run: TrainedModel, folder: Path) -> None:
  """Save the model again, such that it never makes a piece that is forbidden.

  CTranslate2 keeps no such option beside a model.
  """
  tokenizer = run.target_tokenizer
  ids = [tokenizer.id_of(piece) for piece in run.config.decoding.forbidden]
  known = [number for number in ids if number is not None]
  if not known:
    return
  model = specification(run)
  projection = model.decoder.projection
  bias = np.zeros(tokenizer.vocabulary.size, np.float32)
  if 'output_bias' in run.parameters:
    bias += projection.bias
  bias[known] = _NEVER
  projection.bias = bias
  model.validate()
  model.optimize()
  model.save(str(folder))


def library() -> ModuleType:
  """Return the package ctranslate2."""
  try:
    import ctranslate2
  except ImportError:
    raise InputError(
      f'{_NAME}: needs the package ctranslate2; pip install ctranslate2'
    ) from None
  return ctranslate2


def check_model(config: ModelConfig) -> None:
  """Refuse a model that CTranslate2 cannot compute."""
  _only(config.norm in ('pre', 'post'), 'norm', config.norm, "'pre' or 'post'")
  plain = config.residual == 'plain'
  _only(plain, 'residual', config.residual, "'plain'")
  sides: tuple[Side, ...] = ('encoder', 'decoder')
  for name in sides:
    side = config.side(name)
    source, layers = side.shortcut.source, side.multi_layer.layers
    values = side.value_residual.kind
    _only(side.fusion == 'none', f'{name}.fusion', side.fusion, "'none'")
    _only(source == 'none', f'{name}.shortcut.source', source, "'none'")
    _only(layers == 1, f'{name}.multi_layer.layers', layers, '1')
    _only(values == 'none', f'{name}.value_residual.kind', values, "'none'")
    gains = side.skip_gains
    _only(not gains, f'{name}.skip_gains', gains, 'False')


def _only(allowed: bool, field: str, value: str | int, right: str) -> None:
  if not allowed:
    raise InputError(
      f'{_NAME}: config.model.{field} is {value!r}, which CTranslate2 cannot '
      f'compute; it must be {right}'
    )


def specification(run: TrainedModel) -> Any:
  """Describe the model to CTranslate2, with all arrays."""
  config, parameters = run.config.model, run.parameters
  specs = library().specs
  activations = {
    'relu': specs.Activation.RELU,
    'silu': specs.Activation.SWISH,
  }
  model = specs.TransformerSpec.from_config(
    (config.encoder_layers, config.decoder_layers),
    config.heads,
    pre_norm=config.norm == 'pre',
    activation=activations[config.activation],
  )
  stacks: dict[Side, Any] = {
    'encoder': model.encoder,
    'decoder': model.decoder,
  }
  for name, stack in stacks.items():
    for layer, own in zip(
      stack.layer, _layers(parameters[name], config.layers(name)), strict=True
    ):
      _set_layer(layer, own)
    if config.norm == 'pre':
      _set_norm(stack.layer_norm, parameters[name]['final_norm'])
  _set_tables(model, config, parameters)
  for stack, side in ((model.encoder, 'source'), (model.decoder, 'target')):
    table = parameters.get(f'{side}_positions')
    stack.position_encodings.encodings = (
      _sinusoids(run.config) if table is None else _array(table)
    )
  _set_vocabularies(model, run)
  model.config.layer_norm_epsilon = config.norm_epsilon
  return model


def _layers(stack: Parameters, count: int) -> list[Parameters]:
  """Return the parameters of each layer, also if they are stacked."""
  if 'layers' not in stack:
    return [stack[f'layer_{index}'] for index in range(count)]
  stacked = jax.device_get(stack['layers'])
  return [
    jax.tree.map(lambda leaf, index=index: leaf[index], stacked)
    for index in range(count)
  ]


def _set_layer(layer: Any, own: Parameters) -> None:
  attention = own['self_attention']
  joint = [attention[name] for name in ('query', 'key', 'value')]
  _set_linear(layer.self_attention.linear[0], *joint)
  _set_linear(layer.self_attention.linear[1], attention['out'])
  _set_norm(
    layer.self_attention.layer_norm, own['self_attention_residual']['norm']
  )
  if 'cross_attention' in own:
    attention, cross = own['cross_attention'], layer.attention
    _set_linear(cross.linear[0], attention['query'])
    _set_linear(cross.linear[1], attention['key'], attention['value'])
    _set_linear(cross.linear[2], attention['out'])
    _set_norm(cross.layer_norm, own['cross_attention_residual']['norm'])
  _set_linear(layer.ffn.linear_0, own['feed_forward']['hidden'])
  _set_linear(layer.ffn.linear_1, own['feed_forward']['out'])
  _set_norm(layer.ffn.layer_norm, own['feed_forward_residual']['norm'])


def _set_linear(layer: Any, *projections: Parameters) -> None:
  """Set one linear layer, [out, in], to projections of the same input."""
  layer.weight = np.concatenate(
    [_array(each['kernel']).T for each in projections]
  )
  if 'bias' in projections[0]:
    layer.bias = np.concatenate([_array(each['bias']) for each in projections])


def _set_norm(layer: Any, norm: Parameters) -> None:
  layer.gamma, layer.beta = _array(norm['scale']), _array(norm['bias'])


def _set_tables(
  model: Any, config: ModelConfig, parameters: Parameters
) -> None:
  """Set embeddings and output projection; tied ones are the same array."""
  source = _array(parameters['source_embedding'])
  target, output = source, None
  if 'target_embedding' in parameters:
    target = _array(parameters['target_embedding'])
  output = target
  if 'output_table' in parameters:
    output = _array(parameters['output_table'])
  model.encoder.embeddings[0].weight = source
  model.decoder.embeddings.weight = target
  model.decoder.projection.weight = output
  for stack in (model.encoder, model.decoder):
    scale = config.width**0.5 if config.scale_embedding else 1.0
    stack.scale_embeddings = float(scale)
  if 'output_bias' in parameters:
    model.decoder.projection.bias = _array(parameters['output_bias'])


def _sinusoids(config: ExperimentConfig) -> Float32[np.ndarray, 'P D']:
  """Return encodings of all positions that a search can reach."""
  longest = config.decoding.max_source_length
  count = max(
    longest, target_limit(longest, config.decoding), _MAX_INPUT_LENGTH
  )
  model = config.model
  return _array(sinusoids(jnp.arange(count), model.width, model.positions))


def _set_vocabularies(model: Any, run: TrainedModel) -> None:
  """Set the pieces of both sides, and the special ones."""
  source, target = run.source_tokenizer, run.target_tokenizer
  model.register_source_vocabulary(source.pieces())
  model.register_target_vocabulary(target.pieces())
  for field in ('end', 'unknown'):
    names = [
      each.pieces()[getattr(each.vocabulary, field)]
      for each in (source, target)
    ]
    if names[0] != names[1]:
      raise InputError(
        f'{_NAME}: the {field} symbol is {names[0]!r} in source.model and '
        f'{names[1]!r} in target.model; CTranslate2 has one name for both'
      )
  pieces, special = target.pieces(), target.vocabulary
  model.config.unk_token = pieces[special.unknown]
  model.config.eos_token = pieces[special.end]
  model.config.bos_token = pieces[special.start]
  model.config.decoder_start_token = pieces[special.start]
  model.config.add_source_eos = True


def _array(value: Any) -> Float32[np.ndarray, '...']:
  return np.asarray(value, np.float32)
