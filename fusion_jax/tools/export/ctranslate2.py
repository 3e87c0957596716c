"""Export of a run as a model of CTranslate2 (https://opennmt.net/CTranslate2).

CTranslate2 computes the plain Transformer, pre-norm or post-norm; every fusion
scheme is refused. The exported folder also has the two SentencePiece models: a
line is normalised as `fusion_jax.data.tokenizer` does, segmented by
source.model, translated, and joined by target.model.

Axis letters: D model width, P positions, V vocabulary.
"""

import dataclasses
import logging
import operator
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float32

from fusion_jax.config import ExperimentConfig, ModelConfig, Side
from fusion_jax.decoding.batches import padded, target_limit
from fusion_jax.decoding.certify import relative_gaps, rounding
from fusion_jax.decoding.ensemble import Mixture
from fusion_jax.decoding.model_step import Source
from fusion_jax.decoding.score import TeacherForcedRows, teacher_forced_scores
from fusion_jax.errors import InputError
from fusion_jax.files import check_new_folder, whole_folder
from fusion_jax.layers.positions import sinusoids
from fusion_jax.models.transformer import Parameters
from fusion_jax.runs.loading import TrainedModel
from fusion_jax.tools.export import check_difference, random_sentences

logger = logging.getLogger(__name__)

# CTranslate2 reads this number of source tokens by default.
_MAX_INPUT_LENGTH = 1_024

# Lengths of the random sentences that are compared, with their end symbols.
_LENGTHS = (1, 2, 4, 7, 13, 23, 40, 64)

# Source and target ids, including the end symbols.
PairIds = tuple[list[int], list[int]]

# Bias of forbidden pieces, which float16 can hold.
_NEVER = -1e4

_NAME = '--format=ctranslate2'


def check(output: Path) -> None:
  """Refuse problems that show without the run."""
  library()
  check_new_folder(output)


def export(run: TrainedModel, output: Path) -> None:
  """Write a run as a model of CTranslate2, and compare the two."""
  with whole_folder(output) as folder:
    _save(specification(run), folder)
    (folder / 'source.model').write_bytes(run.source_tokenizer.model)
    (folder / 'target.model').write_bytes(run.target_tokenizer.model)
    # Both compute in float32, whatever the run's own dtype is.
    exact = dataclasses.replace(
      run.config.model, compute_dtype='float32', product_dtype='float32'
    )
    model = run.model.clone(config=exact)
    difference = _difference(dataclasses.replace(run, model=model), folder)
    # CTranslate2 has no option for pieces that are never made.
    ids = map(run.target_tokenizer.id_of, run.config.decoding.forbidden)
    if forbidden := [number for number in ids if number is not None]:
      _save(specification(run, forbidden), folder)
    check_difference(output, difference, rounding(exact))
  logger.info(
    '%s, step %d: written; log-probabilities of tokens differ by at most %.1e '
    'for each unit',
    output,
    run.step,
    difference,
  )


def _save(model: Any, folder: Path) -> None:
  model.validate()
  model.optimize()
  model.save(str(folder))


def library() -> ModuleType:
  try:
    import ctranslate2
  except ImportError:
    raise InputError(
      f'{_NAME}: needs the package ctranslate2; pip install ctranslate2'
    ) from None
  return ctranslate2


def check_model(config: ModelConfig) -> None:
  _only(('pre', 'post'), 'norm', config.norm)
  _only(('plain',), 'residual', config.residual)
  sides: tuple[Side, ...] = ('encoder', 'decoder')
  for name in sides:
    side = config.side(name)
    _only(('none',), f'{name}.fusion', side.fusion)
    _only(('none',), f'{name}.attention', side.attention)
    _only((False,), f'{name}.skip_gains', side.skip_gains)


def _only(allowed: Sequence[str | int], field: str, value: str | int) -> None:
  if value not in allowed:
    raise InputError(
      f'{_NAME}: config.model.{field} is {value!r}, which CTranslate2 cannot '
      f'compute; it must be {" or ".join(map(repr, allowed))}'
    )


def specification(run: TrainedModel, forbidden: Sequence[int] = ()) -> Any:
  """Describe the model to CTranslate2; forbidden pieces have a low bias."""
  config, parameters = run.config.model, run.parameters
  specs = library().specs
  activations = {'relu': specs.Activation.RELU, 'silu': specs.Activation.SWISH}
  model = specs.TransformerSpec.from_config(
    (config.encoder_layers, config.decoder_layers),
    config.heads,
    pre_norm=config.norm == 'pre',
    activation=activations[config.activation],
  )
  stacks: dict[Side, Any] = {'encoder': model.encoder, 'decoder': model.decoder}
  for name, stack in stacks.items():
    layers = _layers(parameters[name], config.layers(name))
    for layer, values in zip(stack.layer, layers, strict=True):
      _set_layer(layer, values)
    if config.norm == 'pre':
      _set_norm(stack.layer_norm, parameters[name]['final_norm'])
  _set_tables(model, config, parameters)
  if forbidden:
    bias = np.zeros(run.target_tokenizer.vocabulary.size, np.float32)
    bias += _array(parameters.get('output_bias', 0.0))
    bias[[*forbidden]] = _NEVER
    model.decoder.projection.bias = bias
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
  take = map(operator.itemgetter, range(count))
  return [jax.tree.map(one, stacked) for one in take]


def _set_layer(layer: Any, values: Parameters) -> None:
  maps = values['self_attention']
  attention = layer.self_attention
  _set_linear(attention.linear[0], maps['query'], maps['key'], maps['value'])
  _set_linear(attention.linear[1], maps['out'])
  _set_norm(attention.layer_norm, values['self_attention_residual']['norm'])
  if 'cross_attention' in values:
    maps, cross = values['cross_attention'], layer.attention
    _set_linear(cross.linear[0], maps['query'])
    _set_linear(cross.linear[1], maps['key'], maps['value'])
    _set_linear(cross.linear[2], maps['out'])
    _set_norm(cross.layer_norm, values['cross_attention_residual']['norm'])
  _set_linear(layer.ffn.linear_0, values['feed_forward']['hidden'])
  _set_linear(layer.ffn.linear_1, values['feed_forward']['out'])
  _set_norm(layer.ffn.layer_norm, values['feed_forward_residual']['norm'])


def _set_linear(layer: Any, *projections: Parameters) -> None:
  """Set one linear layer, [out, in], to projections of the same input."""
  layer.weight = np.concatenate([_array(p['kernel']).T for p in projections])
  if 'bias' in projections[0]:
    layer.bias = np.concatenate([_array(p['bias']) for p in projections])


def _set_norm(layer: Any, norm: Parameters) -> None:
  layer.gamma, layer.beta = _array(norm['scale']), _array(norm['bias'])


def _set_tables(
  model: Any, config: ModelConfig, parameters: Parameters
) -> None:
  """Set embeddings and output projection; tied ones are the same array."""
  source = _array(parameters['source_embedding'])
  target = _array(parameters.get('target_embedding', source))
  output = _array(parameters.get('output_table', target))
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
  source, target = run.source_tokenizer, run.target_tokenizer
  model.register_source_vocabulary(source.pieces())
  model.register_target_vocabulary(target.pieces())
  for field in ('end', 'unknown'):
    names = [x.pieces()[getattr(x.vocabulary, field)] for x in (source, target)]
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


def _difference(run: TrainedModel, folder: Path) -> float:
  """Compare log-probabilities of random tokens by the model and by its run."""
  lengths = [min(n, run.longest or max(_LENGTHS)) for n in _LENGTHS]
  rng = np.random.default_rng(0)
  sources, targets = (
    random_sentences(tokenizer.vocabulary, lengths, rng)
    for tokenizer in (run.source_tokenizer, run.target_tokenizer)
  )
  pairs = list(zip(sources, targets, strict=True))
  # Rounded products on a GPU would hide the difference.
  with jax.default_matmul_precision('highest'):
    ours = own_scores(run, pairs)
  theirs = exported_scores(run, folder, pairs)
  gaps = relative_gaps(np.concatenate(theirs), np.concatenate(ours))
  return float(gaps.max())


def own_scores(
  run: TrainedModel, pairs: Sequence[PairIds]
) -> list[Float32[np.ndarray, ' _']]:
  """Compute log p of every target token with the run."""
  vocabulary = run.target_tokenizer.vocabulary
  sources, targets = (list(side) for side in zip(*pairs, strict=True))
  length = max(map(len, sources + targets))
  source = Source(*padded(sources, len(pairs), length, vocabulary.end))
  rows = TeacherForcedRows(
    (source,), *padded(targets, len(pairs), length, vocabulary.end)
  )
  scores, _ = teacher_forced_scores(
    (run.parameters,), rows, models=(run.model,), mixture=Mixture()
  )
  scored = zip(jax.device_get(scores), targets, strict=True)
  return [row[: len(target)] for row, target in scored]


def exported_scores(
  run: TrainedModel, folder: Path, pairs: Sequence[PairIds]
) -> list[Float32[np.ndarray, ' _']]:
  """Compute log p of every target token with CTranslate2 in float32 on CPU."""
  import ctranslate2  # An optional package.

  # With more threads than free cores, the spinning threads make it slow.
  translator = ctranslate2.Translator(
    str(folder), compute_type='float32', intra_threads=1
  )
  # CTranslate2 adds the end symbols.
  sources, targets = (
    [[pieces[token] for token in pair[side][:-1]] for pair in pairs]
    for side, pieces in enumerate(
      (run.source_tokenizer.pieces(), run.target_tokenizer.pieces())
    )
  )
  scored = translator.score_batch(sources, targets, max_input_length=0)
  return [np.asarray(result.log_probs, np.float32) for result in scored]
