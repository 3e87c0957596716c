"""Scoring of given translations by one teacher-forced pass, line by line.

Axis letters: B batch, S source, T target, D model width, V vocabulary.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Int32

from fusion_jax.config import DecodingConfig
from fusion_jax.decoding.batches import (
  PairIds,
  PlannedBatch,
  computed,
  decode_shapes,
  on_mesh,
  padded,
  windows,
)
from fusion_jax.decoding.ensemble import Ensemble, Mixture, alone
from fusion_jax.decoding.model_step import Source, coverage_penalty
from fusion_jax.decoding.sentences import PairReader
from fusion_jax.errors import InputError
from fusion_jax.fusion.mixture import at_positions, mixture_log_probabilities
from fusion_jax.layers.sow import cross_attention_weights
from fusion_jax.models.transformer import (
  ModelOutput,
  OutputLayer,
  Parameters,
  Transformer,
  output_logits,
)
from fusion_jax.parallel.mesh import data_mesh, over_rows
from fusion_jax.runs.loading import TrainedModel
from fusion_jax.search.hypotheses import LengthPenalty

# A pair as every model reads it; the targets are the same.
Pairs = tuple[PairIds, ...]

# Number of target positions whose logits are held at a time.
_CHUNK = 1_024

Combine = Literal['arithmetic', 'geometric']


@dataclasses.dataclass(frozen=True)
class Scored:
  """Scores of one translation.

  Attributes:
    tokens: Log-probability of every subword, that of the end symbol last.
    divisor: Length penalty.
    coverage: Term that the coverage penalty adds.
  """

  tokens: tuple[float, ...]
  divisor: float
  coverage: float = 0.0

  @property
  def log_probability(self) -> float:
    """Sum over the subwords."""
    return math.fsum(self.tokens)

  @property
  def mean(self) -> float:
    """Mean over the subwords; 0 if there are none."""
    return self.log_probability / max(len(self.tokens), 1)

  @property
  def score(self) -> float:
    """Score by which the search ranks."""
    return self.log_probability / self.divisor + self.coverage


_NOTHING = Scored((), 1.0)


class TeacherForcedRows(NamedTuple):
  """Batch of pairs, end symbols included."""

  sources: tuple[Source, ...]  # As each model reads them.
  target: Int32[Array | np.ndarray, 'B T']
  target_lengths: Int32[Array | np.ndarray, ' B']


class Scorer:
  """Scorer of pairs of a source and a translation, as a search scores them."""

  def __init__(
    self,
    run: TrainedModel | Ensemble,
    options: DecodingConfig,
    on_progress: Callable[[int], None] | None = None,
  ):
    """Prepare to score; nothing is compiled yet."""
    ensemble = alone(run)
    self._on_progress = on_progress or (lambda pairs: None)
    self._slots = options.batch_tokens * jax.process_count()
    self._end_id = ensemble.tokenizer.vocabulary.end
    self._encoders = [PairReader(run, options) for run in ensemble.runs]
    self._pass = on_mesh(
      teacher_forced_scores,
      tuple(run.parameters for run in ensemble.runs),
      data_mesh(),
      models=tuple(run.model for run in ensemble.runs),
      mixture=ensemble.mixture,
      weight=options.coverage,
    )
    penalty = LengthPenalty(options.length_penalty, options.alpha)
    self._divisors = penalty.divisors(options.max_source_length)
    self.shapes = decode_shapes(dataclasses.replace(options, beam_size=1))

  def fits(self, source: str, target: str) -> bool:
    """Return whether no side of a pair is longer than `max_source_length`."""
    try:
      self.check(0, source, target)
    except InputError:
      return False
    return True

  def check(self, number: int, source: str, target: str) -> None:
    """Refuse the pair of a line if it cannot be scored."""
    self._encode(f'line {number}', source, target)

  def _encode(self, name: str, source: str, target: str) -> Pairs:
    return tuple(e.encode(name, source, target) for e in self._encoders)

  def score(
    self, pairs: Iterable[tuple[str, str]], unit: str = 'line'
  ) -> Iterator[Scored]:
    """Score every pair, in order."""
    yield from self.score_ids(
      self._encode(f'{unit} {number}', *pair)
      for number, pair in enumerate(pairs, start=1)
    )

  def score_ids(self, pairs: Iterable[Pairs]) -> Iterator[Scored]:
    """Score every pair of ids, in order."""
    slots = ((pair, _length(pair)) for pair in pairs)
    for window in windows(slots, self._slots):
      yield from self._score_window(window)

  def _score_window(self, window: list[Pairs]) -> list[Scored]:
    pairs = [pair for pair in window if not pair[0].is_blank]

    def read(place: int, row: tuple[Any, Any]) -> Scored:
      tokens = row[0][: len(pairs[place][0].target)]
      divisor = float(self._divisors[len(tokens)])
      return Scored(tuple(map(float, tokens)), divisor, float(row[1]))

    scored = computed(
      list(map(_length, pairs)),
      self.shapes,
      lambda batch: self._pass(self._rows(batch, pairs)),
      read,
      lambda sentences: self._on_progress(len(sentences)),
      shared=Scored,
    )
    self._on_progress(len(window) - len(pairs))
    left = iter(scored)
    return [_NOTHING if pair[0].is_blank else next(left) for pair in window]

  def _rows(self, batch: PlannedBatch, pairs: list[Pairs]) -> TeacherForcedRows:
    chosen, size = [pairs[n] for n in batch.sentences], batch.shape[:2]
    sources = (
      [models[run].source for models in chosen]
      for run in range(len(self._encoders))
    )
    targets = [models[0].target for models in chosen]
    return TeacherForcedRows(
      tuple(Source(*padded(ids, *size, self._end_id)) for ids in sources),
      *padded(targets, *size, self._end_id),
    )


def _length(pairs: Pairs) -> int:
  return max(pair.length for pair in pairs)


@functools.partial(jax.jit, static_argnames=('models', 'mixture', 'weight'))
@over_rows
def teacher_forced_scores(
  parameters: tuple[Parameters, ...],
  rows: TeacherForcedRows,
  *,
  models: tuple[Transformer, ...],
  mixture: Mixture,
  weight: float = 0.0,
) -> tuple[Float32[Array, 'B T'], Float32[Array, ' B']]:
  """Score targets with one or more models."""
  tokens = jnp.arange(rows.target.shape[1]) < rows.target_lengths[:, None]
  outputs, coverage_score = [], jnp.zeros(rows.target.shape[0])
  for model, own, source, share in zip(
    models, parameters, rows.sources, mixture.weights, strict=True
  ):
    output, kept = model.apply(
      {'params': own},
      *(source.ids, source.lengths, rows.target),
      mutable=['attention'] if weight else [],
    )
    outputs.append(output)
    if weight:
      attention = cross_attention_weights(kept['attention']).mean((0, 2))
      attended = jnp.where(tokens[..., None], attention, 0).sum(1)
      coverage_score += (
        weight * share * coverage_penalty(attended, source.tokens)
      )
  target = jnp.asarray(rows.target)
  combines = [model.config.decoder.combine for model in models]
  return _chosen(outputs, target, combines, mixture), coverage_score


def token_log_probabilities(
  output: ModelOutput, targets: Int32[Array, 'B T'], combine: Combine
) -> Float32[Array, 'B T']:
  """Return log p of every target token, of the mixture if there are groups."""
  return _chosen([output], targets, [combine], Mixture())


def _chosen(
  outputs: Sequence[ModelOutput],
  targets: Int32[Array, 'B T'],
  combines: Sequence[Combine],
  mixture: Mixture,
) -> Float32[Array, 'B T']:
  """Choose log p of the targets row by row, so that few logits are held."""

  def row(pair):
    models, tokens = pair
    log_p = [
      _log_probabilities(features, weights, output.output, combine)
      for (features, weights), output, combine in zip(
        models, outputs, combines, strict=True
      )
    ]
    every = log_p[0] if len(log_p) == 1 else mixture.log_probabilities(log_p)
    return jnp.take_along_axis(every, tokens[:, None], axis=-1)[:, 0]

  rows = max(_CHUNK // targets.shape[1], 1)
  features = tuple(map(_by_row, outputs))
  return jax.lax.map(row, (features, targets), batch_size=rows)


def _by_row(
  output: ModelOutput,
) -> tuple[Float[Array, 'B *G T D'], Float[Array, 'B G T'] | None]:
  """Return features and log psi with the rows first, to take one by one."""
  if output.log_weights is None:
    return output.features, None
  features = jnp.moveaxis(output.features, 0, 1)
  weights = at_positions(output.log_weights, output.features.shape[1:3])
  return features, jnp.moveaxis(weights, 0, 1)


def _log_probabilities(
  features: Float[Array, '*G T D'],
  log_weights: Float[Array, 'G T'] | None,
  output: OutputLayer,
  combine: Combine,
) -> Float32[Array, 'T V']:
  """Return all log-probabilities of one row in one model."""
  logits = functools.partial(output_logits, output=output)
  if log_weights is None:
    return jax.nn.log_softmax(logits(features))
  return mixture_log_probabilities(features, log_weights, logits, combine)
