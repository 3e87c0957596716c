"""The HTML page of a report, which needs no other file."""

import difflib
import functools
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
from markupsafe import Markup
from sacrebleu.metrics import CHRF

from fusion_jax import figures
from fusion_jax.analysis import curves
from fusion_jax.analysis.report import tables
from fusion_jax.analysis.report.contents import (
  Card,
  Picture,
  RunReport,
  data_address,
)
from fusion_jax.analysis.views import VIEWS
from fusion_jax.config.serialization import to_json
from fusion_jax.evaluation import buckets
from fusion_jax.evaluation.sentence_statistics import statistics_of
from fusion_jax.metrics import words_of

# Buckets of source lengths.
_BUCKETS = 6
# CSS pixels; figures up to this width stand side by side.
_WIDE = 900
# Characters of a cell with a number.
_NUMERIC = frozenset('0123456789+-.,% ')
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
  return _template().render(
    runs=runs,
    text=text,
    text_name=text_name,
    lengths=_lengths(runs, text),
    curves=_curves(runs),
    cards=_cards(runs),
    shown=list(_lines(runs, text, shown)),
    separator=separator(runs[0].languages[1]),
    translations=_translations(runs, text),
    versions=versions,
  )


def json_address(value: Any) -> str:
  """Return an address that holds a JSON value."""
  text = json.dumps(value, ensure_ascii=False, indent=1, allow_nan=False)
  return data_address(text.encode(), 'application/json')


def breakable(text: str) -> str:
  """Let a name be broken after dots and the like."""
  return Markup('<wbr>').join(re.split(r'(?<=[._/])', text))


@functools.cache
def _template() -> jinja2.Template:
  made = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
  )
  made.filters |= {
    'breakable': breakable,
    'config_json': to_json,
    'json_address': json_address,
  }
  made.tests |= {
    'numeric': lambda cell: bool(cell) and set(cell) <= _NUMERIC,
    'wide': lambda cards: max(_widths(cards), default=0) > _WIDE,
  }
  return made.get_template('page.html', globals={'tables': tables})


def _widths(cards: Sequence[tuple[RunReport, Card]]) -> list[int]:
  return [card.figure.width for _, card in cards if card.figure]


def _lengths(runs: Sequence[RunReport], text: Text) -> dict[str, Any]:
  numbers = bleu_by_source_length(runs, text)
  rows = [
    [
      row['bucket'],
      f'{row["count"]:,}',
      *(f'{score:.2f}' for score in row['scores'].values()),
    ]
    for row in numbers
  ]
  return {
    'numbers': numbers,
    'heads': ['length', 'lines', *(f'BLEU of {run.name}' for run in runs)],
    'rows': rows,
    'picture': Picture.of_svg(figures.as_svg(draw_lengths(numbers))),
  }


def bleu_by_source_length(
  runs: Sequence[RunReport], text: Text
) -> list[dict[str, Any]]:
  """Compute corpus BLEU of the lines of every bucket."""
  sources, references = zip(*text, strict=True)
  source, target = runs[0].languages
  words = words_of(target, runs[0].config.decoding.bleu_tokenizer)
  made = [run.translations for run in runs]
  counted = statistics_of(made, [references], words, names=['BLEU'])
  lengths = buckets.line_lengths(sources, source)
  rows = buckets.bleu_by_length(
    lengths,
    buckets.buckets_between(buckets.quantile_bounds(lengths, _BUCKETS)),
    {run.name: [x['BLEU']] for run, x in zip(runs, counted, strict=True)},
  )
  return [row for row in rows if row['count']]


def draw_lengths(rows: Sequence[Mapping[str, Any]]) -> figures.Figure:
  """Draw the bars of every bucket, with several systems side by side."""
  figure, (axes,) = figures.panels(1, size=(6.4, 3.6))
  bars = {
    name: [row['scores'][name] for row in rows] for name in rows[0]['scores']
  }
  names = [row['bucket'] for row in rows]
  figures.draw_bars(axes, names, bars, 'words of the source line', 'BLEU')
  return figure


def _curves(runs: Sequence[RunReport]) -> dict[str, Any]:
  numbers = {run.name: run.curves for run in runs}
  return {
    'view': VIEWS['curves'],
    'numbers': numbers,
    'said': [f'{name}: {curves.summary(x)}' for name, x in numbers.items()],
    'picture': Picture.of_svg(figures.as_svg(curves.draw_runs(numbers))),
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
    first = runs[0].translations[index]
    yield {
      'number': index + 1,
      'source': source,
      'reference': reference,
      'translations': [
        (
          run.name,
          CHRF().sentence_score(line, [reference]).score,
          stretches(line, reference, first, runs[0].languages[1]),
        )
        for run in runs
        for line in [run.translations[index]]
      ],
    }


def _translations(runs: Sequence[RunReport], text: Text) -> list[dict]:
  return [
    {
      'line': number,
      'source': source,
      'reference': reference,
      'translations': {r.name: r.translations[number - 1] for r in runs},
    }
    for number, (source, reference) in enumerate(text, start=1)
  ]


class Stretch(NamedTuple):
  """Adjacent words that a text lacks or has elsewhere: reference, or first."""

  text: str
  off_reference: bool
  off_first: bool

  @property
  def classes(self) -> str:
    """The classes of the element that shows the marks; '' for none."""
    marks = {'off-reference': self.off_reference, 'off-first': self.off_first}
    return ' '.join(name for name, marked in marks.items() if marked)


def separator(language: str) -> str:
  """Return the text between two units of a line."""
  return words_of(language).between


def units(text: str, language: str) -> list[str]:
  """Return the words of a line, or its characters if spaces part no words."""
  return text.split() if separator(language) else list(text)


def missing(words: Sequence[str], others: Sequence[str]) -> list[bool]:
  """Find the words that the best alignment with others leaves out."""
  matcher = difflib.SequenceMatcher(None, words, others, autojunk=False)
  marks = [True] * len(words)
  for start, _, size in matcher.get_matching_blocks():
    marks[start : start + size] = [False] * size
  return marks


def stretches(
  text: str, reference: str, first: str, language: str
) -> list[Stretch]:
  """Cut a translation where its marks change."""
  words, *others = (units(line, language) for line in (text, reference, first))
  marks = zip(*(missing(words, other) for other in others), strict=True)
  parts = itertools.groupby(
    zip(words, marks, strict=True), key=lambda pair: pair[1]
  )
  between = separator(language)
  return [
    Stretch(between.join(word for word, _ in part), *mark)
    for mark, part in parts
  ]
