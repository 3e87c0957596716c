"""Sections of a report with figures: curves, scores, lengths, views."""

import math
from collections.abc import Mapping, Sequence
from typing import Any
from xml.etree.ElementTree import Element

from fusion_jax import figures
from fusion_jax.analysis import curves
from fusion_jax.analysis.report.html import (
  details,
  download,
  element,
  scrolling,
  section,
  table,
)
from fusion_jax.analysis.report.lengths import (
  bleu_by_source_length,
  draw_lengths,
)
from fusion_jax.analysis.report.run import RunReport
from fusion_jax.analysis.report.views import Card, Picture, drawn
from fusion_jax.analysis.view_result import View

# A figure is not shown smaller than this share of the width it was drawn at.
_SMALLEST = 0.55
# CSS pixels; figures up to this width stand side by side.
_WIDE = 900
# The text of a report: source and reference of each line.
Text = Sequence[tuple[str, str]]


def scores(runs: Sequence[RunReport], text: Text, name: str) -> Element:
  """Show BLEU and chrF of the text, with sacreBLEU's signatures.

  Args:
    runs: Runs of the page.
    text: Source and reference of every line.
    name: Name of the text.
  """
  first = runs[0].scores
  heads = ['run', 'BLEU', 'chrF']
  rows = [
    [run.name, f'{run.scores.bleu:.2f}', f'{run.scores.chrf:.2f}']
    for run in runs
  ]
  if len(runs) > 1:
    heads += [f'BLEU less {runs[0].name}', f'chrF less {runs[0].name}']
    for row, run in zip(rows, runs, strict=True):
      row.append(f'{run.scores.bleu - first.bleu:+.2f}')
      row.append(f'{run.scores.chrf - first.chrf:+.2f}')
  return section(
    'scores',
    'Scores',
    element(
      'p',
      f'Of {name}, {len(text):,} lines, decoded as each config says.',
    ),
    table(heads, rows, 'scores'),
    *(
      element('p', f'{metric} signature: ', element('code', signature))
      for metric, signature in (
        ('BLEU', first.bleu_signature),
        ('chrF', first.chrf_signature),
      )
    ),
  )


def lengths(runs: Sequence[RunReport], text: Text) -> Element:
  """Show BLEU by the length of the source."""
  numbers = bleu_by_source_length(
    [source for source, _ in text],
    [reference for _, reference in text],
    {run.name: run.translations for run in runs},
    runs[0].languages,
  )
  rows = [
    [
      row['bucket'],
      f'{row["count"]:,}',
      *(f'{score:.2f}' for score in row['scores'].values()),
    ]
    for row in numbers
  ]
  heads = ['length', 'lines', *(f'BLEU of {run.name}' for run in runs)]
  picture = drawn(figures.as_svg(draw_lengths(numbers)))
  said = 'BLEU of the lines of each length; buckets have about as many lines.'
  shown = _figure(picture, f'BLEU by source length. {said}', said)
  return section(
    'lengths',
    'Scores by source length',
    shown,
    element(
      'p',
      "Lengths are in words as BLEU's tokenizer of the language parts them. "
      'Corpus BLEU of few lines is noisy.',
    ),
    details('The numbers', table(heads, rows, 'BLEU by source length')),
    element('p', download('lengths.json', numbers)),
  )


def training(runs: Sequence[RunReport]) -> Element:
  """Show the curves of all runs in one figure."""
  view = curves.VIEW
  numbers = {run.name: run.curves for run in runs}
  picture = drawn(figures.as_svg(curves.draw_runs(numbers)))
  said = [f'{name}: {curves.summary(each)}' for name, each in numbers.items()]
  return section(
    'training',
    view.title,
    *_about(view),
    _figure(picture, f'{view.title}. {" ".join(said)}', *said),
    details('Validations', *(_validations(run) for run in runs)),
    element('p', download('curves.json', numbers)),
  )


def views(runs: Sequence[RunReport]) -> Element:
  """Show the figures of all views that the runs have."""
  every: dict[str, list[tuple[RunReport, Card]]] = {}
  for run in runs:
    for card in run.cards:
      # The curves have their own section.
      if card.view.name != curves.VIEW.name:
        every.setdefault(card.view.name, []).append((run, card))
  blocks = []
  for own in every.values():
    view = own[0][1].view
    blocks += [element('h3', view.title, id=f'view-{view.name}'), *_about(view)]
    shown = (_card(run, card, len(runs) > 1) for run, card in own)
    widths = (card.figure.width for _, card in own if card.figure)
    name = 'cards' if max(widths, default=0) > _WIDE else 'cards beside'
    blocks.append(element('div', *shown, class_=name))
  return section('views', 'Inside the models', *blocks)


def _about(view: View) -> tuple[Element, Element]:
  """Return how to read a figure, and its source."""
  source = element('p', f'After {view.source}.', class_='source')
  return element('p', view.reading), source


def _card(run: RunReport, card: Card, named: bool) -> Element:
  title = [element('h4', run.name)] if named else []
  name = card.view.name
  if card.found is None or card.figure is None:
    return element(
      'div',
      *title,
      element('p', f'{card.missing} To make it:'),
      element('pre', run.command.replace('VIEW', name, 1)),
      class_='missing',
    )
  summary = f'{card.found["summary"]}{_of_text(card)}'
  alt = f'{card.view.title} of {run.name}: {summary}'
  numbers = download(f'{name}.json', card.found['numbers'])
  shown = _figure(card.figure, alt, summary)
  return element('div', *title, shown, element('p', numbers), class_='card')


def _of_text(card: Card) -> str:
  """Return the text that a view was made with, if the view records it."""
  text = (card.found or {}).get('text')
  if card.view.reads != 'text' or not text:
    return ''
  lines = f'the first {text["lines"]:,} lines of ' if text['lines'] else ''
  return f' (Of {lines}{text["source"] or "the validation text"}.)'


def _figure(picture: Picture, alt: str, *captions: str) -> Element:
  """Make a figure on white that scrolls if it is too wide to be readable."""
  least = f'min-width: {round(_SMALLEST * picture.width)}px'
  image = element('img', src=picture.address, alt=alt, style=least)
  shown = scrolling(image, 'figure')
  said = (element('p', caption) for caption in captions)
  return element('figure', shown, element('figcaption', *said))


def _validations(run: RunReport) -> Element:
  """Make a table of the validations of a run."""
  columns: Mapping[str, Any] = run.curves['valid']
  if not columns:
    return element('p', f'{run.name} was not validated yet.')
  cells = zip(*columns.values(), strict=True)
  rows = [[f'{row[0]:,}', *map(_number, row[1:])] for row in cells]
  heads = ['update', *list(columns)[1:]]
  return table(heads, rows, f'validations of {run.name}')


def _number(value: int | float | None) -> str:
  return '-' if value is None or not math.isfinite(value) else f'{value:.4g}'
