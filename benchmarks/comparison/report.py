"""The tables of a comparison as Markdown."""

import itertools
import re
from collections.abc import Mapping, Sequence

from benchmarks.common import markdown
from benchmarks.comparison.contestants import WIDE
from benchmarks.comparison.costs import PARTS
from benchmarks.comparison.orderings import LEVEL, verdict
from benchmarks.comparison.recipe import Recipe
from benchmarks.comparison.results import Results
from benchmarks.comparison.tables import SAMPLES, Line, Pair, Score, Table
from benchmarks.comparison.wording import (
  NONE,
  mean,
  p_value,
  paragraph,
  signed,
)

_TITLES = {
  'continued': 'from the trained plain model',
  'scratch': 'from scratch',
}
# Columns of a loss or score in a table with several seeds.
_OVER_SEEDS = 'difference', 'p over seeds'
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
  continued = any(x.kind == 'continued' and x.lines for x in tables)
  norms = dict.fromkeys(table.norm for table in tables)
  head = _head(recipe, list(norms), continued)
  parts = [head, *sections, _circumstances(results)]
  return '\n\n'.join(part for part in parts if part) + '\n'


def _head(recipe: Recipe, norms: Sequence[str], continued: bool) -> str:
  plain = recipe.phases['plain']
  model, data = plain.model, plain.data
  return paragraph(
    f'Recipe {_digests(recipe, norms)}, corpus `{recipe.corpus}`, '
    f'{data.source_language}-{data.target_language}; '
    f'width {model.width}, filter {model.filter:,}, {model.heads} heads, '
    f'{model.encoder_layers}+{model.decoder_layers} layers, initialization '
    f'`{model.initialization}`, vocabulary '
    f'{data.tokenizer.vocabulary_size:,}, {data.batch.tokens:,} slots a batch; '
    f'{plain.training.steps:,} updates from scratch'
    f'{_continuing(recipe) if continued else ""}. Beam '
    f'{plain.decoding.beam_size}, alpha {plain.decoding.alpha:g}, mean of the '
    f'last {recipe.average} checkpoints. `wide` is a plain model with a wider '
    'filter and as many parameters as the heaviest scheme. p: '
    f"sacreBLEU's paired bootstrap ({SAMPLES:,} samples) against `none` of the "
    'same table, which is below 0.05 for about one in ten systems that do not '
    "differ; with several seeds, that of the first seed, and Welch's "
    't-test over seeds. The bootstrap compares two trained models, whose '
    'difference may come from the seed alone. Differences are over the seeds '
    'that both have. No p is corrected for the number of schemes.'
  )


def _digests(recipe: Recipe, norms: Sequence[str]) -> str:
  each = []
  for norm in norms:
    own = [f'{name}={x}' for name, x in recipe.by_norm.get(norm, {}).items()]
    where = ', '.join([f'{norm}-norm', *(f'`{field}`' for field in own)])
    each.append(f'`{recipe.digest(norm)[:12]}` ({where})')
  return ', '.join(each)


def _continuing(recipe: Recipe) -> str:
  rates = ', '.join(f'{rate:g}' for rate in recipe.rates)
  steps = {name: each.training.steps for name, each in recipe.phases.items()}
  return (
    f', {steps["continued"]:,} from the trained plain model, with fresh Adam. '
    'The learning rate of what only a fusion has was chosen among '
    f'{rates} times that of the rest, by validation loss after '
    f'{steps["tuning"]:,} updates'
  )


def _section(table: Table, of_steps: Mapping[str, Mapping[str, float]]) -> str:
  parts = [
    f'### {table.norm.capitalize()}-norm, {_TITLES[table.kind]}',
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
  rates = any(line.rate is not None for line in lines)
  header = ['scheme', 'extra parameters']
  header += ['fusion rate'] if rates else []
  header += ['validation NLL', *_OVER_SEEDS] if several else ['validation NLL']
  for test in tests:
    header += [f'BLEU `{test}`', 'difference', 'p']
    header += ['p over seeds'] if several else []
    header += [f'p to `{WIDE}`'] if sizes else []
  header += ['seeds'] if several else []
  rows = []
  for line in lines:
    row = [
      f'`{line.scheme}`',
      NONE if line.extra_parameters is None else f'{line.extra_parameters:+,}',
    ]
    if rates:
      row.append(NONE if line.rate is None else f'{line.rate:g}')
    row += _cells(line.nll, several, digits=4, missing='not finite')
    for test in tests:
      row += _bleu(line.bleu.get(test), several)
      if sizes:
        row.append(p_value(_difference(line.to_wide.get(test))[1]))
    row += [str(len(line.seeds))] if several else []
    rows.append(row)
  return markdown(header, rows)


def _bleu(bleu: Score | None, several: bool) -> list[str]:
  if bleu is None:
    return [NONE] * (3 + several)
  cells = mean(bleu.seeds), signed(bleu.difference), p_value(bleu.bootstrap)
  return [*cells, p_value(bleu.over_seeds)] if several else [*cells]


def _cells(
  score: Score | None, several: bool, digits: int = 2, missing: str = NONE
) -> list[str]:
  """The mean; in a table with several seeds also its difference and p."""
  if score is None:
    return [missing, *(NONE for _ in _OVER_SEEDS if several)]
  own = mean(score.seeds, digits)
  difference = signed(score.difference, digits)
  return [own, difference, p_value(score.over_seeds)] if several else [own]


def _others(
  lines: Sequence[Line], of_steps: Mapping[str, Mapping[str, float]]
) -> str:
  """chrF2 of each line, and the times of its steps."""
  text = paragraph(
    'chrF2, and the time of a training and of a decoding step relative to the '
    'plain model (Transformer Base on a CPU, `benchmarks.fusion_overhead`):'
  )
  tests = list(dict.fromkeys(test for line in lines for test in line.chrf))
  several = any(len(line.seeds) > 1 for line in lines)
  header = ['scheme']
  for test in tests:
    header += [f'chrF2 `{test}`', *(_OVER_SEEDS if several else ())]
  rows = []
  for line in lines:
    times = of_steps.get(line.scheme, {})
    steps = (f'{times[part]:.2f}' if times else NONE for part in PARTS)
    scores = (_cells(line.chrf.get(test), several) for test in tests)
    rows.append((f'`{line.scheme}`', *itertools.chain(*scores), *steps))
  return f'{text}\n\n{markdown([*header, *PARTS.values()], rows)}'


def _fresh(lines: Sequence[Line]) -> str:
  """Which schemes have no start that computes what the plain model does."""
  listed = ', '.join(
    f'`{line.scheme}`'
    for line in lines
    if 'fresh' in line.first['start'].values()
  )
  return listed and paragraph(
    'New parameters start at random, without an exact start, in one stack or '
    f'both of {listed}.'
  )


def _orders(pairs: Sequence[Pair]) -> str:
  """Where papers print one scheme above another, and what is found here."""
  if not pairs:
    return ''
  text = paragraph(
    'Neighbours, of the finished schemes, in the orders that the papers print: '
    'BLEU of the higher one less that of the lower one, there and here; p over '
    'seeds where both have several, else of the bootstrap. An order is '
    'confirmed or refuted here where all test sets agree, each with p over '
    f'seeds < {LEVEL}: one seed decides nothing.'
  )
  tests = list(dict.fromkeys(test for pair in pairs for test in pair.bleu))
  header = ['paper', 'lower', 'higher', 'printed']
  for test in tests:
    header += [f'`{test}`', 'p']
  rows = []
  for printed, bleu in pairs:
    row = [printed.source, f'`{printed.lower}`', f'`{printed.higher}`']
    row.append(signed(printed.printed))
    for test in tests:
      difference, p = _difference(bleu.get(test))
      row += [signed(difference), p_value(p)]
    found = [(own.difference, own.over_seeds) for own in bleu.values()]
    rows.append([*row, verdict(found)])
  return f'{text}\n\n{markdown([*header, "here"], rows)}'


def _difference(bleu: Score | None) -> tuple[float | None, float | None]:
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
  """What is not finished: for each choice of seeds, schemes that lack it."""
  if not table.missing:
    return ''
  if not table.lines:
    return f'None of {len(table.missing)} runs is finished yet.'
  seeds: dict[str, list[str]] = {}
  for run in table.missing:
    seeds.setdefault(run.scheme, []).append(str(run.seed))
  schemes: dict[str, list[str]] = {}
  for scheme, numbers in seeds.items():
    schemes.setdefault(', '.join(numbers), []).append(f'`{scheme}`')
  return '\n\n'.join(
    paragraph(f'Missing with seed {numbers}: {", ".join(own)}.')
    for numbers, own in schemes.items()
  )


def _circumstances(results: Results) -> str:
  """Signatures and hardware; nothing without results."""
  signatures = dict.fromkeys(
    f'`{scores["bleu_signature"]}`'
    for found in results
    for scores in found['tests'].values()
  )
  machines: dict[str, set[int]] = {}
  for x in results:
    name = f'{x["cpu"]}, {x["cores"]} cores, {x["device"]}, jax {x["jax"]}'
    machines.setdefault(name, set()).add(x['seed'])
  listed = '; '.join(
    f'{name} (seed {", ".join(map(str, sorted(seeds)))})'
    for name, seeds in machines.items()
  )
  text = f'BLEU {", ".join(signatures)}; trained on {listed}.'
  return paragraph(text) if machines else ''
