"""The report on a comparison of systems, in Markdown, and its figure."""

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from fusion_jax import figures
from fusion_jax.evaluation.buckets import PAPER_LENGTHS
from fusion_jax.tables import Format, table

_TITLES = {
  'bounds': 'by source length',
  'quantiles': 'by source length, as many lines each',
}


def report(numbers: Mapping[str, Any]) -> str:
  """Write the results of a comparison section by section."""
  text = _template().render(
    numbers,
    rows=_Rows(numbers),
    several=max(map(len, numbers['systems'].values())) > 1,
    paper_lengths=list(PAPER_LENGTHS),
  )
  return re.sub(r'\n{3,}', '\n\n', text).strip() + '\n'


@functools.cache
def _template() -> jinja2.Template:
  environment = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent),
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
  )
  environment.filters |= {'code': _code, 'text': _text}
  return environment.get_template('comparison.md', globals={'table': _table})


class _Rows:
  """Rows of the tables of a report."""

  def __init__(self, numbers: Mapping[str, Any]):
    self._numbers = numbers

  def files(self) -> list[list[str]]:
    """Return a row for every file, with the run that made it."""
    runs = self._numbers['runs']
    return [
      [
        _code(name),
        str(seed),
        f'{_code(path)} ({_code(runs[path])})' if path in runs else _code(path),
      ]
      for name, paths in self._numbers['systems'].items()
      for seed, path in enumerate(paths, start=1)
    ]

  def scores(self, metric: str) -> list[list[str]]:
    """Return the score of each system, and its tests against the baseline."""
    seeds, first = self._numbers['seeds'][metric], self._numbers['baseline']
    rows = []
    for name, values in seeds.items():
      score = values['scores'][0]
      row = [_code(name), f'{score:.2f}']
      tests = [
        test[metric]['systems'][name]
        for test in self._numbers['tests'].values()
      ]
      if tests:
        change = score - seeds[first]['scores'][0]
        row += [
          '' if name == first else f'{change:+.2f}',
          f'{tests[0]["mean"]:.2f} ± {tests[0]["interval"]:.2f}',
          *('' if name == first else _p(test['p_value']) for test in tests),
        ]
      rows.append(row)
    return rows

  def signs(self) -> list[list[str]]:
    """Return the counts of the sign test of each system."""
    return [
      [
        _code(name),
        *(f'{test[key]:,}' for key in ('better', 'worse', 'same')),
        _p(test['p_value']),
      ]
      for name, test in self._numbers['sign_test'].items()
    ]

  def seeds(self) -> list[list[str]]:
    """Return the mean over the files of each system that has several."""
    return [
      [
        _code(name),
        str(len(seeds['scores'])),
        metric,
        f'{seeds["mean"]:.2f}',
        _number(seeds['deviation']),
        _p(seeds['welch']),
      ]
      for metric, systems in self._numbers['seeds'].items()
      for name, seeds in systems.items()
      if len(seeds['scores']) > 1
    ]

  def buckets(
    self, rows: Sequence[Mapping[str, Any]], of: str, count: str
  ) -> str:
    """Return the table of buckets that have anything in them."""
    if not any(row['count'] for row in rows):
      return f'All buckets are empty: there are no {count} to put into them.'
    text = _table(
      [of, count, *map(_code, rows[0]['scores'])],
      [
        [
          row['bucket'],
          f'{row["count"]:,}',
          *map(_number, row['scores'].values()),
        ]
        for row in rows
      ],
    )
    empty = [row['bucket'] for row in rows if not row['count']]
    if empty:
      text += f'\n\nEmpty, without {count}: {", ".join(empty)}.'
    return text


def scores_line(numbers: Mapping[str, Any], system: str) -> str:
  """Describe the scores of a system's first file, with the p-values of BLEU."""
  scores = ', '.join(
    f'{metric} {systems[system]["scores"][0]:.2f}'
    for metric, systems in numbers['seeds'].items()
  )
  if system == numbers['baseline']:
    return f'{system}: {scores}'
  names = *numbers['tests'], 'sign test'
  values = zip(names, _p_values(numbers, system), strict=True)
  tests = ', '.join(f'{test} {p}' for test, p in values)
  return f'{system}: {scores}; p of BLEU: {tests}'


def scores_table(numbers: Mapping[str, Any], form: Format) -> str:
  """Write the scores of each system's first file, with the p-values of BLEU."""
  metrics, tests = numbers['seeds'], numbers['tests']
  header = [
    'system',
    *metrics,
    *(f'p, {test}' for test in tests),
    'p, sign test',
  ]
  rows = [
    [
      _code(name),
      *(f'{metrics[metric][name]["scores"][0]:.2f}' for metric in metrics),
      *_p_values(numbers, name),
    ]
    for name in numbers['systems']
  ]
  return table(form, header, rows, numeric=True)


def _p_values(numbers: Mapping[str, Any], system: str) -> list[str]:
  """Return the p-values of BLEU of all tests; empty texts for the baseline."""
  tests = numbers['tests'].values()
  if system == numbers['baseline']:
    return [''] * (len(tests) + 1)
  paired = [test['BLEU']['systems'][system]['p_value'] for test in tests]
  return [_p(p) for p in (*paired, numbers['sign_test'][system]['p_value'])]


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
  return table('markdown', header, rows, numeric=True)


def _number(value: float | None) -> str:
  return '–' if value is None else f'{value:.2f}'


def _p(value: float | None) -> str:
  if value is None:
    return '–'
  return '<0.0001' if value < 0.0001 else f'{value:.4f}'


def _code(name: str) -> str:
  """Return a name that Markdown leaves unchanged, in tables too."""
  return f'`{name.replace("`", "").replace("|", chr(92) + "|")}`'


def _text(text: str) -> str:
  """Escape all characters of a sentence that have a meaning in Markdown."""
  return re.sub(r'([\\`*_{}\[\]<>#|$~])', r'\\\1', text) or '(empty)'


def draw(numbers: Mapping[str, Any]) -> figures.Figure:
  """Draw BLEU of all systems and by length, and F1 by frequency."""
  lengths = numbers['lengths']
  frequencies = numbers['frequencies']['buckets']
  figure, axes = figures.panels(2 + len(lengths), size=(6.0, 3.6))
  _draw_scores(axes[0], numbers)
  for panel, (kind, rows) in zip(axes[1:], lengths.items(), strict=False):
    _draw_buckets(panel, rows, 'words of the source (lines)', 'BLEU')
    panel.set_title(_TITLES[kind])
  _draw_buckets(
    axes[-1], frequencies, 'frequency of the word', 'F1 of words (%)', False
  )
  axes[-1].set_title('by frequency of the target word')
  if len(numbers['systems']) > 1:
    # One legend for all panels, placed where it covers nothing.
    handles, names = axes[-1].get_legend_handles_labels()
    figure.legend(handles, names, loc='outside lower center', ncols=6)
  return figure


def _draw_scores(panel: figures.Axes, numbers: Mapping[str, Any]) -> None:
  names = list(numbers['systems'])
  tests = numbers['tests']
  if tests:
    bootstrap = tests['bootstrap']['BLEU']['systems']
    centres = [bootstrap[name]['mean'] for name in names]
    spreads = [bootstrap[name]['interval'] for name in names]
  else:
    centres = [numbers['seeds']['BLEU'][name]['scores'][0] for name in names]
    spreads = [0.0] * len(names)
  scores = [numbers['seeds']['BLEU'][name]['scores'] for name in names]
  x = 'BLEU (the axis does not start at 0)'
  figures.draw_intervals(panel, names, centres, spreads, scores, x)
  panel.set_title('intervals: 95 % of the bootstrap; crosses: seeds')


def _draw_buckets(
  panel: figures.Axes,
  rows: Sequence[Mapping[str, Any]],
  x: str,
  y: str,
  counts: bool = True,
) -> None:
  filled = [row for row in rows if row['count']]
  names = [
    f'{row["bucket"]}\n({row["count"]:,})' if counts else row['bucket']
    for row in filled
  ]
  bars = {
    name: [figures.drawn(row['scores'][name]) for row in filled]
    for name in rows[0]['scores']
  }
  figures.draw_bars(panel, names, bars, x, y)
  if legend := panel.get_legend():
    legend.remove()
