"""The tables and the figure of the published comparison, from its results.

    python -m benchmarks.published

writes the tables of docs/results.md and docs/comparison_tables.md, and the
figure. The results are those of studies, from before there were study files:
differences and tests are those of `fusion-jax study`, with the deviation over
seeds of all schemes and settings of Multi30k from scratch together.
"""

import json
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import common
from benchmarks.schemes import BASELINE, schemes
from benchmarks.serving import ROOT
from fusion_jax.errors import InputError
from fusion_jax.figures import panels, save
from fusion_jax.files import write_whole
from fusion_jax.studies.page import (
  NONE,
  cells,
  draw_differences,
  p_value,
  signed,
)
from fusion_jax.studies.statistics import Metric, Results, compared

_DATA = common.data_of(__file__)
_FOLDER = common.RESULTS / 'comparison'
_RESULTS, _TABLES = 'results.md', 'comparison_tables.md'
_PLAIN = 'plain'
_BLEU, _LOSS = 'BLEU, mean', 'validation loss'
_MARKS = {0: '', 1: '▲ ', -1: '▼ '}
_BEGIN, _END = '<!-- table: {} -->', '<!-- end of the table -->'


class Setting(NamedTuple):
  """A corpus, a norm and a start.

  Attributes:
    schemes: Results of the plain model and the schemes.
    others: Those of plain models of another kind that are shown beside them.
  """

  name: str
  schemes: Results
  others: Results


def setting(table: Mapping[str, Any]) -> Setting:
  """Read the results of a setting of published.toml."""
  of_schemes: dict[str, dict[int, Any]] = {}
  for folder in table['runs']:
    for result in _results(f'{folder}/*.json'):
      scheme = result['scheme']
      name = _PLAIN if scheme == BASELINE else scheme
      of_schemes.setdefault(name, {})[result['seed']] = result
  order = {name: place for place, name in enumerate(_order())}
  names = sorted(of_schemes, key=order.__getitem__)
  others = {
    name: {result['seed']: result for result in _results(f'{path}-*.json')}
    for name, path in table.get('others', {}).items()
  }
  in_order = {name: of_schemes[name] for name in names}
  return Setting(table['name'], in_order, others)


def _results(pattern: str) -> Iterator[Any]:
  paths = sorted(_FOLDER.glob(pattern))
  if not paths:
    raise InputError(f'{_FOLDER / pattern}: no such results')
  for path in paths:
    yield json.loads(path.read_text())


def _order() -> list[str]:
  return [_PLAIN, 'wide', *schemes(6)]


def measured(one: Setting, settings: Sequence[Setting]) -> dict[str, Metric]:
  """Compare a setting's models; the seeds of all settings are counted."""
  results = dict(one.schemes) | dict(one.others)
  tests = list(next(iter(one.schemes[_PLAIN].values()))['tests'])
  pool = [other.schemes for other in settings]
  metrics = compared(results, _PLAIN, tests, settings=pool)
  return {metric.name: metric for metric in metrics}


def overview(metrics: Mapping[str, Metric], digits: int) -> str:
  """Models by settings, after the plain model's numbers."""
  others = [name for one in _DATA['settings'] for name in one['shown']]
  rows = [[_PLAIN, *(_mean(one, digits) for one in metrics.values())]]
  for name in dict.fromkeys((*others, *_order())):
    row = [cell(metric, name, digits) for metric in metrics.values()]
    if set(row) != {NONE}:
      rows.append([_shown(name), *row])
  return common.table(('', *metrics), rows)


def _mean(metric: Metric, digits: int) -> str:
  values = metric.values[_PLAIN].values()
  return f'{statistics.fmean(values):.{digits}f} ({len(values)})'


def _shown(name: str) -> str:
  return name if ' ' in name or name == _PLAIN else f'`{name}`'


def cell(metric: Metric, name: str, digits: int) -> str:
  """A difference with its seeds; a clear one is marked."""
  one = metric.differences.get(name)
  if one is None:
    return NONE
  mark = _MARKS[metric.gain(one)]
  return f'{mark}{signed(one.mean, digits)} ({len(one.seeds)})'


def verdict(printed: float, gains: Mapping[str, Sequence[int]]) -> str:
  """Name the settings that are clearly for or against a printed gain.

  Args:
    gains: The sign of the gain in BLEU and in the loss in each setting; 0 where
      it is not clear.
  """
  sides: dict[str, list[str]] = {'for': [], 'against': []}
  for name, (bleu, loss) in gains.items():
    if sign := bleu or loss:
      side = 'for' if sign * printed > 0 else 'against'
      sides[side].append(name if bleu else f'{name} (loss)')
  words = [f'{side}: {" and ".join(x)}' for side, x in sides.items() if x]
  return '; '.join(words) or 'undecided'


def claims(bleu: Mapping[str, Metric], loss: Mapping[str, Metric]) -> str:
  """What papers print beside the differences in BLEU."""
  rows = []
  for claim in _DATA['claims']:
    for scheme, printed in claim['printed'].items():
      gains = {
        name: [x[name].gain(x[name].differences[scheme]) for x in (bleu, loss)]
        for name in bleu
        if scheme in bleu[name].differences
      }
      row = [claim['paper'], f'`{scheme}`', signed(printed, 2)]
      row += [cell(metric, scheme, 2) for metric in bleu.values()]
      rows.append([*row, verdict(printed, gains)])
  return common.table(('', 'scheme', 'printed', *bleu, 'clear'), rows)


def draw(metrics: Mapping[str, Metric], path: Path) -> None:
  """Draw a panel for each setting, its models from the largest gain down."""
  most = max(len(metric.differences) for metric in metrics.values())
  figure, axes = panels(len(metrics), 1, (7.0, 0.25 * most))
  for place, (name, metric) in zip(axes, metrics.items(), strict=True):
    draw_differences(place, metric)
    place.tick_params(axis='y', labelsize=8)
    place.set_xlim(-4, 2.5)
    place.set_title(name)
  axes[-1].set_xlabel('BLEU beside the plain model (seeds), 95 % interval')
  png, _ = save(figure, path)
  png.unlink()


def details(one: Setting, metrics: Mapping[str, Metric]) -> str:
  """All models of a setting: sizes, loss and BLEU with tests, chrF2."""
  shown = [x for x in metrics.values() if not x.name.endswith(', mean')]
  header = ['', 'seeds', 'parameters', 'updates']
  for metric in shown:
    header += _columns(metric)
  rows = []
  for name, seeds in {**one.schemes, **one.others}.items():
    first = next(iter(seeds.values()))
    row = [_shown(name), str(len(seeds))]
    row += [f'{first[key]:,}' for key in ('parameters', 'updates')]
    for metric in shown:
      welch = getattr(metric.differences.get(name), 'welch', None)
      row += [*cells(metric, name), p_value(welch)][: len(_columns(metric))]
    rows.append(row)
  return common.table(header, rows)


def _columns(metric: Metric) -> list[str]:
  """Return the columns of a metric; without seeds there are no tests."""
  columns = [metric.name, 'difference', 'p', 'p, Holm', 'p, Welch']
  if metric.name.startswith('chrF2'):
    return columns[:1]
  return columns if metric.pooled else columns[:2]


def put_into(path: Path, name: str, text: str) -> None:
  """Replace what stands between the markers of a name in a file."""
  marker = _BEGIN.format(name)
  before, begin, rest = path.read_text(encoding='utf-8').partition(marker)
  _, end, after = rest.partition(_END)
  if not (begin and end):
    raise InputError(f'{path}: must have {marker} and then {_END}')
  write_whole(path, f'{before}{begin}\n\n{text}\n{end}{after}'.encode())


def write(docs: Path) -> None:
  """Write the tables into the pages of a folder, and the figure beside them."""
  settings = [setting(table) for table in _DATA['settings']]
  metrics = {}
  for one, table in zip(settings, _DATA['settings'], strict=True):
    metrics[one.name] = measured(one, settings)
    text = details(one, metrics[one.name])
    put_into(docs / _TABLES, one.name, text)
    # The overview shows some of the others.
    few = one._replace(others={x: one.others[x] for x in table['shown']})
    metrics[one.name] = measured(few, settings)
  for table in _DATA['further']:
    one = setting(table)
    text = details(one, measured(one, [one]))
    put_into(docs / _TABLES, one.name, text)
  bleu, loss = (
    {name: of_setting[number] for name, of_setting in metrics.items()}
    for number in (_BLEU, _LOSS)
  )
  put_into(docs / _RESULTS, 'bleu', overview(bleu, 2))
  put_into(docs / _RESULTS, 'loss', overview(loss, 3))
  put_into(docs / _RESULTS, 'papers', claims(bleu, loss))
  draw(bleu, docs / 'results')


def main(argv: list[str]) -> None:
  common.make_parser(__doc__).parse_args(argv)
  write(ROOT / 'docs')


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
