"""The tables of a comparison as Markdown, and their place in the guide."""

import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.common import markdown
from benchmarks.comparison.contestants import WIDE
from benchmarks.comparison.costs import PARTS
from benchmarks.comparison.orderings import LEVEL, verdict
from benchmarks.comparison.recipe import Recipe
from benchmarks.comparison.results import Results
from benchmarks.comparison.tables import SAMPLES, Bleu, Line, Pair, Table
from benchmarks.schemes import BASELINE, PAPERS
from fusion_jax.errors import InputError
from fusion_jax.evaluation.significance import Seeds
from fusion_jax.files import write_whole

_BEGIN = '<!-- comparison of schemes -->'
_END = '<!-- end of the comparison -->'
# In docs/.
FIGURE = 'comparison.svg'
_TITLES = {
  'continued': 'from the trained plain model',
  'scratch': 'from scratch',
}
_NONE = '–'
_ENTROPY = re.compile(r'(\w+)/.*coupling_entropy_(\d+)')


def report(
  recipe: Recipe,
  results: Results,
  tables: Sequence[Table],
  of_steps: Mapping[str, Mapping[str, float]],
) -> str:
  """What was compared and how, and a section for each table.

  Args:
    recipe: Of the comparison.
    results: Of the recipe.
    tables: Of the runs that are shown.
    of_steps: Times of steps, as from `costs`; schemes may be missing.
  """
  sections = [_section(table, of_steps) for table in tables]
  parts = [_head(recipe), *sections, _circumstances(results)]
  return '\n\n'.join(part for part in parts if part) + '\n'


def summary(recipe: Recipe, tables: Sequence[Table]) -> str:
  """The first table of continued runs, with one scheme of each paper."""
  own = first_continued(tables)
  if own is None:
    return 'No run is finished yet.\n'
  updates = recipe.phases['continued'].training.steps
  text = _paragraph(
    f'A {own.norm}-norm model of width {recipe.phases["plain"].model.width}, '
    f'trained on {recipe.corpus} for '
    f'{recipe.phases["plain"].training.steps:,} updates, continues for '
    f'{updates:,} more with each of {len(_fused(own))} schemes, from the exact '
    'start; `none` is the plain model itself. The table has the scheme of each '
    'paper with the lowest validation loss, and the picture all of them. '
    f'{_seeds(own)}, BLEU and the difference to `none`, in bold where the '
    f'bootstrap gives p < {LEVEL}. '
    '[All figures](docs/results.md#the-schemes-side-by-side).'
  )
  tests = list(dict.fromkeys(test for line in own.lines for test in line.bleu))
  rows = [
    (
      f'`{line.scheme}`',
      paper,
      _NONE if line.extra_parameters is None else f'{line.extra_parameters:+,}',
      'not finite' if line.nll is None else f'{line.nll:.4f}',
      *(_short(line.bleu.get(test)) for test in tests),
    )
    for paper, line in _best_of_each_paper(own)
  ]
  columns = 'scheme', 'paper', 'parameters', 'validation NLL'
  header = *columns, *(f'`{test}`' for test in tests)
  picture = (
    '![Differences in BLEU to the plain model with their 95 % intervals, and '
    f'the time of a step of Transformer Base](docs/{FIGURE})'
  )
  return f'{text}\n\n{markdown(header, rows)}\n\n{picture}\n'


def _fused(table: Table) -> list[Line]:
  plain = BASELINE, WIDE
  return [line for line in table.lines if line.scheme not in plain]


def _best_of_each_paper(table: Table) -> list[tuple[str, Line]]:
  """The lines of no paper, then that of the lowest loss of each."""
  papers = {name: paper for paper, own in PAPERS.items() for name in own}
  others = [(_NONE, x) for x in table.lines if x.scheme not in papers]
  best = [
    (paper, min(own, key=_loss))
    for paper in PAPERS
    if (own := [x for x in table.lines if papers.get(x.scheme) == paper])
  ]
  return others + best


def _loss(line: Line) -> float:
  return math.inf if line.nll is None else line.nll


def first_continued(tables: Sequence[Table]) -> Table | None:
  """The first table of continued runs that has a line."""
  return next((x for x in tables if x.kind == 'continued' and x.lines), None)


def _seeds(table: Table) -> str:
  most = max(len(line.seeds) for line in table.lines)
  return 'One seed' if most == 1 else f'Means of {most} seeds'


def _short(bleu: Bleu | None) -> str:
  if bleu is None:
    return _NONE
  score = f'{bleu.seeds.mean:.2f}'
  if bleu.difference is None:
    return score
  clear = bleu.bootstrap is not None and bleu.bootstrap < LEVEL
  difference = _signed(bleu.difference)
  return f'{score} ({f"**{difference}**" if clear else difference})'


def put_into(path: Path, text: str) -> None:
  """Replaces what stands between the markers of a file."""
  if not path.is_file():
    raise InputError(f'{path}: no such file')
  before, begin, rest = path.read_text(encoding='utf-8').partition(_BEGIN)
  _, end, after = rest.partition(_END)
  if not (begin and end):
    raise InputError(f'{path}: must have {_BEGIN} and then {_END}')
  write_whole(path, f'{before}{begin}\n\n{text}\n{end}{after}'.encode())


def _head(recipe: Recipe) -> str:
  plain, continued = recipe.phases['plain'], recipe.phases['continued']
  model, data = plain.model, plain.data
  rates = ', '.join(f'{rate:g}' for rate in recipe.rates)
  return _paragraph(
    f'Recipe `{recipe.digest[:12]}`, corpus `{recipe.corpus}`, '
    f'{data.source_language}-{data.target_language}; '
    f'width {model.width}, filter {model.filter:,}, {model.heads} heads, '
    f'{model.encoder_layers}+{model.decoder_layers} layers, vocabulary '
    f'{data.tokenizer.vocabulary_size:,}, {data.batch.tokens:,} slots a batch; '
    f'{plain.training.steps:,} updates from scratch, '
    f'{continued.training.steps:,} from the trained plain model, with fresh '
    'Adam. The learning rate of what only a fusion has was chosen among '
    f'{rates} times that of the rest, by validation loss after '
    f'{recipe.phases["tuning"].training.steps:,} updates. Beam '
    f'{plain.decoding.beam_size}, alpha {plain.decoding.alpha:g}, mean of the '
    f'last {recipe.average} checkpoints. `wide` is a plain model with a wider '
    'filter and as many parameters as the heaviest scheme. p: '
    f"sacreBLEU's paired bootstrap ({SAMPLES:,} samples) against `none` of the "
    'same table, which is below 0.05 for about one in ten systems that do not '
    "differ; with several seeds, that of the first seed, and Welch's "
    't-test over seeds. Differences are over the seeds that both have. No p is '
    'corrected for the number of schemes.'
  )


def _section(table: Table, of_steps: Mapping[str, Mapping[str, float]]) -> str:
  parts = [
    f'#### {table.norm.capitalize()}-norm, {_TITLES[table.kind]}',
    _grid(table.lines) if table.lines else '',
    _others(table.lines, of_steps) if table.lines else '',
    _fresh(table.lines),
    _entropies(table.lines),
    _orders(table.pairs),
    _missing(table),
  ]
  return '\n\n'.join(part for part in parts if part)


def _grid(lines: Sequence[Line]) -> str:
  tests = list(dict.fromkeys(test for line in lines for test in line.bleu))
  several = any(len(line.seeds) > 1 for line in lines)
  sizes = any(line.scheme == WIDE for line in lines)
  header = ['scheme', 'extra parameters', 'fusion rate', 'validation NLL']
  for test in tests:
    header += [f'BLEU `{test}`', 'difference', 'p']
    header += ['p over seeds'] if several else []
    header += [f'p to `{WIDE}`'] if sizes else []
  header += ['seeds'] if several else []
  rows = []
  for line in lines:
    row = [
      f'`{line.scheme}`',
      _NONE if line.extra_parameters is None else f'{line.extra_parameters:+,}',
      _NONE if line.rate is None else f'{line.rate:g}',
      'not finite' if line.nll is None else f'{line.nll:.4f}',
    ]
    for test in tests:
      row += _cells(line.bleu.get(test), several)
      if sizes:
        row.append(_p(_difference(line.to_wide.get(test))[1]))
    row += [str(len(line.seeds))] if several else []
    rows.append(row)
  return markdown(header, rows)


def _cells(bleu: Bleu | None, several: bool) -> list[str]:
  if bleu is None:
    return [_NONE] * (3 + several)
  cells = [
    _mean(bleu.seeds),
    _NONE if bleu.difference is None else _signed(bleu.difference),
    _p(bleu.bootstrap),
  ]
  return [*cells, _p(bleu.over_seeds)] if several else cells


def _mean(seeds: Seeds | None) -> str:
  if seeds is None:
    return _NONE
  deviation = seeds.deviation
  return f'{seeds.mean:.2f}' + (
    '' if deviation is None else f' ± {deviation:.2f}'
  )


def _others(
  lines: Sequence[Line], of_steps: Mapping[str, Mapping[str, float]]
) -> str:
  """chrF2 of each line, and the times of its steps."""
  text = _paragraph(
    'chrF2, and the time of a training and of a decoding step relative to the '
    'plain model (Transformer Base on a CPU, `benchmarks.fusion_overhead`):'
  )
  tests = list(dict.fromkeys(test for line in lines for test in line.chrf))
  header = 'scheme', *(f'chrF2 `{test}`' for test in tests), *PARTS.values()
  rows = []
  for line in lines:
    times = of_steps.get(line.scheme, {})
    steps = (f'{times[part]:.2f}' if times else _NONE for part in PARTS)
    scores = (_mean(line.chrf.get(test)) for test in tests)
    rows.append((f'`{line.scheme}`', *scores, *steps))
  return f'{text}\n\n{markdown(header, rows)}'


def _signed(difference: float) -> str:
  """A difference with its sign; what rounds to 0 is +0.00."""
  return f'{round(difference, 2) + 0.0:+.2f}'


def _p(value: float | None) -> str:
  if value is None:
    return _NONE
  return '<0.001' if value < 0.001 else f'{value:.3f}'


def _fresh(lines: Sequence[Line]) -> str:
  """Which schemes have no start that computes what the plain model does."""
  listed = ', '.join(
    f'`{line.scheme}`'
    for line in lines
    if 'fresh' in line.first['start'].values()
  )
  return listed and _paragraph(
    'New parameters start at random, without an exact start, in one stack or '
    f'both of {listed}.'
  )


def _orders(pairs: Sequence[Pair]) -> str:
  """Where papers print one scheme above another, and what is found here."""
  if not pairs:
    return ''
  text = _paragraph(
    'Neighbours in the orders that the papers print: BLEU of the higher one '
    'less that of the lower one, there and here. An order is confirmed or '
    f'refuted here where all test sets agree, each with p < {LEVEL}.'
  )
  tests = list(dict.fromkeys(test for pair in pairs for test in pair.bleu))
  header = ['paper', 'lower', 'higher', 'printed']
  for test in tests:
    header += [f'`{test}`', 'p']
  rows = []
  for printed, bleu in pairs:
    row = [printed.source, f'`{printed.lower}`', f'`{printed.higher}`']
    row.append(_signed(printed.printed))
    found = {test: _difference(own) for test, own in bleu.items()}
    for test in tests:
      difference, p = found.get(test, (None, None))
      row += [_NONE if difference is None else _signed(difference), _p(p)]
    rows.append([*row, verdict(list(found.values()))])
  return f'{text}\n\n{markdown([*header, "here"], rows)}'


def _difference(bleu: Bleu | None) -> tuple[float | None, float | None]:
  """A difference and its p: over seeds where there are several."""
  if bleu is None:
    return None, None
  p = bleu.bootstrap if bleu.over_seeds is None else bleu.over_seeds
  return bleu.difference, p


def _entropies(lines: Sequence[Line]) -> str:
  title = 'Coupling entropy of the routers at the end, in nats, after each '
  listed = [f'{title}iteration:', '']
  for line in lines:
    if found := coupling_entropies(line.first['telemetry']):
      sides = (
        f'{side} {", ".join(f"{value:.2f}" for value in values)}'
        for side, values in found.items()
      )
      listed.append(f'- `{line.scheme}`: {"; ".join(sides)}')
  return '\n'.join(listed) if len(listed) > 2 else ''


def coupling_entropies(
  telemetry: Mapping[str, float],
) -> dict[str, list[float]]:
  """The coupling entropies of a run, of each stack that routes."""
  found: dict[str, dict[int, float]] = {}
  for name, value in telemetry.items():
    if (match := _ENTROPY.fullmatch(name)) and value is not None:
      found.setdefault(match[1], {})[int(match[2])] = value
  return {
    side: [values[index] for index in sorted(values)]
    for side, values in found.items()
  }


def _missing(table: Table) -> str:
  seeds: dict[str, list[str]] = {}
  for run in table.missing:
    seeds.setdefault(run.scheme, []).append(str(run.seed))
  if not seeds:
    return ''
  if not table.lines:
    return f'None of {len(table.missing)} runs is finished yet.'
  listed = ', '.join(
    f'`{scheme}` (seed {", ".join(numbers)})'
    for scheme, numbers in seeds.items()
  )
  return _paragraph(f'Missing: {listed}.')


def _circumstances(results: Results) -> str:
  """Signatures and hardware; nothing without results."""
  signatures = dict.fromkeys(
    f'`{scores["bleu_signature"]}`'
    for found in results
    for scores in found['tests'].values()
  )
  machines = dict.fromkeys(
    f'{x["cpu"]}, {x["cores"]} cores, {x["device"]}, jax {x["jax"]}'
    for x in results
  )
  text = f'BLEU {", ".join(signatures)}; trained on {"; ".join(machines)}.'
  return _paragraph(text) if machines else ''


def _paragraph(text: str) -> str:
  return textwrap.fill(text, 80, break_long_words=False, break_on_hyphens=False)
