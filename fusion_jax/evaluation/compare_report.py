"""The report on a comparison of systems, in Markdown."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fusion_jax.evaluation.buckets import PAPER_LENGTHS
from fusion_jax.tables import Format, table

_LESS_IS_BETTER = ('TER',)


def report(numbers: Mapping[str, Any]) -> str:
  """Write the results of a comparison section by section."""
  parts = [
    _head(numbers),
    _scores_head(numbers),
    *(_scores(numbers, name) for name in numbers['signatures']),
    _sign_tests(numbers),
    _seeds(numbers),
    _lengths(numbers),
    _frequencies(numbers),
    *(_differences(numbers, name) for name in numbers['differences']),
    _signatures(numbers),
  ]
  return '\n\n'.join(part for part in parts if part) + '\n'


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
  found = [test['BLEU']['systems'][system]['p_value'] for test in tests]
  return [_p(p) for p in (*found, numbers['sign_test'][system]['p_value'])]


def _head(numbers: Mapping[str, Any]) -> str:
  files = [
    [_code(name), str(index), _made_by(path, numbers['runs'].get(path))]
    for name, paths in numbers['systems'].items()
    for index, path in enumerate(paths, start=1)
  ]
  references = ', '.join(map(_code, numbers['references']))
  baseline = numbers['baseline']
  return '\n\n'.join(
    [
      '# Comparison of systems',
      f'{numbers["lines"]:,} lines of {_code(numbers["source"])}; references: '
      f'{references}; the baseline is {_code(baseline)}.',
      _table(['system', 'seed', 'file'], files),
      '![BLEU of all systems and by buckets](compare.png)',
    ]
  )


def _made_by(path: str, run: str | None) -> str:
  return f'{_code(path)} ({_code(run)})' if run else _code(path)


def _scores(numbers: Mapping[str, Any], metric: str) -> str:
  rows = []
  baseline = numbers['seeds'][metric][numbers['baseline']]['scores'][0]
  for name, seeds in numbers['seeds'][metric].items():
    score = seeds['scores'][0]
    tests = {
      test: found[metric]['systems'][name]
      for test, found in numbers['tests'].items()
    }
    row = [_code(name), f'{score:.2f}']
    if tests:
      boot = tests['bootstrap']
      first = name == numbers['baseline']
      row += [
        '' if first else f'{score - baseline:+.2f}',
        f'{boot["mean"]:.2f} ± {boot["interval"]:.2f}',
        *('' if first else _p(test['p_value']) for test in tests.values()),
      ]
    rows.append(row)
  header = ['system', metric]
  if numbers['tests']:
    header += [
      'difference',
      '95 % interval',
      'p, bootstrap',
      'p, randomisation',
    ]
  better = 'Less' if metric in _LESS_IS_BETTER else 'More'
  return f'### {metric}\n\n{better} is better.\n\n{_table(header, rows)}'


def _scores_head(numbers: Mapping[str, Any]) -> str:
  if not numbers['tests']:
    return '## Scores'
  files = max(map(len, numbers['systems'].values()))
  only = ' of the first file of each system' if files > 1 else ''
  several = (
    ' No p-value is corrected for the number of systems.'
    if len(numbers['systems']) > 2
    else ''
  )
  return (
    '## Scores\n\nPaired bootstrap resampling (interval and p) and approximate '
    f'randomisation{only}, against {_code(numbers["baseline"])}, with the '
    "samples of sacreBLEU's command. Its p-values leave out the trials that "
    'differ by exactly as much as the systems do, and are smaller where there '
    'are many of them: in TER, in few sentences, and in equal outputs, which '
    f'have p = 1 here.{several}'
  )


def _sign_tests(numbers: Mapping[str, Any]) -> str:
  rows = [
    [
      _code(name),
      *(f'{found[key]:,}' for key in ('better', 'worse', 'same')),
      _p(found['p_value']),
    ]
    for name, found in numbers['sign_test'].items()
  ]
  if not rows:
    return ''
  return '\n\n'.join(
    [
      '## Sign test',
      "One sentence after the other takes the place of the baseline's: in how "
      'many cases BLEU of the whole rises (b+), falls (b-) and stays '
      '(Collins, Koehn and Kucerova 2005). p is of a two-sided binomial test '
      'without those that stay; of the first file of each system.',
      _table(['system', 'b+', 'b-', 'same', 'p'], rows),
    ]
  )


def _seeds(numbers: Mapping[str, Any]) -> str:
  rows = [
    [
      _code(name),
      str(len(seeds['scores'])),
      metric,
      f'{seeds["mean"]:.2f}',
      _number(seeds['deviation']),
      _p(seeds['welch']),
    ]
    for metric, systems in numbers['seeds'].items()
    for name, seeds in systems.items()
    if len(seeds['scores']) > 1
  ]
  if not rows:
    return ''
  return '\n\n'.join(
    [
      '## Seeds',
      'Mean and sample standard deviation over the files of a system; p of '
      "Welch's t-test against the baseline, where both have two seeds or more "
      'and their scores are not all the same.',
      _table(['system', 'seeds', 'metric', 'mean', 'deviation', 'p'], rows),
    ]
  )


def _lengths(numbers: Mapping[str, Any]) -> str:
  given = numbers['length_bounds'] != list(PAPER_LENGTHS)
  titles = {
    'bounds': 'The boundaries that were asked for:'
    if given
    else 'The boundaries of Dou et al. 2018, Fig. 4:',
    'quantiles': 'Buckets with about as many lines each:',
  }
  parts = [
    '## BLEU by source length',
    'Words of the source, punctuation included'
    f'{_means(numbers)}. Lines without a word are in no bucket.',
  ]
  for kind, rows in numbers['lengths'].items():
    parts += [titles[kind], _buckets(rows, 'words', 'lines')]
  return '\n\n'.join(parts)


def _frequencies(numbers: Mapping[str, Any]) -> str:
  found = numbers['frequencies']
  return '\n\n'.join(
    [
      '## F1 of words by their frequency',
      'As compare-mt has it (Neubig et al. 2019): of the words of a bucket, '
      'those that are in the same line of translation and first reference, '
      f'in %{_means(numbers)}. Frequencies are counted in '
      f'{_code(found["counted_in"])}.',
      _buckets(found['buckets'], 'frequency', 'words of the reference'),
    ]
  )


def _means(numbers: Mapping[str, Any]) -> str:
  several = max(map(len, numbers['systems'].values())) > 1
  return '; means over the files of a system' if several else ''


def _buckets(rows: Sequence[Mapping[str, Any]], of: str, count: str) -> str:
  if not any(row['count'] for row in rows):
    return f'All buckets are empty: there are no {count} to put into them.'
  table = _table(
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
    table += f'\n\nEmpty, without {count}: {", ".join(empty)}.'
  return table


def _differences(numbers: Mapping[str, Any], system: str) -> str:
  baseline = numbers['baseline']
  parts = []
  for way, examples in numbers['differences'][system].items():
    for example in examples:
      parts.append(_example(example, way, baseline, system))
  if not parts:
    return ''
  title = f'## Where {_code(system)} and {_code(baseline)} differ most'
  note = 'By chrF2 of the sentence, of the first file of each.'
  return '\n\n'.join([title, note, *parts])


def _example(
  example: Mapping[str, Any], way: str, baseline: str, system: str
) -> str:
  before, after = example['baseline'], example['system']
  texts = [
    ('source', example['source']),
    *(('reference', each) for each in example['references']),
    (f'{_code(baseline)}, {before:.1f}', example['baseline_text']),
    (f'{_code(system)}, {after:.1f}', example['system_text']),
  ]
  title = f'Line {example["line"]:,}, {way}: {after - before:+.1f}'
  return '\n'.join(
    [f'{title}\n', *(f'- {name}: {_text(text)}' for name, text in texts)]
  )


def _signatures(numbers: Mapping[str, Any]) -> str:
  lines = dict(numbers['signatures'])
  for test, found in numbers['tests'].items():
    lines |= {
      f'{name}, {test}': each['signature'] for name, each in found.items()
    }
  listed = '\n'.join(f'- {name}: `{each}`' for name, each in lines.items())
  return f'## Signatures\n\n{listed}'


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
