"""The HTML page of a report, which needs no other file."""

import difflib
import itertools
import math
import operator
import re
import statistics
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup
from sacrebleu.metrics import CHRF

from fusion_jax import figures
from fusion_jax.analysis import curves
from fusion_jax.analysis.report.contents import Card, RunReport
from fusion_jax.analysis.views import VIEWS
from fusion_jax.config import ExperimentConfig
from fusion_jax.config.fusion import SIDES, Side, SideConfig
from fusion_jax.config.serialization import flatten, to_json
from fusion_jax.fusion import SCHEMES
from fusion_jax.metrics import words_of
from fusion_jax.tables import template

# The text of a report: source and reference of each line.
Text = Sequence[tuple[str, str]]


def page(
  runs: Sequence[RunReport],
  text: Text,
  text_name: str,
  shown: int,
  versions: Mapping[str, str],
) -> str:
  """Make the page of one run, or the comparison of several."""
  made = template(
    Path(__file__).with_name('page.html'),
    breakable=_breakable,
    config_json=to_json,
    is_number=re.compile('[-0-9+.,% ]+').fullmatch,
  )
  return made.render(
    tables=_TABLES,
    runs=runs,
    title='; '.join(map(title, runs)),
    updates=updates(runs),
    text=text,
    text_name=text_name,
    curves=_curves(runs),
    cards=_cards(runs),
    shown=list(_lines(runs, text, shown)),
    versions=versions,
  )


def _breakable(text: str) -> str:
  """Let a name, but no number, be broken after dots and the like."""
  return Markup('<wbr>').join(re.split(r'(?<=[._/])(?!\d)', text))


def _curves(runs: Sequence[RunReport]) -> dict[str, Any]:
  numbers = {run.name: run.curves for run in runs}
  return {
    'view': VIEWS['curves'],
    'said': [
      f'{name}: {curves.curves_summary(x)}' for name, x in numbers.items()
    ],
    'panels': list(figures.as_panels(curves.draw_runs(numbers))),
  }


def _cards(runs: Sequence[RunReport]) -> list[list[tuple[RunReport, Card]]]:
  """Return the cards of each view but the curves, which have a section."""
  every: dict[str, list[tuple[RunReport, Card]]] = {}
  for run in runs:
    for card in run.cards:
      every.setdefault(card.view.name, []).append((run, card))
  every.pop('curves', None)
  return list(every.values())


def _lines(
  runs: Sequence[RunReport], text: Text, shown: int
) -> Iterator[dict[str, Any]]:
  """Yield lines that are evenly spread over the text."""
  shown = min(len(text), shown)
  for index in (place * len(text) // shown for place in range(shown)):
    source, reference = text[index]
    made = [(run.name, run.translations[index]) for run in runs]
    yield {
      'number': index + 1,
      'source': source,
      'reference': reference,
      'translations': [
        (
          name,
          CHRF().sentence_score(line, [reference]).score,
          stretches(line, reference, runs[0].languages[1]),
        )
        for name, line in made
      ],
    }


def stretches(
  text: str, reference: str, language: str
) -> Iterator[tuple[str, bool]]:
  """Yield the parts of a line, and whether the reference lacks or moves them.

  Words are compared without the punctuation around them, which is not marked.
  They are characters where spaces part no words.
  """
  between = words_of(language).between
  words, others = (
    line.split() if between else list(line) for line in (text, reference)
  )
  bare, wanted = [*map(_bare, words)], [*map(_bare, others)]
  matcher = difflib.SequenceMatcher(None, bare, wanted, autojunk=False)
  parts: list[tuple[str, bool]] = []
  for kind, start, end, *_ in matcher.get_opcodes():
    for whole, word in zip(words[start:end], bare[start:end], strict=True):
      before, _, after = whole.partition(word) if word else (whole, '', '')
      space = between if parts else ''
      parts += [(space + before, False), (word, kind != 'equal')]
      parts.append((after, False))
  shown = filter(operator.itemgetter(0), parts)
  for marked, group in itertools.groupby(shown, operator.itemgetter(1)):
    yield ''.join(part for part, _ in group), marked


def _bare(word: str) -> str:
  """Return a word without the punctuation around it."""
  marks = (c for c in word if unicodedata.category(c).startswith('P'))
  return word.strip(''.join(marks))


_ABSENT = '(not there)'
Row = Sequence[str]


def overview(runs: Sequence[RunReport]) -> list[Row]:
  """Return the schemes, sizes and scores of the runs, a column for each."""
  columns = {
    'encoder': lambda run: scheme(run.config, 'encoder'),
    'decoder': lambda run: scheme(run.config, 'decoder'),
    'direction': lambda run: '-'.join(run.languages),
    'parameters': lambda run: f'{sum(run.parameters.values()):,}',
    'checkpoint': _checkpoint,
    'trained': lambda run: _trained(run.last),
    'speed of training': _speed,
    'peak memory': _memory,
    'seed': lambda run: str(run.config.training.seed),
    'fusion_jax': lambda run: run.code or 'not recorded',
    'started from': lambda run: (
      run.config.training.init_from or 'random parameters'
    ),
    'directory': lambda run: run.workdir,
  }
  return [[name, *map(cell, runs)] for name, cell in columns.items()]


def scores(runs: Sequence[RunReport]) -> tuple[Row, list[Row]]:
  """Return heads and rows of BLEU and chrF, also against the first run."""
  heads = ['run', 'BLEU (95 % interval)', 'chrF', 'validations: best BLEU']
  first, rows = runs[0], list[Row]()
  for run in runs:
    valid = [x for x in run.curves['valid'].get('bleu', []) if x is not None]
    made, (low, high) = run.scores, run.interval
    interval = f'{made.bleu:.2f} ({low:.2f} to {high:.2f})'
    best = f'{max(valid):.2f} ({run.curves["translated"]})' if valid else '-'
    beam = f'beam {run.config.decoding.beam_size}'
    row = [run.name, f'{interval}, {beam}', f'{made.chrf:.2f}', best]
    if len(runs) > 1:
      row.append(f'{made.bleu - first.scores.bleu:+.2f}')
      row.append(f'{made.chrf - first.scores.chrf:+.2f}')
    rows.append(row)
  if len(runs) > 1:
    heads += [f'{metric} less {first.name}' for metric in ('BLEU', 'chrF')]
  return heads, rows


def validations(run: RunReport) -> tuple[Row, list[list[str]]]:
  """Return heads and rows of the validations of a run."""
  valid, searched = run.curves['valid'], run.curves['translated']
  heads = [
    f'{name}, {searched}' if name in ('bleu', 'chrf') else name
    for name in list(valid)[1:]
  ]
  cells = zip(*valid.values(), strict=True)
  rows = [[f'{row[0]:,}', *map(_number, row[1:])] for row in cells]
  return ['update', *heads], rows


def options(runs: Sequence[RunReport]) -> tuple[list[Row], list[Row]]:
  """Return the options that are not at their defaults."""
  default = flatten(ExperimentConfig())
  flat = [flatten(run.config) for run in runs]
  differing, alike = list[Row](), list[Row]()
  for name in sorted(set().union(default, *flat) - {'name'}):
    *cells, usual = (
      _value(options.get(name, _ABSENT)) for options in (*flat, default)
    )
    if len(set(cells)) > 1:
      differing.append([name, *cells, usual])
    elif cells[0] != usual:
      alike.append([name, cells[0], usual])
  return differing, alike


def data(runs: Sequence[RunReport]) -> list[Row]:
  """Return corpora, languages, pairs and tokenizers."""
  rows: list[Row] = [
    [split, *(_corpora(run.config, split) for run in runs)]
    for split in ('train', 'valid', 'test')
  ]
  columns = {
    'training pairs': lambda run: _pairs(run.corpus),
    'tokenizer': _tokenizer,
    'longest line': lambda run: f'{run.config.data.filter.max_length} subwords',
  }
  return rows + [[name, *map(cell, runs)] for name, cell in columns.items()]


def parameters(runs: Sequence[RunReport]) -> list[Row]:
  """Return the number of parameters of each part."""
  every = [run.parameters for run in runs]
  names = sorted(set().union(*every))
  rows = [[name, *(_share(counts, name) for counts in every)] for name in names]
  return [*rows, ['all', *(f'{sum(counts.values()):,}' for counts in every)]]


def scheme(config: ExperimentConfig, side: Side) -> str:
  """Describe the fusion of a stack in words, with its paper."""
  options: SideConfig = config.model.side(side)
  row = SCHEMES.get(options.fusion)
  parts = [f'{options.fusion} ({row.source})'] if row else []
  chosen = options.attention_options
  if options.attention == 'shortcut':
    words = chosen.source.replace('_', '-')
    parts.append(f'{words} shortcuts into {chosen.where} attention')
  if options.attention == 'multi_layer':
    parts.append(f'attention over {chosen.layers} layers')
  layers = f'{config.model.layers(side)} layers'
  return f'{layers}, {" and ".join(parts) or "no fusion"}'


def title(run: RunReport) -> str:
  """Return the name of a run and its schemes: 'a: dlcl (encoder)'."""
  sides: dict[str, list[str]] = {}
  for side in SIDES:
    options = run.config.model.side(side)
    for name in (options.fusion, options.attention):
      sides.setdefault(name, []).append(side)
  sides.pop('none', None)
  listed = [f'{name} ({" and ".join(x)})' for name, x in sides.items()]
  return f'{run.name}: {", ".join(listed) or "no fusion"}'


def updates(runs: Sequence[RunReport]) -> str:
  """Say how long each run was trained, if they differ; '' if not."""
  counts = {run.name: run.last['step'] for run in runs}
  listed = ', '.join(f'{name} {count:,}' for name, count in counts.items())
  return listed if len(set(counts.values())) > 1 else ''


def _speed(run: RunReport) -> str:
  """Return the median over the reports, of which the first waits for XLA."""
  speeds = [*filter(None, run.curves['train'].get('tokens_per_second', []))]
  if not speeds:
    return 'not recorded'
  return f'{statistics.median(speeds):,.0f} target tokens a second'


def _memory(run: RunReport) -> str:
  logged = list(filter(None, run.curves['train'].get('peak_memory', [])))
  return f'{max(logged) / 1e6:,.0f} MB' if logged else 'not recorded'


def _value(value: Any) -> str:
  if isinstance(value, list):
    return ', '.join(map(str, value)) or '(none)'
  return str(value) if value != '' else '(empty)'


def _checkpoint(run: RunReport) -> str:
  steps = ', '.join(f'{step:,}' for step in run.steps)
  return f'{"the mean of updates" if len(run.steps) > 1 else "update"} {steps}'


def _trained(last: Mapping[str, Any]) -> str:
  parts = [f'{last["step"]:,} updates']
  if last.get('epoch') is not None:
    parts.append(f'{last["epoch"]:.1f} epochs')
  if last.get('seconds') is not None:
    parts.append(f'{last["seconds"] / 60:,.1f} min')
  return ', '.join(parts)


def _corpora(config: ExperimentConfig, split: str) -> str:
  return '; '.join(
    f'{direction.name}: {", ".join(getattr(direction, split)) or "none"}'
    for direction in config.data.all_directions
  )


def _pairs(corpus: Mapping[str, int]) -> str:
  if not corpus:
    return 'not known: the run directory does not say it'
  return f'{corpus["pairs"]:,}, {corpus["kept"]:,} after filtering'


def _tokenizer(run: RunReport) -> str:
  config, (source, target) = run.config.data.tokenizer, run.vocabularies
  if config.joint:
    return f'{config.algorithm}, {source:,} pieces for both sides'
  return f'{config.algorithm}, {source:,} and {target:,} pieces'


def _share(counts: Mapping[str, int], name: str) -> str:
  if name not in counts:
    return '-'
  return f'{counts[name]:,} ({counts[name] / sum(counts.values()):.1%})'


def _number(value: int | float | None) -> str:
  return '-' if value is None or not math.isfinite(value) else f'{value:.4g}'


# The tables of a page; the first cell of a row names it.
_TABLES = {
  function.__name__: function
  for function in (overview, scores, validations, options, data, parameters)
}
