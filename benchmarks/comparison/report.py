"""The tables of a comparison, as Markdown, and their place in the guide.

There is a table for each norm of the continued runs, with the continued plain
model as the baseline, and one of the runs from scratch, with the plain model.
"""

import statistics
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import common
from benchmarks.comparison.plan import Run
from benchmarks.comparison.recipe import Recipe
from benchmarks.comparison.runs import Results, Text
from benchmarks.schemes import BASELINE
from fusion_jax.errors import InputError
from fusion_jax.evaluation.significance import (
  Seeds,
  over_seeds,
  paired_test,
  statistics_of,
  welch,
)
from fusion_jax.files import write_whole

# Of the bootstrap.
SAMPLES = 1_000
# A number that there is not.
NONE = '–'
_TITLES = {
  'continued': 'from the trained plain model',
  'scratch': 'from scratch',
}
_BEGIN = '<!-- comparison of schemes: {} -->'
_END = '<!-- end of the comparison -->'


class Score(NamedTuple):
  """A number of some seeds, and its differences to those of a baseline.

  The differences and `over_seeds`, p of Welch's t-test, are over the seeds that
  both have; `bootstrap` is p of the paired bootstrap of the first of them.
  """

  seeds: Seeds
  differences: tuple[float, ...] = ()
  over_seeds: float | None = None
  bootstrap: float | None = None

  @property
  def difference(self) -> float | None:
    """The mean of the differences; None where there are none."""
    return statistics.fmean(self.differences) if self.differences else None


class Line(NamedTuple):
  """A contestant with at least one finished run.

  `first` are the results of its first seed, `extra` the parameters beside the
  baseline's. The loss is None if that of a seed is not finite. BLEU and chrF2
  are by test set.
  """

  scheme: str
  seeds: tuple[int, ...]
  first: dict[str, Any]
  extra: int | None
  nll: Score | None
  bleu: dict[str, Score]
  chrf: dict[str, Score]


class Table(NamedTuple):
  """The results of one norm, the baseline first, and what is not finished."""

  kind: str
  norm: str
  lines: list[Line]
  missing: list[Run]


def put_into(path: Path, name: str, text: str) -> None:
  """Replaces what stands between the markers of a name in a file."""
  if not path.is_file():
    raise InputError(f'{path}: no such file')
  marker = _BEGIN.format(name)
  before, begin, rest = path.read_text(encoding='utf-8').partition(marker)
  _, end, after = rest.partition(_END)
  if not (begin and end):
    raise InputError(f'{path}: must have {marker} and then {_END}')
  write_whole(path, f'{before}{begin}\n\n{text}\n{end}{after}'.encode())


class Tables:
  """Makes tables of finished runs; counts the n-grams of a text once."""

  def __init__(
    self, results: Results, tests: Mapping[str, Text], language: str
  ):
    self._results, self._tests, self._language = results, tests, language
    self._counted: dict[tuple[Run, str], Any] = {}

  def of(self, runs: Sequence[Run]) -> list[Table]:
    """All tables of a plan, in its order; the tuning is in no table."""
    grouped: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
      if run.phase != 'tuning':
        grouped.setdefault((run.kind, run.norm), []).append(run)
    return [
      self._table(*key, group)
      for key, group in sorted(grouped.items(), key=lambda item: item[0][0])
    ]

  def _table(self, kind: str, norm: str, runs: Sequence[Run]) -> Table:
    schemes: dict[str, list[Run]] = {}
    for run in runs:
      if run in self._results:
        schemes.setdefault(run.scheme, []).append(run)
    plain = schemes.get(BASELINE, [])
    lines = [self._line(group, plain) for group in schemes.values()]
    missing = [run for run in runs if run not in self._results]
    return Table(kind, norm, lines, missing)

  def _line(self, runs: Sequence[Run], plain: Sequence[Run]) -> Line:
    first, extra = self._results[runs[0]], None
    if plain:
      extra = first['parameters'] - self._results[plain[0]]['parameters']
    baseline = [] if runs == plain else plain
    nll, before = (
      self._numbers(group, lambda result: result['validation_nll'])
      for group in (runs, baseline)
    )
    return Line(
      runs[0].scheme,
      tuple(run.seed for run in runs),
      first,
      extra,
      _beside(nll, before) if len(nll) == len(runs) else None,
      {test: self._bleu(test, runs, baseline) for test in first['tests']},
      {test: self._score(test, runs, baseline) for test in first['tests']},
    )

  def _numbers(
    self, runs: Iterable[Run], number: Callable[[dict[str, Any]], Any]
  ) -> dict[int, float]:
    """A number of some runs by their seeds, of those that have it."""
    values = {run.seed: number(self._results[run]) for run in runs}
    return {seed: value for seed, value in values.items() if value is not None}

  def _score(
    self,
    test: str,
    runs: Sequence[Run],
    baseline: Sequence[Run],
    metric: str = 'chrf',
  ) -> Score:
    ours, theirs = (
      self._numbers(
        group, lambda result: result['tests'].get(test, {}).get(metric)
      )
      for group in (runs, baseline)
    )
    return _beside(ours, theirs)

  def _bleu(
    self, test: str, runs: Sequence[Run], baseline: Sequence[Run]
  ) -> Score:
    score = self._score(test, runs, baseline, 'bleu')
    if score.difference is None or test not in self._tests:
      return score
    ours, theirs = (
      {run.seed: run for run in group if test in self._results[run]['tests']}
      for group in (runs, baseline)
    )
    seed = next(seed for seed in ours if seed in theirs)
    counts = {
      'baseline': self._counts(theirs[seed], test),
      'system': self._counts(ours[seed], test),
    }
    _, tested = paired_test('BLEU', self._language, 1, counts, 'bs', SAMPLES)
    return score._replace(bootstrap=tested['system'].p_value)

  def _counts(self, run: Run, test: str) -> Any:
    if (run, test) not in self._counted:
      lines = self._results.translations(run, test)
      texts = [lines], [self._tests[test].references]
      (counted,) = statistics_of(*texts, self._language, names=('BLEU',))
      self._counted[run, test] = counted['BLEU']
    return self._counted[run, test]


def _beside(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Score:
  seeds = over_seeds(list(ours.values()))
  common_seeds = [seed for seed in ours if seed in theirs]
  if not common_seeds:
    return Score(seeds)
  before, after = (
    over_seeds([values[seed] for seed in common_seeds])
    for values in (theirs, ours)
  )
  differences = tuple(ours[seed] - theirs[seed] for seed in common_seeds)
  return Score(seeds, differences, welch(before, after))


def report(recipe: Recipe, results: Results, tables: Sequence[Table]) -> str:
  """What was compared and how, and a section for each table."""
  norms = list(dict.fromkeys(table.norm for table in tables))
  parts = [_head(recipe, norms)]
  for table in tables:
    parts.append(f'### {table.norm.capitalize()}-norm, {_TITLES[table.kind]}')
    parts += [_grid(table.lines) if table.lines else '', _missing(table)]
  parts.append(_circumstances(results))
  return '\n\n'.join(part for part in parts if part) + '\n'


def _head(recipe: Recipe, norms: Sequence[str]) -> str:
  digests = ', '.join(f'`{recipe.digest(x)[:12]}` ({x}-norm)' for x in norms)
  steps = {name: one.training.steps for name, one in recipe.phases.items()}
  data = recipe.phases['plain'].data
  rates = ', '.join(f'{rate:g}' for rate in recipe.rates)
  return paragraph(
    f'Recipe {digests}, corpus `{recipe.corpus}`, '
    f'{data.source_language}-{data.target_language}; '
    f'{steps["plain"]:,} updates from scratch, {steps["continued"]:,} from the '
    f'trained plain model, with fresh Adam and a fusion rate of {rates}, which '
    f'the validation loss after {steps["tuning"]:,} updates chose. `wide` is a '
    'plain model with a wider filter and as many parameters as the heaviest '
    f"scheme. p: sacreBLEU's paired bootstrap ({SAMPLES:,} samples) against "
    '`none` of the '
    'same table, which is below 0.05 for about one in ten systems that do not '
    "differ; with several seeds, that of the first seed, and Welch's "
    't-test over seeds. The bootstrap compares two trained models, whose '
    'difference may come from the seed alone. Differences are over the seeds '
    'that both have. No p is corrected for the number of schemes.'
  )


def _grid(lines: Sequence[Line]) -> str:
  tests = list(dict.fromkeys(test for line in lines for test in line.bleu))
  header = ['scheme', 'extra parameters', 'fusion rate', 'seeds']
  header += ['validation NLL', 'difference', 'p over seeds']
  for test in tests:
    header += [f'BLEU `{test}`', 'difference', 'p', 'p over seeds', 'chrF2']
  rows = []
  for line in lines:
    rate, nll = line.first['fusion_rate'], line.nll
    row = [
      f'`{line.scheme}`',
      NONE if line.extra is None else f'{line.extra:+,}',
      NONE if rate is None else f'{rate:g}',
      str(len(line.seeds)),
      mean(nll.seeds, 4) if nll else 'not finite',
      signed(nll and nll.difference, 4),
      p_value(nll and nll.over_seeds),
    ]
    for test in tests:
      if bleu := line.bleu.get(test):
        row += [mean(bleu.seeds), signed(bleu.difference)]
        row += map(p_value, (bleu.bootstrap, bleu.over_seeds))
        row.append(mean(line.chrf[test].seeds))
      else:
        row += [NONE] * 5
    rows.append(row)
  return common.table(header, rows)


def _missing(of_norm: Table) -> str:
  """What is not finished: for each choice of seeds, schemes that lack it."""
  if of_norm.missing and not of_norm.lines:
    return f'None of {len(of_norm.missing)} runs is finished yet.'
  seeds: dict[str, list[str]] = {}
  for run in of_norm.missing:
    seeds.setdefault(run.scheme, []).append(str(run.seed))
  schemes: dict[str, list[str]] = {}
  for scheme, numbers in seeds.items():
    schemes.setdefault(', '.join(numbers), []).append(f'`{scheme}`')
  return '\n\n'.join(
    paragraph(f'Missing with seed {numbers}: {", ".join(names)}.')
    for numbers, names in schemes.items()
  )


def _circumstances(results: Results) -> str:
  """Signatures and hardware; nothing without results."""
  signatures: dict[str, None] = {}
  machines: dict[str, set[int]] = {}
  for run in results:
    for scores in run['tests'].values():
      signatures[f'`{scores["bleu_signature"]}`'] = None
    cores = f'{run["cpu"]}, {run["cores"]} cores'
    name = f'{cores}, {run["device"]}, jax {run["jax"]}'
    machines.setdefault(name, set()).add(run['seed'])
  listed = '; '.join(
    f'{name} (seed {", ".join(map(str, sorted(seeds)))})'
    for name, seeds in machines.items()
  )
  text = f'BLEU {", ".join(signatures)}; trained on {listed}.'
  return paragraph(text) if machines else ''


def mean(seeds: Seeds, digits: int = 2) -> str:
  """The mean, with the deviation where there are several seeds."""
  numbers = (seeds.mean, seeds.deviation)
  return ' ± '.join(f'{x:.{digits}f}' for x in numbers if x is not None)


def signed(difference: float | None, digits: int = 2) -> str:
  """A difference with its sign; what rounds to 0 is +0.00."""
  if difference is None:
    return NONE
  return f'{round(difference, digits) + 0.0:+.{digits}f}'


def p_value(value: float | None) -> str:
  if value is None:
    return NONE
  return '<0.001' if value < 0.001 else f'{value:.3f}'


def paragraph(text: str) -> str:
  return textwrap.fill(text, 80, break_long_words=False, break_on_hyphens=False)
