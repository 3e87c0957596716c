"""Comparison of translations across batches, to show that they do not differ.

The lines are translated in the default scenario, which is the reference, and in
every other scenario of `scenarios.py`. Two things hold for a correct model and
search:

1. Every scenario gives the same n best translations with the same scores.
   Rounding may change the score of one translation by at most
   `Tolerance.relative` * max(1, |score|); each translation that two scenarios
   have in common is held to that bound. Where two scenarios differ, both
   translations are scored by teacher forcing, each alone; they are a tie if
   these two scores differ by no more than the same bound. Anything else is a
   difference.
2. Each subword has the same log-probability in the step-by-step search, which
   reads a cache, and in the teacher-forced pass, within the bound for a value
   of that size.

Hypotheses that tie before they end may leave the beam in one scenario and stay
in the other. If their continuations differ, that counts as a difference,
although neither is wrong.
"""

import dataclasses
import itertools
import logging
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import jax
import numpy as np

from fusion_jax.config import DecodingConfig
from fusion_jax.decoding.certify.scenarios import (
  REFERENCE,
  Answers,
  Scenario,
  all_scenarios,
  translated,
)
from fusion_jax.decoding.rounding import relative_gaps, rounding
from fusion_jax.decoding.score import Scored, Scorer
from fusion_jax.decoding.shapes import target_limit
from fusion_jax.decoding.translate import Translation
from fusion_jax.runs.loading import TrainedModel

logger = logging.getLogger(__name__)

# Teacher-forced scores of translations.
Score = Callable[[Sequence[Translation]], Sequence[float]]


class Tolerance(NamedTuple):
  """Change that rounding may cause.

  Attributes:
    relative: Largest change of a score or of a subword's log-probability,
      relative to max(1, its absolute value).
    decides: Whether a larger change fails the check.
  """

  relative: float
  decides: bool

  def of(self, score: float) -> float:
    """Return the largest change of this score."""
    return self.relative * max(1.0, abs(score))


Kind = Literal['tie', 'score', 'translation', 'missing']


@dataclasses.dataclass(frozen=True)
class Difference:
  """Place where a scenario does not give the result of the reference.

  Attributes:
    line: Number of the line in the file, from 1.
    rank: Rank of the translation, from 1.
    kind: 'tie', 'score' (the same translation with another score),
      'translation' (another translation) or 'missing' (one scenario has none).
    ours, theirs: Translation of the reference and of the scenario.
    gap: Score of ours less that of theirs: as each scenario found it for
      'score', by teacher forcing otherwise; None if one is missing.
    bound: Largest gap of a tie.
  """

  line: int
  rank: int
  kind: Kind
  ours: Translation | None
  theirs: Translation | None
  gap: float | None
  bound: float


@dataclasses.dataclass(frozen=True)
class Comparison:
  """Comparison of a scenario with the reference.

  Attributes:
    scenario: Scenario that was tried or skipped.
    sentences: Number of lines that were compared.
    differences: Differences in the order of the lines.
    largest: Largest difference of the scores of a translation that both found.
  """

  scenario: Scenario
  sentences: int = 0
  differences: tuple[Difference, ...] = ()
  largest: float = 0.0

  @property
  def different(self) -> list[int]:
    """Lines with a difference that is no tie."""
    found = {each.line for each in self.differences if each.kind != 'tie'}
    return sorted(found)

  @property
  def ties(self) -> list[int]:
    """Lines whose differences are all ties."""
    found = {each.line for each in self.differences}
    return sorted(found - set(self.different))


@dataclasses.dataclass(frozen=True)
class StepCheck:
  """Log-probabilities of subwords: step by step against teacher-forced.

  Attributes:
    subwords: Number of subwords that were compared.
    largest, mean: Largest and mean difference, relative to max(1, absolute
      value of the teacher-forced log-probability).
    line, rank, position: Place of the largest difference, each from 1; 0 if
      nothing was compared.
  """

  subwords: int = 0
  largest: float = 0.0
  mean: float = 0.0
  line: int = 0
  rank: int = 0
  position: int = 0


@dataclasses.dataclass(frozen=True)
class Certificate:
  """All results of the check; `holds` is the verdict."""

  tolerance: Tolerance
  n_best: int
  comparisons: tuple[Comparison, ...]
  steps: StepCheck

  @property
  def holds(self) -> bool:
    """Whether only ties and rounding were found, on at least one subword."""
    same = not any(each.different for each in self.comparisons)
    return same and self.steps_agree and self.steps.subwords > 0

  @property
  def steps_agree(self) -> bool:
    """Whether the cached steps give what the teacher-forced pass gives."""
    return self.steps.largest <= self.tolerance.relative


def certify(
  run: TrainedModel,
  options: DecodingConfig,
  lines: Sequence[tuple[int, str]],
  n_best: int,
  scenarios: Sequence[Scenario] | None = None,
) -> Certificate:
  """Translate lines in many scenarios and compare the results."""
  numbers, texts = zip(*lines, strict=True)
  ours = translated(run, options, n_best, REFERENCE, texts)
  if scenarios is None:
    scenarios = all_scenarios(
      options, n_best, _source_tokens(ours), jax.device_count()
    )
  model = run.config.model
  tolerance = Tolerance(rounding(model), model.compute_dtype == 'float32')
  forcing = TeacherForcing(run, options)
  comparisons = []
  for count, scenario in enumerate(scenarios, start=1):
    if scenario.skipped:
      comparisons.append(Comparison(scenario))
      continue
    logger.info('%s (%d of %d)', scenario.name, count, len(scenarios))
    theirs = translated(run, options, n_best, scenario, texts)
    keep = min(n_best, scenario.n_best or n_best)
    mine, other = ([each[:keep] for each in found] for found in (ours, theirs))
    comparisons.append(
      compare(scenario, numbers, mine, other, forcing.score, tolerance)
    )
  tokens = iter(forcing.tokens([each for found in ours for each in found]))
  steps = compare_steps(
    numbers, ours, [list(itertools.islice(tokens, len(each))) for each in ours]
  )
  return Certificate(tolerance, n_best, tuple(comparisons), steps)


def compare(
  scenario: Scenario,
  numbers: Sequence[int],
  ours: Answers,
  theirs: Answers,
  score: Score,
  tolerance: Tolerance,
) -> Comparison:
  """Compare the answers of a scenario with the reference, rank by rank."""
  same: list[tuple[int, int, Translation, Translation]] = []
  other: list[tuple[int, int, Translation | None, Translation | None]] = []
  for line, *found in zip(numbers, ours, theirs, strict=True):
    ranked = itertools.zip_longest(*found)
    for rank, (mine, their) in enumerate(ranked, start=1):
      if mine is None or their is None or mine.pairs != their.pairs:
        other.append((line, rank, mine, their))
      else:
        same.append((line, rank, mine, their))
  differences = [_rescored(*place, tolerance) for place in same]
  differences += _apart(other, score, tolerance)
  changes = [abs(mine.score - their.score) for _, _, mine, their in same]
  apart = [each for each in differences if each is not None]
  apart.sort(key=lambda each: (each.line, each.rank))
  largest = float(np.max([0.0, *changes]))
  return Comparison(scenario, len(numbers), tuple(apart), largest)


def compare_steps(
  numbers: Sequence[int],
  answers: Answers,
  forced: Sequence[Sequence[Sequence[float]]],
) -> StepCheck:
  """Compare the log-probabilities of the search with given ones."""
  gaps, places = [], []
  for line, *found in zip(numbers, answers, forced, strict=True):
    for rank, (answer, tokens) in enumerate(zip(*found, strict=True), start=1):
      cached = answer.token_log_probabilities
      gaps += relative_gaps(cached, tokens).tolist()
      places += [(line, rank, position + 1) for position in range(len(cached))]
  if not gaps:
    return StepCheck()
  # argmax returns the first NaN, so NaN counts as the largest.
  worst = int(np.argmax(gaps))
  return StepCheck(len(gaps), gaps[worst], float(np.mean(gaps)), *places[worst])


class TeacherForcing:
  """Teacher-forced scores of the translations of the search.

  Each translation has a batch of its own, so that no neighbour can change its
  score.
  """

  def __init__(self, run: TrainedModel, options: DecodingConfig):
    """Prepare to score; nothing is compiled yet."""
    # A translation may be longer than the longest source.
    longest = options.max_source_length
    longest = max(longest, target_limit(longest, options, run.longest))
    self._scorer = Scorer(
      run,
      dataclasses.replace(options, max_source_length=longest, batch_tokens=1),
    )

  def tokens(self, translations: Sequence[Translation]) -> list[list[float]]:
    """Return the log-probability of every subword of each translation."""
    return [
      [token for piece in pieces for token in piece.tokens]
      for pieces in self._scored(translations)
    ]

  def score(self, translations: Sequence[Translation]) -> list[float]:
    """Return the score by which the search ranks, for each translation."""
    return [
      sum(piece.score for piece in pieces)
      for pieces in self._scored(translations)
    ]

  def _scored(self, translations: Sequence[Translation]) -> list[list[Scored]]:
    """Score the pieces of each translation."""
    pairs = [(pair,) for each in translations for pair in each.pairs]
    scored = iter(list(self._scorer.score_ids(pairs)))
    return [
      list(itertools.islice(scored, len(each.pairs))) for each in translations
    ]


def _source_tokens(answers: Answers) -> int:
  best = (translations[0] for translations in answers)
  return sum(len(pair.source) for each in best for pair in each.pairs)


def _rescored(
  line: int,
  rank: int,
  ours: Translation,
  theirs: Translation,
  tolerance: Tolerance,
) -> Difference | None:
  """Return a difference if a translation's two scores are too far apart."""
  gap, bound = ours.score - theirs.score, tolerance.of(ours.score)
  if abs(gap) <= bound:
    return None
  return Difference(line, rank, 'score', ours, theirs, gap, bound)


def _apart(
  places: Sequence[tuple[int, int, Translation | None, Translation | None]],
  score: Score,
  tolerance: Tolerance,
) -> list[Difference]:
  """Return the differences of translations, which are all scored at once."""
  both = [
    each
    for _, _, ours, theirs in places
    if ours is not None and theirs is not None
    for each in (ours, theirs)
  ]
  scores = iter(score(both))
  differences = []
  for line, rank, ours, theirs in places:
    if ours is None or theirs is None:
      differences.append(
        Difference(line, rank, 'missing', ours, theirs, None, 0.0)
      )
      continue
    gap, bound = next(scores) - next(scores), tolerance.of(ours.score)
    kind: Kind = 'tie' if abs(gap) <= bound else 'translation'
    differences.append(Difference(line, rank, kind, ours, theirs, gap, bound))
  return differences
