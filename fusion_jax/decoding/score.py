"""Scoring of given translations by their log-probabilities, line by line."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator

import jax
import numpy as np

from fusion_jax.config import DecodingConfig
from fusion_jax.decoding.batches import (
  device_get_rows,
  device_put_rows,
  one_ahead,
  own_batches,
  pad_values,
  windows,
)
from fusion_jax.decoding.ensemble import Ensemble, alone
from fusion_jax.decoding.model_step import Source
from fusion_jax.decoding.pairs import PairIds, PairReader, padded_pairs
from fusion_jax.decoding.shapes import PlannedBatch, decode_shapes
from fusion_jax.decoding.teacher_forcing import (
  TeacherForcedRows,
  teacher_forced_scores,
)
from fusion_jax.errors import InputError
from fusion_jax.parallel.mesh import data_mesh, put_whole
from fusion_jax.parallel.processes import merged
from fusion_jax.runs.loading import TrainedModel
from fusion_jax.search.hypotheses import LengthPenalty

# A pair as every model reads it; the targets are the same.
Pairs = tuple[PairIds, ...]


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


class Scorer:
  """Scorer of pairs of a source and a translation, as a search scores them."""

  def __init__(
    self,
    run: TrainedModel | Ensemble,
    options: DecodingConfig,
    on_progress: Callable[[int], None] | None = None,
  ):
    """Prepare to score; nothing is compiled yet."""
    self._ensemble = ensemble = alone(run)
    self._on_progress = on_progress or (lambda pairs: None)
    self._options = dataclasses.replace(options, beam_size=1)
    self._encoders = [PairReader(each, options) for each in ensemble.runs]
    self._mesh = data_mesh()
    self._parameters = put_whole(
      tuple(each.parameters for each in ensemble.runs), self._mesh
    )
    self._divisors = LengthPenalty(
      options.length_penalty, options.alpha
    ).divisors(options.max_source_length)
    self.shapes = decode_shapes(self._options)

  def fits(self, source: str, target: str) -> bool:
    """Return whether no side of a pair is longer than `max_source_length`."""
    try:
      self.check(0, source, target)
    except InputError:
      return False
    return True

  def check(self, number: int, source: str, target: str) -> None:
    """Refuse the pair of a line if it cannot be scored."""
    for encoder in self._encoders:
      encoder.encode(f'line {number}', source, target)

  def score(
    self, pairs: Iterable[tuple[str, str]], unit: str = 'line'
  ) -> Iterator[Scored]:
    """Score every pair, in order."""
    numbered = enumerate(pairs, start=1)
    encoded = (
      tuple(e.encode(f'{unit} {number}', *pair) for e in self._encoders)
      for number, pair in numbered
    )
    yield from self.score_ids(encoded)

  def score_ids(self, pairs: Iterable[Pairs]) -> Iterator[Scored]:
    """Score every pair of ids, in order."""
    slots = ((each, _length(each)) for each in pairs)
    window_slots = self._options.batch_tokens * jax.process_count()
    for window in windows(slots, window_slots):
      yield from self._score_window(window)

  def _score_window(self, window: list[Pairs]) -> list[Scored]:
    pairs = [each for each in window if not each[0].is_blank]
    scored: dict[int, Scored] = {}
    batches = own_batches(list(map(_length, pairs)), self.shapes)
    for batch, found in one_ahead(
      (batch, self._start(batch, pairs)) for batch in batches
    ):
      rows = zip(*device_get_rows(found), strict=True)
      for place, (row, coverage_score) in zip(
        batch.sentences, rows, strict=False
      ):
        tokens = row[: len(pairs[place][0].target)]
        scored[place] = self._scored(tokens, float(coverage_score))
      self._on_progress(len(batch.sentences))
    own = len(scored)
    scored = merged(scored, Scored)
    self._on_progress(len(window) - own)
    left = (scored[place] for place in range(len(pairs)))
    return [_NOTHING if each[0].is_blank else next(left) for each in window]

  def _scored(self, tokens: np.ndarray, coverage_score: float) -> Scored:
    divisor = float(self._divisors[len(tokens)])
    return Scored(tuple(map(float, tokens)), divisor, coverage_score)

  def _start(
    self, batch: PlannedBatch, pairs: list[Pairs]
  ) -> tuple[jax.Array, jax.Array]:
    """Start the pass; the arrays are ready later."""
    chosen = [pairs[sentence] for sentence in batch.sentences]
    end = self._ensemble.tokenizer.vocabulary.end
    sources = []
    for run in range(len(self._encoders)):
      own = [pairs[run] for pairs in chosen]
      ids, lengths, target = padded_pairs(own, batch.shape, end)
      sources.append(Source(ids, lengths))
    lengths = pad_values(
      (len(p[0].target) for p in chosen), batch.shape.rows, 1
    )
    with jax.set_mesh(self._mesh):
      return teacher_forced_scores(
        self._parameters,
        device_put_rows(
          TeacherForcedRows(tuple(sources), target, lengths), self._mesh
        ),
        models=tuple(run.model for run in self._ensemble.runs),
        mixture=self._ensemble.mixture,
        weight=self._options.coverage,
      )


def _length(pairs: Pairs) -> int:
  return max(pair.length for pair in pairs)
