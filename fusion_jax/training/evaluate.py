"""Validation during training: loss, perplexity, accuracy, BLEU and chrF.

Each of several directions is validated by itself. The overall numbers are the
means over the directions, in which every direction counts the same.
"""

import dataclasses
import functools
import logging
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from fusion_jax.config import ExperimentConfig
from fusion_jax.data.batching import Batch, choose_shapes
from fusion_jax.data.pipeline import evaluation_batches
from fusion_jax.data.prepared import PreparedCorpus, Split
from fusion_jax.data.references import log_unreachable
from fusion_jax.decoding.direction import in_direction
from fusion_jax.decoding.translate import Translator
from fusion_jax.files import write_errors, write_whole
from fusion_jax.metrics import bleu_for, corpus_scores
from fusion_jax.models.losses import LossSums, zero_sums
from fusion_jax.models.transformer import Parameters, Transformer
from fusion_jax.parallel.distributed import is_first
from fusion_jax.parallel.mesh import by_rows, own_rows, replicated, row_shards
from fusion_jax.runs.loading import TrainedModel
from fusion_jax.training.step import make_eval_step
from fusion_jax.training.telemetry import make_telemetry_step, telemetry_values

logger = logging.getLogger(__name__)

# Largest number of batch shapes; the validation loss needs no more.
_SHAPES = 3

# Number of batches that telemetry is the mean of.
_TELEMETRY_BATCHES = 4

# Numbers that are reported for each direction where there are several.
_OF_DIRECTIONS = ('loss', 'bleu', 'chrf')


def token_means(sums: LossSums) -> dict[str, float]:
  """Return loss, perplexity and accuracy per target token.

  Args:
    sums: Loss sums, on the host or the device.

  Returns:
    'loss': in nats, as it was minimised; 'perplexity': exp of the negative
    log-likelihood; 'accuracy': share of tokens predicted correctly, in [0, 1].
  """
  tokens = max(int(sums.tokens), 1)
  likelihood = float(sums.negative_log_likelihood) / tokens
  return {
    'loss': float(sums.loss) / tokens,
    'perplexity': math.exp(likelihood) if likelihood < 700 else math.inf,
    'accuracy': int(sums.correct) / tokens,
  }


@dataclasses.dataclass(frozen=True)
class _Direction:
  """Validation data of one direction.

  Attributes:
    name: Name of the direction, 'de-en' for example.
    split: Validation examples of the direction.
    run: Run that translates in this direction; it has no parameters yet.
    sources, references: Lines to translate and their reference translations.
  """

  name: str
  split: Split
  run: TrainedModel
  sources: Sequence[str]
  references: Sequence[str]


class Validator:
  """Validation of a model on the validation split; it compiles once."""

  def __init__(
    self,
    config: ExperimentConfig,
    model: Transformer,
    corpus: PreparedCorpus,
    mesh: Mesh,
    workdir: Path,
  ):
    self._mesh = mesh
    self._translations = workdir / 'translations'
    self._split = corpus.split('valid')
    shards = row_shards(mesh)
    # All directions share the shapes, so that each shape is compiled once.
    batch, most = config.data.batch, min(config.data.batch.shapes, _SHAPES)
    self._shapes = choose_shapes(
      self._split.lengths,
      dataclasses.replace(batch, shapes=most),
      shards,
      config.data.filter.max_length,
    )
    self._step = make_eval_step(model, config.training.loss_chunk)
    self._zero_sums = jax.jit(
      lambda: jax.tree.map(lambda x: jnp.stack([x] * shards), zero_sums()),
      out_shardings=by_rows(mesh),
    )
    self._total = jax.jit(
      lambda sums: jax.tree.map(lambda x: x.sum(0), sums),
      out_shardings=replicated(mesh),
    )
    self._telemetry_step = make_telemetry_step(model)
    tokenizers = corpus.source_tokenizer, corpus.target_tokenizer
    run = TrainedModel(config, model, {}, 0, *tokenizers)
    self._directions = [
      _direction(run, corpus, each.source_language, each.target_language)
      for each in config.data.all_directions
      if each.name in self._split.directions
    ]

  def __call__(self, parameters: Parameters, step: int) -> dict[str, float]:
    """Return loss without smoothing, perplexity, accuracy, BLEU and chrF.

    Also writes translations/STEP.txt, or STEP.DIRECTION.txt for each of several
    directions, and logs one line for each direction and one for their mean.

    Args:
      parameters: Parameters to validate, replicated over the mesh.
      step: Step that names the file.

    Returns:
      Named numbers, with 'validation_seconds'. For several directions these are
      the means, and 'bleu/de-en' and the like are added.
    """
    start = time.monotonic()
    found = {
      each.name: self._validated(each, parameters, step)
      for each in self._directions
    }
    values = _means(found)
    values['validation_seconds'] = time.monotonic() - start
    if len(found) == 1:
      return values
    _log(f'step {step}, mean of {len(found)} directions', values)
    for direction, own in found.items():
      values |= {f'{name}/{direction}': own[name] for name in _OF_DIRECTIONS}
    return values

  def telemetry(self, parameters: Parameters) -> dict[str, float]:
    """Return the mean telemetry of a few batches; empty without fusion.

    Batches are sorted by length, so they are taken from all over the set.
    """
    batches = list(self._batches(self._split, _TELEMETRY_BATCHES))
    found = [self._telemetry_step(parameters, batch) for batch in batches]
    return telemetry_values(
      jax.tree.map(lambda *parts: sum(parts) / len(parts), *found)
    )

  def _validated(
    self, direction: _Direction, parameters: Parameters, step: int
  ) -> dict[str, float]:
    start = time.monotonic()
    values = token_means(self._loss(parameters, direction.split))
    run = dataclasses.replace(direction.run, step=step)
    translations = _translated(run, parameters, direction.sources)
    words = run.target_words
    scores = corpus_scores(translations, direction.references, words)
    values |= {'bleu': scores.bleu, 'chrf': scores.chrf}
    values['validation_seconds'] = time.monotonic() - start
    only = len(self._directions) == 1
    name = f'{step}{"" if only else "." + direction.name}.txt'
    if is_first():
      with write_errors(self._translations):
        self._translations.mkdir(exist_ok=True)
      text = ''.join(line + '\n' for line in translations)
      write_whole(self._translations / name, text.encode())
    where = f'step {step}{"" if only else ", " + direction.name}'
    _log(where, values, scores.bleu_signature)
    return values

  def _batches(self, split: Split, most: int | None = None) -> Iterator[Batch]:
    """Yield all batches, or at most a number that are spread evenly."""
    sharding = by_rows(self._mesh)
    batches: Iterable[Batch] = evaluation_batches(
      split, self._shapes, *own_rows(self._mesh)
    )
    if most is not None:
      batches = _spread(list(batches), most)
    for batch in batches:
      yield jax.tree.map(
        functools.partial(jax.make_array_from_process_local_data, sharding),
        batch,
      )

  def _loss(self, parameters: Parameters, split: Split) -> LossSums:
    sums = self._zero_sums()
    for batch in self._batches(split):
      sums = self._step(parameters, sums, batch)
    return jax.device_get(self._total(sums))


def _spread(items: Sequence[Batch], most: int) -> list[Batch]:
  """Return items from the middles of equal parts of a sequence."""
  count = min(most, len(items))
  return [items[(2 * n + 1) * len(items) // (2 * count)] for n in range(count)]


def _translated(
  run: TrainedModel, parameters: Parameters, sources: Sequence[str]
) -> list[str]:
  """Translate all sources, on the devices of all processes."""
  own = jax.tree.map(lambda x: x.addressable_data(0), parameters)
  run = dataclasses.replace(run, parameters=own)
  return list(Translator(run, run.config.decoding).translate(sources))


def _direction(
  run: TrainedModel, corpus: PreparedCorpus, source: str, target: str
) -> _Direction:
  training = run.config.training
  own = in_direction(run, 'this run', source, target)
  options = dataclasses.replace(
    own.config.decoding, beam_size=training.translate_beam
  )
  own = dataclasses.replace(
    own, config=dataclasses.replace(own.config, decoding=options)
  )
  # Fetches the tokenizer, or fails, before the training.
  bleu_for(own.target_words)
  name = f'{source}-{target}'
  split = corpus.split('valid', name)
  wanted = training.translate_sentences or None
  every = split.texts()
  sources, references = (texts[:wanted] for texts in every)
  if is_first():
    _log_part(name, len(sources), len(every[0]))
    log_unreachable(references, run.target_tokenizer, f'validation, {name}')
  return _Direction(name, split, own, sources, references)


def _log_part(name: str, translated: int, lines: int) -> None:
  if translated < lines:
    logger.info(
      'validation, %s: BLEU and chrF are of the first %d of %d lines, as '
      'training.translate_sentences says',
      name,
      translated,
      lines,
    )


def _means(found: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
  """Return the mean of each number over the directions."""
  values = list(found.values())
  return {
    name: sum(own[name] for own in values) / len(values) for name in values[0]
  }


def _log(where: str, values: Mapping[str, float], signature: str = '') -> None:
  logger.info(
    'validation at %s: nll %.4f, perplexity %.2f, accuracy %.4f, BLEU %.2f, '
    'chrF %.2f%s, %.1f s',
    where,
    values['loss'],
    values['perplexity'],
    values['accuracy'],
    values['bleu'],
    values['chrf'],
    signature and f' ({signature})',
    values['validation_seconds'],
  )
