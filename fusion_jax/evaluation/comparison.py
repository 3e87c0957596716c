"""Comparison of systems: scores, tests, buckets and examples; their report."""

import argparse
import itertools
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from fusion_jax import figures
from fusion_jax.evaluation import Texts, buckets, significance
from fusion_jax.metrics import metrics_for, signature_of
from fusion_jax.tables import Format, markdown_name, table, template

# Statistics of each file of each system, the baseline first.
Counted = Mapping[str, Sequence[significance.Statistics]]
Map = significance.Map
Numbers = Mapping[str, Any]

# Each test, sacreBLEU's name of it, and the flag with the number of samples.
_TESTS = {'bootstrap': ('bs', 'samples'), 'randomisation': ('ar', 'trials')}
# Dou et al. 2018, Fig. 4: bounds of source lengths in words. Yang et al. 2022
# do not print those of their Fig. 12, except the last: more than 80.
_PAPER_LENGTHS = [15, 30, 45]
# Sentences each way.
_EXAMPLES = 5
_TITLES = {
  'bounds': 'by source length',
  'quantiles': 'by source length, as many lines each',
}


def compare(
  texts: Texts, arguments: argparse.Namespace, run: Map = map
) -> dict[str, Any]:
  """Compute scores, tests, buckets and examples as the flags say."""
  counted = buckets.counted(texts, run)
  metrics = metrics_for(texts.target_words)
  baseline, *others = counted
  return {
    'source': texts.source.path,
    'references': [reference.path for reference in texts.references],
    'lines': len(texts.source.lines),
    'source_language': texts.languages[0],
    'target_language': texts.languages[1],
    'baseline': baseline,
    'systems': {
      name: [text.path for text in files]
      for name, files in texts.systems.items()
    },
    'runs': {
      text.path: text.run
      for files in texts.systems.values()
      for text in files
      if text.run
    },
    'signatures': {
      name: signature_of(metric, len(texts.references)).format()
      for name, metric in metrics.items()
    },
    'seeds': {name: _seeds(name, counted) for name in metrics},
    'tests': _paired(texts, counted, arguments, run) if others else {},
    'sign_test': {
      name: significance.sign_test(
        counted[baseline][0]['BLEU'], counted[name][0]['BLEU']
      )
      for name in others
    },
    'length_bounds': arguments.length_bounds,
    'lengths': _lengths(texts, counted, arguments),
    'frequencies': buckets.f1_of_texts(texts),
    'differences': {
      name: _differences(texts, counted, name) for name in others
    },
  }


def _seeds(metric: str, counted: Counted) -> dict[str, Any]:
  """Return the scores over the seeds of each system."""
  scores = {
    system: [significance.score_of(metric, x[metric]) for x in files]
    for system, files in counted.items()
  }
  baseline = next(iter(scores))
  return {
    system: {
      'scores': x,
      'mean': statistics.fmean(x),
      'deviation': significance.deviation(x),
      'welch': None
      if system == baseline
      else significance.welch(scores[baseline], x),
    }
    for system, x in scores.items()
  }


def _paired(
  texts: Texts, counted: Counted, arguments: argparse.Namespace, run: Map
) -> dict[str, Any]:
  """Return the signature and the results of each test and metric."""
  pairs = list(itertools.product(_TESTS, metrics_for(texts.target_words)))
  results = run(
    significance.paired_test,
    [metric for _, metric in pairs],
    itertools.repeat(texts.target_words),
    itertools.repeat(len(texts.references)),
    [
      {name: x[0][metric] for name, x in counted.items()} for _, metric in pairs
    ],
    [_TESTS[test][0] for test, _ in pairs],
    [getattr(arguments, _TESTS[test][1]) for test, _ in pairs],
  )
  by_test: dict[str, dict[str, Any]] = {test: {} for test in _TESTS}
  for (test, metric), (signature, systems) in zip(pairs, results, strict=True):
    values = {name: x._asdict() for name, x in systems.items()}
    by_test[test][metric] = {'signature': signature, 'systems': values}
  return by_test


def _lengths(
  texts: Texts, counted: Counted, arguments: argparse.Namespace
) -> dict[str, list[dict]]:
  lengths = buckets.line_lengths(texts.source.lines, texts.languages[0])
  bounds = {
    'bounds': arguments.length_bounds,
    'quantiles': buckets.quantile_bounds(lengths),
  }
  return {
    kind: buckets.bleu_by_length(lengths, limits, counted)
    for kind, limits in bounds.items()
  }


def _differences(
  texts: Texts, counted: Counted, name: str
) -> dict[str, list[dict[str, Any]]]:
  """Return the sentences that differ most by chrF2, of the first files."""
  baseline = next(iter(counted))
  before, after = (
    significance.CORPUS_SCORES['chrF2'](counted[system][0]['chrF2'])
    for system in (baseline, name)
  )
  change = after - before
  return {
    way: [
      {
        'line': index + 1,
        'baseline': float(before[index]),
        'system': float(after[index]),
        'source': texts.source.lines[index],
        'references': [text.lines[index] for text in texts.references],
        'baseline_text': texts.systems[baseline][0].lines[index],
        'system_text': texts.systems[name][0].lines[index],
      }
      for index in _largest(sign * change)
    ]
    for way, sign in (('better', 1), ('worse', -1))
  }


def _largest(change: Float[np.ndarray, ' S']) -> list[int]:
  """Return the indices of the largest changes above 0."""
  order = np.argsort(-change, kind='stable')[:_EXAMPLES]
  return order[change[order] > 0].tolist()


def report(numbers: Numbers) -> str:
  """Write the results of a comparison section by section."""
  path = Path(__file__).with_name('comparison.md')
  constants = {'paper_lengths': _PAPER_LENGTHS, 'few': buckets.FEW}
  made = template(path, name=markdown_name, text=_text, score=_score, p=_p)
  text = made.render(numbers, **constants)
  return re.sub(r'\n{3,}', '\n\n', text).strip() + '\n'


def scores_line(numbers: Numbers, system: str) -> str:
  """Describe the scores of a system's first file, with the p-values of BLEU."""
  metrics, tests = numbers['seeds'], (*numbers['tests'], 'sign test')
  scores = _joined(metrics, _scores(numbers, system))
  if system == numbers['baseline']:
    return f'{system}: {scores}'
  p_values = _joined(tests, _p_values(numbers, system))
  return f'{system}: {scores}; p of BLEU: {p_values}'


def _joined(names: Iterable[str], values: Iterable[str]) -> str:
  return ', '.join(map(' '.join, zip(names, values, strict=True)))


def scores_table(numbers: Numbers, form: Format) -> str:
  """Write the scores of each system's first file, with the p-values of BLEU."""
  tests = *numbers['tests'], 'sign test'
  rows = [
    [markdown_name(name), *_scores(numbers, name), *_p_values(numbers, name)]
    for name in numbers['systems']
  ]
  header = ['system', *numbers['seeds'], *(f'p, {test}' for test in tests)]
  return table(form, header, rows, numeric=True)


def _scores(numbers: Numbers, system: str) -> list[str]:
  return [_score(x[system]['scores'][0]) for x in numbers['seeds'].values()]


def _p_values(numbers: Numbers, system: str) -> list[str]:
  """Return the p-values of BLEU of all tests; empty texts for the baseline."""
  tests = numbers['tests'].values()
  if system == numbers['baseline']:
    return [''] * (len(tests) + 1)
  paired = [test['BLEU']['systems'][system]['p_value'] for test in tests]
  return [_p(p) for p in (*paired, numbers['sign_test'][system]['p_value'])]


def _score(value: float | None) -> str:
  return '–' if value is None else f'{value:.2f}'


def _p(value: float | None) -> str:
  if value is None:
    return '–'
  return '<0.0001' if value < 0.0001 else f'{value:.4f}'


def _text(text: str) -> str:
  """Escape all characters of a sentence that have a meaning in Markdown."""
  return re.sub(r'([\\`*_{}\[\]<>#|$~])', r'\\\1', text) or '(empty)'


def draw(numbers: Numbers) -> figures.Figure:
  """Draw differences in BLEU, BLEU by length, and F1 by frequency."""
  lengths, tested = numbers['lengths'], bool(numbers['tests'])
  figure, axes = figures.panels(tested + len(lengths) + 1, size=(6.0, 3.6))
  if tested:
    _draw_differences(axes[0], numbers)
  titled = {_TITLES[kind]: rows for kind, rows in lengths.items()}
  frequencies = numbers['frequencies']['buckets']
  buckets.draw(figure, axes[tested:], titled, frequencies)
  return figure


def _draw_differences(panel: figures.Axes, numbers: Numbers) -> None:
  """Draw a row for each system: its paired difference to the baseline."""
  seeds, baseline = numbers['seeds']['BLEU'], numbers['baseline']
  tested = numbers['tests']['bootstrap']['BLEU']['systems']
  names = [name for name in seeds if name != baseline]
  several = any(len(x['scores']) > 1 for x in seeds.values())
  for row, name in enumerate(names):
    # The mean of the differences of the samples is the difference of the means.
    centre = tested[name]['mean'] - tested[baseline]['mean']
    spread = tested[name]['difference_interval']
    colour = figures.COLOURS[(row + 1) % len(figures.COLOURS)]
    panel.errorbar(
      centre, row, xerr=spread, color=colour, fmt='o', mfc='white', capsize=4
    )
    if several:
      first = seeds[baseline]['scores'][0]
      changes = [score - first for score in seeds[name]['scores']]
      panel.plot(changes, [row] * len(changes), 'kx', markersize=5, zorder=3)
  panel.axvline(0, color='#888888', linewidth=0.8)
  panel.set_yticks(range(len(names)), names)
  panel.set_ylim(len(names) - 0.5, -0.5)
  panel.set_xlabel(f'BLEU less that of {baseline}')
  crosses = '; crosses: seeds' if several else ''
  panel.set_title(f'paired 95 % intervals of the bootstrap{crosses}')
