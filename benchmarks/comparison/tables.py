"""The numbers of a comparison, table by table and line by line.

There is a table for each norm of the continued runs, with the continued plain
model as the baseline, and one of the runs from scratch, with the plain model.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from benchmarks.comparison.contestants import WIDE
from benchmarks.comparison.orderings import Neighbours, neighbours
from benchmarks.comparison.plan import Run
from benchmarks.comparison.results import Results
from benchmarks.comparison.texts import Text
from benchmarks.schemes import BASELINE
from fusion_jax.evaluation.sentence_statistics import statistics_of
from fusion_jax.evaluation.significance import (
  Paired,
  Seeds,
  over_seeds,
  paired_test,
  welch,
)

# Of the bootstrap.
SAMPLES = 1_000

Kind = Literal['continued', 'scratch']


class Score(NamedTuple):
  """The loss of a contestant, or its score on one test set.

  seeds: the values.
  differences: to the baseline, of the seeds that both have.
  over_seeds: p of Welch's t-test; None with less than two seeds each.
  bootstrap: p of the paired bootstrap, of the first seed that both have; only
    of BLEU.
  interval: half of the 95 % interval of that seed's difference.
  """

  seeds: Seeds
  differences: tuple[float, ...] = ()
  over_seeds: float | None = None
  bootstrap: float | None = None
  interval: float | None = None

  @property
  def difference(self) -> float | None:
    """The mean of the differences; None where there are none."""
    return statistics.fmean(self.differences) if self.differences else None


class Line(NamedTuple):
  """A contestant with at least one finished run.

  scheme: its name.
  seeds: of its finished runs.
  extra_parameters: beside the baseline; None without a baseline.
  rate: of the fusion; None: its default, or no fusion.
  nll: the validation loss, in nats; None if that of a seed is not finite.
  bleu: by test set.
  to_wide: the same beside the plain model with as many parameters.
  chrf: chrF2, by test set.
  first: the results of the first seed.
  """

  scheme: str
  seeds: tuple[int, ...]
  extra_parameters: int | None
  rate: float | None
  nll: Score | None
  bleu: dict[str, Score]
  to_wide: dict[str, Score]
  chrf: dict[str, Score]
  first: dict[str, Any]


class Pair(NamedTuple):
  """BLEU of a scheme beside one that a paper prints below it, by test set."""

  printed: Neighbours
  bleu: dict[str, Score]


class Table(NamedTuple):
  """The results of one norm.

  lines: the baseline first.
  pairs: of the orders that papers print.
  missing: what is not finished yet.
  """

  kind: Kind
  norm: str
  lines: list[Line]
  pairs: list[Pair]
  missing: list[Run]


def tables(
  runs: Sequence[Run],
  results: Results,
  tests: Mapping[str, Text],
  language: str,
) -> list[Table]:
  """All tables of a plan, in its order; the tuning is in no table."""
  grouped: dict[tuple[str, str], list[Run]] = {}
  for run in runs:
    if run.phase != 'tuning':
      kind = 'continued' if run.phase == 'continued' else 'scratch'
      grouped.setdefault((kind, run.norm), []).append(run)
  lines = _Lines(results, tests, language)
  found = []
  for key, own in sorted(grouped.items(), key=lambda item: item[0][0]):
    finished = _by_scheme([run for run in own if run in results])
    missing = [run for run in own if run not in results]
    parts = lines.of(finished), lines.pairs(finished), missing
    found.append(Table(*key, *parts))
  return found


def first_of(tables: Sequence[Table], kind: Kind) -> Table | None:
  """The first table of a kind that has a line."""
  return next((x for x in tables if x.kind == kind and x.lines), None)


def beside(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Score:
  """The values of some seeds beside those of a baseline, where it has any."""
  seeds = over_seeds(list(ours.values()))
  common = [seed for seed in ours if seed in theirs]
  if not common:
    return Score(seeds)
  before, after = (
    over_seeds([values[seed] for seed in common]) for values in (theirs, ours)
  )
  differences = tuple(ours[seed] - theirs[seed] for seed in common)
  return Score(seeds, differences, welch(before, after))


def _by_scheme(runs: Sequence[Run]) -> dict[str, list[Run]]:
  found: dict[str, list[Run]] = {}
  for run in runs:
    found.setdefault(run.scheme, []).append(run)
  return found


class _Lines:
  """The lines of finished runs; counts the n-grams of a text once."""

  def __init__(
    self, results: Results, tests: Mapping[str, Text], language: str
  ):
    self._results, self._tests, self._language = results, tests, language
    self._counted: dict[tuple[Run, str], Any] = {}

  def of(self, runs: Mapping[str, list[Run]]) -> list[Line]:
    """The lines of one table."""
    plain = runs.get(BASELINE, []), runs.get(WIDE, [])
    return [self._line(own, *plain) for own in runs.values()]

  def pairs(self, runs: Mapping[str, list[Run]]) -> list[Pair]:
    """The neighbours in the orders that papers print."""
    found = []
    for each in neighbours(runs):
      lower, higher = runs[each.lower], runs[each.higher]
      tests = self._results[higher[0]]['tests']
      bleu = {test: self._bleu(test, higher, lower) for test in tests}
      found.append(Pair(each, bleu))
    return found

  def _line(
    self, own: Sequence[Run], baseline: Sequence[Run], wide: Sequence[Run]
  ) -> Line:
    first = self._results[own[0]]
    tests = first['tests']
    extra = None
    if baseline:
      extra = first['parameters'] - self._results[baseline[0]]['parameters']
    return Line(
      own[0].scheme,
      tuple(run.seed for run in own),
      extra,
      first['fusion_rate'],
      self._nll(own, baseline),
      {test: self._bleu(test, own, baseline) for test in tests},
      {test: self._bleu(test, own, wide) for test in tests},
      {test: self._score(test, own, baseline, 'chrf') for test in tests},
      first,
    )

  def _nll(self, own: Sequence[Run], baseline: Sequence[Run]) -> Score | None:
    ours, theirs = (
      {run.seed: self._results[run]['validation_nll'] for run in runs}
      for runs in (own, baseline)
    )
    if None in ours.values():
      return None
    finite = {seed: loss for seed, loss in theirs.items() if loss is not None}
    return beside(ours, {} if own == baseline else finite)

  def _bleu(
    self, test: str, own: Sequence[Run], baseline: Sequence[Run]
  ) -> Score:
    score = self._score(test, own, baseline, 'bleu')
    if score.difference is None:
      return score
    ours, theirs = (self._tested(test, runs) for runs in (own, baseline))
    seed = next(seed for seed in ours if seed in theirs)
    found = self._bootstrap(test, theirs[seed], ours[seed])
    return score._replace(
      bootstrap=found and found.p_value,
      interval=found and found.difference_interval,
    )

  def _score(
    self, test: str, own: Sequence[Run], baseline: Sequence[Run], metric: str
  ) -> Score:
    ours, theirs = (
      {
        seed: self._results[run]['tests'][test][metric]
        for seed, run in self._tested(test, runs).items()
      }
      for runs in (own, baseline)
    )
    return beside(ours, {} if own == baseline else theirs)

  def _tested(self, test: str, runs: Iterable[Run]) -> dict[int, Run]:
    """The runs that have a score on a test set, by their seeds."""
    return {
      run.seed: run for run in runs if test in self._results[run]['tests']
    }

  def _bootstrap(self, test: str, baseline: Run, run: Run) -> Paired | None:
    """A test of equal BLEU; None where the test set is not there."""
    if test not in self._tests:
      return None
    before, after = (self._counts(each, test) for each in (baseline, run))
    counts = {'baseline': before, 'system': after}
    _, found = paired_test('BLEU', self._language, 1, counts, 'bs', SAMPLES)
    return found['system']

  def _counts(self, run: Run, test: str) -> Any:
    if (run, test) not in self._counted:
      lines = self._results.translations(run, test)
      references = [self._tests[test].references]
      (counted,) = statistics_of(
        [lines], references, self._language, names=('BLEU',)
      )
      self._counted[run, test] = counted['BLEU']
    return self._counted[run, test]
