"""The table of a comparison in the README: one scheme of each paper."""

import math
from collections.abc import Sequence

from benchmarks.common import markdown
from benchmarks.comparison.contestants import WIDE
from benchmarks.comparison.figure import FIGURES
from benchmarks.comparison.orderings import LEVEL
from benchmarks.comparison.recipe import Recipe
from benchmarks.comparison.tables import Line, Score, Table, first_of
from benchmarks.comparison.wording import NONE, paragraph, signed
from benchmarks.schemes import BASELINE, PAPERS


def summary(recipe: Recipe, tables: Sequence[Table]) -> str:
  """The first table of runs from scratch, with one scheme of each paper."""
  own = first_of(tables, 'scratch')
  if own is None:
    return 'No run from scratch is finished yet.\n'
  plain = recipe.phases['plain']
  text = paragraph(
    f'A {own.norm}-norm model of width {plain.model.width}, trained from '
    f'scratch on {recipe.corpus} for {plain.training.steps:,} updates, with '
    f'{len(_fused(own))} schemes so far. The table has the scheme of each '
    'paper with the lowest validation loss, and the picture all of them: '
    'means over seeds, and the difference in BLEU to the plain model, `none`, '
    "over the seeds that both have, in bold where Welch's t-test over seeds "
    f'gives p < {LEVEL}. No p is corrected for the number of schemes, and one '
    'seed decides nothing. '
    '[All figures](docs/results.md#the-schemes-side-by-side).'
  )
  tests = list(dict.fromkeys(test for line in own.lines for test in line.bleu))
  rows = [
    (
      f'`{line.scheme}`',
      paper,
      NONE if line.extra_parameters is None else f'{line.extra_parameters:+,}',
      'not finite' if line.nll is None else f'{line.nll.seeds.mean:.4f}',
      *(_short(line.bleu.get(test)) for test in tests),
      str(len(line.seeds)),
    )
    for paper, line in _best_of_each_paper(own)
  ]
  columns = 'scheme', 'paper', 'parameters', 'validation NLL'
  header = *columns, *(f'`{test}`' for test in tests), 'seeds'
  picture = (
    '![Differences in BLEU to the plain model with their 95 % intervals and '
    'seeds, and the time of a step of Transformer '
    f'Base](docs/{FIGURES[own.kind]})'
  )
  return f'{text}\n\n{markdown(header, rows)}\n\n{picture}\n'


def _fused(table: Table) -> list[Line]:
  plain = BASELINE, WIDE
  return [line for line in table.lines if line.scheme not in plain]


def _best_of_each_paper(table: Table) -> list[tuple[str, Line]]:
  """The lines of no paper, then that of the lowest loss of each."""
  papers = {name: paper for paper, own in PAPERS.items() for name in own}
  others = [(NONE, x) for x in table.lines if x.scheme not in papers]
  best = [
    (paper, min(own, key=_loss))
    for paper in PAPERS
    if (own := [x for x in table.lines if papers.get(x.scheme) == paper])
  ]
  return others + best


def _loss(line: Line) -> float:
  return math.inf if line.nll is None else line.nll.seeds.mean


def _short(bleu: Score | None) -> str:
  if bleu is None:
    return NONE
  score = f'{bleu.seeds.mean:.2f}'
  if bleu.difference is None:
    return score
  clear = bleu.over_seeds is not None and bleu.over_seeds < LEVEL
  difference = signed(bleu.difference)
  return f'{score} ({f"**{difference}**" if clear else difference})'
