"""The HTML page of a report, which needs no other file."""

import functools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from markupsafe import Markup
from sacrebleu.metrics import CHRF

from fusion_jax import figures
from fusion_jax.analysis import curves
from fusion_jax.analysis.report import tables
from fusion_jax.analysis.report.marks import separator, stretches
from fusion_jax.analysis.report.run import RunReport
from fusion_jax.analysis.report.views import Card, Picture, data_address
from fusion_jax.config.serialization import to_json
from fusion_jax.evaluation import buckets
from fusion_jax.languages import Words, words_of
from fusion_jax.metrics import bleu_for, corpus_scores

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


def spread(count: int, shown: int) -> list[int]:
  """Return the indices of lines that are evenly spread over a text."""
  shown = min(count, shown)
  return [place * count // shown for place in range(shown)]


def bleu_by_source_length(
  sources: Sequence[str],
  references: Sequence[str],
  systems: Mapping[str, Sequence[str]],
  languages: tuple[str, str | Words],
) -> list[dict[str, Any]]:
  """Compute corpus BLEU of the lines of every bucket."""
  words = buckets.word_counts(sources, bleu_for(languages[0]))
  lengths = np.array([each.total() for each in words])
  bounds = buckets.quantile_bounds(lengths, _BUCKETS)
  found = []
  for bucket in buckets.buckets_between(bounds):
    rows = np.flatnonzero(bucket.holds(lengths)).tolist()
    if rows:
      own = [references[row] for row in rows]
      scores = {
        name: corpus_scores([lines[row] for row in rows], own, languages[1])
        for name, lines in systems.items()
      }
      bleu = {name: each.bleu for name, each in scores.items()}
      found.append({'bucket': bucket.name, 'count': len(rows), 'scores': bleu})
  return found


def draw_lengths(rows: Sequence[Mapping[str, Any]]) -> figures.Figure:
  """Draw the bars of every bucket, with several systems side by side."""
  figure, (axes,) = figures.panels(1, size=(6.4, 3.6))
  bars = {
    name: [row['scores'][name] for row in rows] for name in rows[0]['scores']
  }
  names = [row['bucket'] for row in rows]
  figures.draw_bars(axes, names, bars, 'words of the source line', 'BLEU')
  return figure


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
    'wide': lambda own: max(_widths(own), default=0) > _WIDE,
  }
  return made.get_template('page.html', globals={'tables': tables})


def _widths(own: Sequence[tuple[RunReport, Card]]) -> list[int]:
  return [card.figure.width for _, card in own if card.figure]


def _lengths(runs: Sequence[RunReport], text: Text) -> dict[str, Any]:
  (source, target), first = runs[0].languages, runs[0].config
  numbers = bleu_by_source_length(
    [source for source, _ in text],
    [reference for _, reference in text],
    {run.name: run.translations for run in runs},
    (source, words_of(target, first.decoding.bleu_tokenizer)),
  )
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


def _curves(runs: Sequence[RunReport]) -> dict[str, Any]:
  numbers = {run.name: run.curves for run in runs}
  return {
    'view': curves.CURVES,
    'numbers': numbers,
    'said': [f'{name}: {curves.summary(own)}' for name, own in numbers.items()],
    'picture': Picture.of_svg(figures.as_svg(curves.draw_runs(numbers))),
  }


def _cards(runs: Sequence[RunReport]) -> list[list[tuple[RunReport, Card]]]:
  """Return the cards of each view but the curves, which have a section."""
  every: dict[str, list[tuple[RunReport, Card]]] = {}
  for run in runs:
    for card in run.cards:
      every.setdefault(card.view.name, []).append((run, card))
  every.pop(curves.CURVES.name, None)
  return list(every.values())


def _lines(
  runs: Sequence[RunReport], text: Text, shown: int
) -> Iterator[dict[str, Any]]:
  language = runs[0].languages[1]
  for index in spread(len(text), shown):
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
          stretches(line, reference, made[0][1], language),
        )
        for name, line in made
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
