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
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from fusion_jax.config import Direction, ExperimentConfig
from fusion_jax.config.presets import changed
from fusion_jax.data.batching import Batch, choose_shapes
from fusion_jax.data.pipeline import evaluation_batches
from fusion_jax.data.prepared import PreparedCorpus, Split
from fusion_jax.data.tokenizer import log_unreachable
from fusion_jax.decoding.ensemble import in_direction
from fusion_jax.decoding.translate import Translator
from fusion_jax.files import write_errors, write_whole
from fusion_jax.metrics import bleu_for, corpus_scores
from fusion_jax.models.losses import LossSums, zero_sums
from fusion_jax.models.transformer import Parameters, Transformer
from fusion_jax.parallel.mesh import by_rows, own_rows, replicated, row_shards
from fusion_jax.parallel.processes import is_first
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
  """Return loss, perplexity and accuracy per target token."""
  tokens = max(int(sums.tokens), 1)
  likelihood = float(sums.negative_log_likelihood) / tokens
  return {
    'loss': float(sums.loss) / tokens,
    'perplexity': math.exp(likelihood) if likelihood < 700 else math.inf,
    'accuracy': int(sums.correct) / tokens,
  }


class _Direction(NamedTuple):
  """Validation data of one direction; its run has no parameters yet."""

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
    self._directions = {
      direction.name: _direction(run, corpus, direction)
      for direction in config.data.all_directions
      if direction.name in self._split.directions
    }

  def __call__(self, parameters: Parameters, step: int) -> dict[str, float]:
    """Return loss without smoothing, perplexity, accuracy, BLEU and chrF.

    Also writes translations/STEP.txt, or STEP.DIRECTION.txt for each of several
    directions, and logs one line for each direction and one for their mean.
    """
    start = time.monotonic()
    numbers = {
      name: self._validated(name, direction, parameters, step)
      for name, direction in self._directions.items()
    }
    every = list(numbers.values())
    values = {
      name: sum(own[name] for own in every) / len(every) for name in every[0]
    }
    values['validation_seconds'] = time.monotonic() - start
    if len(numbers) > 1:
      _log(f'step {step}, mean of {len(numbers)} directions', values)
      for direction, its_values in numbers.items():
        for name in _OF_DIRECTIONS:
          values[f'{name}/{direction}'] = its_values[name]
    return values

  def telemetry(self, parameters: Parameters) -> dict[str, float]:
    """Return the mean telemetry of a few batches; empty without fusion.

    Batches are sorted by length, so they are taken from all over the set.
    """
    recorded = [
      self._telemetry_step(parameters, batch)
      for batch in self._batches(self._split, _TELEMETRY_BATCHES)
    ]
    return telemetry_values(
      jax.tree.map(lambda *parts: sum(parts) / len(parts), *recorded)
    )

  def _validated(
    self, name: str, direction: _Direction, parameters: Parameters, step: int
  ) -> dict[str, float]:
    start = time.monotonic()
    values = token_means(self._loss(parameters, direction.split))
    # On the devices of all processes.
    local = jax.tree.map(lambda x: x.addressable_data(0), parameters)
    run = dataclasses.replace(direction.run, parameters=local)
    translator = Translator(run, run.config.decoding)
    translations = list(translator.translate(direction.sources))
    words = run.target_words
    scores = corpus_scores(translations, direction.references, words)
    values |= {'bleu': scores.bleu, 'chrf': scores.chrf}
    values['validation_seconds'] = time.monotonic() - start
    several = len(self._directions) > 1
    if is_first():
      with write_errors(self._translations):
        self._translations.mkdir(exist_ok=True)
      file = f'{step}.{name}.txt' if several else f'{step}.txt'
      text = ''.join(f'{line}\n' for line in translations)
      write_whole(self._translations / file, text.encode())
    where = f'step {step}, {name}' if several else f'step {step}'
    _log(where, values, scores.bleu_signature)
    return values

  def _batches(self, split: Split, most: int | None = None) -> Iterator[Batch]:
    """Yield all batches, or at most a number that are spread evenly."""
    put = functools.partial(
      jax.make_array_from_process_local_data, by_rows(self._mesh)
    )
    batches: Iterable[Batch] = evaluation_batches(
      split, self._shapes, *own_rows(self._mesh)
    )
    if most is not None:
      every = list(batches)
      count = min(most, len(every))
      # From the middles of equal parts.
      middles = ((2 * n + 1) * len(every) // (2 * count) for n in range(count))
      batches = (every[n] for n in middles)
    for batch in batches:
      yield jax.tree.map(put, batch)

  def _loss(self, parameters: Parameters, split: Split) -> LossSums:
    sums = self._zero_sums()
    for batch in self._batches(split):
      sums = self._step(parameters, sums, batch)
    return jax.device_get(self._total(sums))


def _direction(
  run: TrainedModel, corpus: PreparedCorpus, direction: Direction
) -> _Direction:
  training, name = run.config.training, direction.name
  run = changed(
    in_direction(run, 'this run', *direction.languages),
    {'config.decoding.beam_size': training.translate_beam},
  )
  # Fetches the tokenizer, or fails, before the training.
  bleu_for(run.target_words)
  split = corpus.split('valid', name)
  every = split.texts()
  wanted = training.translate_sentences or None
  sources, references = (texts[:wanted] for texts in every)
  if is_first():
    if len(sources) < len(every[0]):
      logger.info(
        f'validation, {name}: BLEU and chrF are of the first {len(sources)} of '
        f'{len(every[0])} lines, as training.translate_sentences says'
      )
    log_unreachable(references, run.target_tokenizer, f'validation, {name}')
  return _Direction(split, run, sources, references)


def _log(where: str, values: Mapping[str, float], signature: str = '') -> None:
  logger.info(
    'validation at %s: nll %.4f, perplexity %.2f, accuracy %.4f, BLEU %.2f, '
    'chrF %.2f%s, %.1f s',
    where,
    *(values[x] for x in ('loss', 'perplexity', 'accuracy', 'bleu', 'chrf')),
    signature and f' ({signature})',
    values['validation_seconds'],
  )
