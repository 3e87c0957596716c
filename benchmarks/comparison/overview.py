"""What the finished runs of the comparison say together.

    python -m benchmarks.comparison.overview

writes the tables of docs/results.md and its figure. A difference is that to the
plain model of the same setting, over the seeds that both have. Its p is that of
a t-test with the deviation over seeds of all schemes and settings together.
"""

import json
import math
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from scipy import stats

from benchmarks import common
from benchmarks.comparison.report import NONE, put_into, signed
from benchmarks.schemes import BASELINE, schemes
from benchmarks.serving import ROOT
from fusion_jax.figures import COLOURS, panels, save

_DATA = common.data_of(__file__)
_PAGE = ROOT / 'docs' / 'results.md'
_FIGURE = ROOT / 'docs' / 'results'
# A difference is clear below this p.
_CLEAR = 0.05
_GAIN, _LOSS = '▲', '▼'

# A number of each seed, by scheme.
Numbers = Mapping[str, Mapping[int, float]]


class Difference(NamedTuple):
  """To the plain model, with half of its 95 % interval."""

  value: float
  interval: float
  p: float
  seeds: int

  @property
  def clear(self) -> int:
    """1: larger than the plain model's, -1: smaller, 0: not clear."""
    return int(math.copysign(1, self.value)) if self.p < _CLEAR else 0


def bleu(result: Mapping[str, Any]) -> float:
  """Return the mean BLEU of the test sets."""
  return statistics.fmean(test['bleu'] for test in result['tests'].values())


def loss(result: Mapping[str, Any]) -> float:
  return result['validation_nll']


def numbers(
  setting: Mapping[str, Any], number: Callable[[Mapping[str, Any]], float]
) -> Numbers:
  """Read a number of all runs from scratch of a setting."""
  found: dict[str, dict[int, float]] = {}
  corpora = {'': setting['corpus']} | setting['others']
  for name, corpus in corpora.items():
    folder = common.RESULTS / 'comparison' / corpus
    for path in sorted(folder.glob(f'*/{setting["norm"]}/*.json')):
      result = json.loads(path.read_text())
      is_plain = result['scheme'] == BASELINE
      if result['phase'] in ('plain', 'scratch') and (is_plain or not name):
        of_scheme = found.setdefault(name or result['scheme'], {})
        of_scheme[result['seed']] = number(result)
  return found


def pooled_deviation(settings: Sequence[Numbers]) -> tuple[float, int]:
  """Return the deviation over seeds, and its degrees of freedom.

  sqrt(sum (x - mean of its runs)^2 / sum (n - 1)), over the schemes of all
  settings that have n > 1 seeds.
  """
  # A corpus may be shown in several settings.
  groups = {
    tuple(seeds.values()) for setting in settings for seeds in setting.values()
  }
  freedom = sum(len(values) - 1 for values in groups)
  squares = sum(
    (len(values) - 1) * statistics.variance(values)
    for values in groups
    if len(values) > 1
  )
  return math.sqrt(squares / freedom), freedom


def differences(
  setting: Numbers, deviation: float, freedom: int
) -> dict[str, Difference]:
  """Compare each scheme of a setting with the plain model."""
  plain = setting[BASELINE]
  result = {}
  for scheme, seeds in setting.items():
    both = [seeds[seed] - plain[seed] for seed in seeds if seed in plain]
    if scheme != BASELINE:
      error = deviation * math.sqrt(2 / len(both))
      value = statistics.fmean(both)
      p = 2 * stats.t.sf(abs(value) / error, freedom)
      interval = stats.t.ppf(1 - _CLEAR / 2, freedom) * error
      result[scheme] = Difference(value, interval, p, len(both))
  return result


def cell(difference: Difference | None, digits: int, sign: int) -> str:
  """A difference with its seeds; a clear one is marked. `sign`: of a gain."""
  if difference is None:
    return NONE
  marks = {0: '', 1: f'{_GAIN} ', -1: f'{_LOSS} '}
  mark = marks[sign * difference.clear]
  return f'{mark}{signed(difference.value, digits)} ({difference.seeds})'


def table(
  settings: Mapping[str, Numbers],
  compared: Mapping[str, Mapping[str, Difference]],
  digits: int,
  sign: int,
) -> str:
  """Schemes by settings, after the plain model's own numbers."""
  names = [
    name for name in _order() if any(name in x for x in compared.values())
  ]
  plain = [
    f'{statistics.fmean(setting[BASELINE].values()):.{digits}f}'
    f' ({len(setting[BASELINE])})'
    for setting in settings.values()
  ]
  rows = [['plain', *plain]]
  rows += [
    [
      name if ' ' in name else f'`{name}`',
      *(cell(x.get(name), digits, sign) for x in compared.values()),
    ]
    for name in names
  ]
  return common.table(('', *settings), rows)


def _order() -> list[str]:
  others = [name for one in _DATA['settings'] for name in one['others']]
  return list(dict.fromkeys((*others, 'wide', *schemes(6))))


def verdict(printed: float, found: Sequence[Difference]) -> str:
  """Return what clear differences say of a printed gain."""
  signs = {math.copysign(1, printed) * x.clear for x in found} - {0}
  if not found:
    return 'not trained'
  if len(signs) == 2:
    return 'depends'
  return {1: 'confirmed', -1: 'refuted', 0: 'undecided'}[sum(signs)]


def claims_table(compared: Mapping[str, Mapping[str, Difference]]) -> str:
  rows = []
  for claim in _DATA['claims']:
    for scheme, printed in claim['printed'].items():
      here = [of_setting.get(scheme) for of_setting in compared.values()]
      trained = [difference for difference in here if difference]
      row = [claim['paper'], f'`{scheme}`', signed(printed)]
      row += [cell(difference, 2, 1) for difference in here]
      rows.append([*row, verdict(printed, trained)])
  return common.table(('', 'scheme', 'printed', *compared, 'verdict'), rows)


def draw(compared: Mapping[str, Mapping[str, Difference]]) -> None:
  """Draw a panel for each setting, its schemes from the largest gain down."""
  most = max(len(rows) for rows in compared.values())
  figure, axes = panels(len(compared), 1, (7.0, 0.25 * most))
  for place, (name, rows) in zip(axes, compared.items(), strict=True):
    ordered = sorted(rows.items(), key=lambda row: row[1].value)
    for height, (_, one) in enumerate(ordered):
      colour = {0: '#999999', 1: COLOURS[0], -1: COLOURS[1]}[one.clear]
      place.errorbar(
        one.value, height, xerr=one.interval, fmt='o', color=colour, capsize=2
      )
    labels = [f'{scheme} ({one.seeds})' for scheme, one in ordered]
    place.set_yticks(range(len(ordered)), labels, fontsize=8)
    place.axvline(0, color='black', linewidth=0.8)
    place.set_xlim(-4, 2.5)
    place.set_title(name)
  axes[-1].set_xlabel('BLEU beside the plain model (seeds), 95 % interval')
  png, _ = save(figure, _FIGURE)
  png.unlink()


def main() -> None:
  for name, number, digits, sign in (
    ('bleu', bleu, 2, 1),
    ('loss', loss, 3, -1),
  ):
    settings = {one['name']: numbers(one, number) for one in _DATA['settings']}
    deviation, freedom = pooled_deviation(list(settings.values()))
    compared = {
      title: differences(setting, deviation, freedom)
      for title, setting in settings.items()
    }
    put_into(_PAGE, name, table(settings, compared, digits, sign))
    print(f'{name}: deviation {deviation:.4f}, {freedom} degrees of freedom')
    if name == 'bleu':
      put_into(_PAGE, 'papers', claims_table(compared))
      draw(compared)


if __name__ == '__main__':
  sys.exit(main())
