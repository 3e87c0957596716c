"""Tables of runs from scratch by how their models start."""

import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence

from benchmarks.common import markdown
from benchmarks.comparison.orderings import (
  LEVEL,
  ORDERS,
  Neighbours,
  neighbours,
  verdict,
)
from benchmarks.comparison.starts import (
  SHALLOW,
  Difference,
  Found,
  Measure,
  Runs,
  measures,
  shown,
  test_sets,
)
from benchmarks.comparison.wording import NONE, paragraph, signed
from benchmarks.schemes import BASELINE, PAPERS


def table(starts: Mapping[str, Found]) -> str:
  """Write loss and BLEU of the plain models, and what schemes differ by.

  Args:
    starts: Results by the name of the start; all have the plain model.
  """
  every = measures(starts)
  papers = {name: paper for paper, own in PAPERS.items() for name in own}
  rows = [
    (
      name if name == SHALLOW else f'`{name}`',
      papers.get(name, NONE),
      _parameters(name, starts.values()),
      *(_beside_plain(name, own, every) for own in starts.values()),
    )
    for name in shown(starts)
  ]
  header = 'trained from scratch', 'paper', 'extra parameters', *starts
  text = paragraph(
    f'The validation loss, in nats, and BLEU on {_tests(starts)}: of the plain '
    f'model, `{BASELINE}`, and how much more each scheme has than the plain '
    'model that starts as it does. Means over the seeds that both have, with '
    f'their number in parentheses.{_bold(every)}'
  )
  return f'{text}\n\n{markdown(header, rows)}\n'


def orders(starts: Mapping[str, Found]) -> str:
  """Write what is found of the orders that papers print.

  Args:
    starts: Results by the name of the start; all have the plain model.
  """
  _, *bleu = measures(starts)
  rows = [
    (
      pair.source,
      f'`{pair.lower}`',
      f'`{pair.higher}`',
      signed(pair.printed),
      *(_order(pair, found, bleu) for found in starts.values()),
    )
    for pair in _pairs(starts)
  ]
  header = 'paper', 'lower', 'higher', 'printed', *starts
  text = paragraph(
    'Neighbours, of the schemes that are finished with a start, in the orders '
    f'that the papers print: BLEU of the higher one less that of the lower '
    f'one, there, and here on {_tests(starts)}, with the number of seeds. An '
    'order is confirmed or refuted where both test sets agree, each with p < '
    f'{LEVEL} (bold) in a t-test with the standard deviation over seeds of all '
    'runs together; all others are undecided.'
  )
  return f'{text}\n\n{markdown(header, rows)}\n'


def _tests(starts: Mapping[str, Found]) -> str:
  return ' and '.join(f'`{test}`' for test in test_sets(starts))


def _bold(every: Sequence[Measure]) -> str:
  """What bold means; nothing where a measure has no noise."""
  known = [each.noise for each in every if each.noise is not None]
  if len(known) < len(every):
    return ''
  deviation = _in_words([noise.deviation for noise in known])
  least = _in_words([noise.least(LEVEL, 1) for noise in known])
  return (
    ' The standard deviation of a run over seeds, pooled over all schemes and '
    f'starts, is {deviation} ({known[0].degrees} degrees of freedom). Bold is '
    f'p < {LEVEL} in a t-test with it, which with one seed each takes a '
    f'difference of {least}. No p is corrected for the number of schemes.'
  )


def _in_words(values: Sequence[float]) -> str:
  loss, *bleu = values
  return f'{loss:.3f} nats, {" and ".join(f"{x:.2f}" for x in bleu)} BLEU'


def _parameters(scheme: str, starts: Iterable[Found]) -> str:
  """What a scheme adds to the plain model; of each start where they differ."""
  extra = [
    _any_parameters(found[scheme]) - _any_parameters(found[BASELINE])
    for found in starts
    if scheme in found
  ]
  return ' / '.join(f'{number:+,}' for number in dict.fromkeys(extra))


def _any_parameters(runs: Runs) -> int:
  return next(iter(runs.values()))['parameters']


def _beside_plain(scheme: str, found: Found, every: Sequence[Measure]) -> str:
  """Numbers of the plain model, or the differences to it; how many seeds."""
  plain = found[BASELINE]
  if scheme != BASELINE:
    own = found.get(scheme, {})
    return _cell([each.beside(own, plain) for each in every], every)
  means = [
    f'{statistics.fmean(each.values(plain).values()):.{each.digits}f}'
    for each in every
  ]
  return f'{" ".join(means)} ({len(plain)})'


def _cell(
  differences: Sequence[Difference | None], every: Sequence[Measure]
) -> str:
  """Differences, the clear ones in bold, and how many seeds."""
  parts, seeds = [], 0
  for found, each in zip(differences, every, strict=True):
    if found is None:
      return NONE
    number = signed(found.mean, each.digits)
    clear = found.p_value is not None and found.p_value < LEVEL
    parts.append(f'**{number}**' if clear else number)
    seeds = found.seeds
  return f'{" ".join(parts)} ({seeds})'


def _pairs(starts: Mapping[str, Found]) -> list[Neighbours]:
  """Neighbours with any start, in the order of the papers."""
  found = {pair for own in starts.values() for pair in neighbours(own)}
  printed = (
    Neighbours(source, lower, higher, scores[higher] - scores[lower])
    for source, scores in ORDERS
    for lower, higher in itertools.combinations(scores, 2)
  )
  return [pair for pair in printed if pair in found]


def _order(pair: Neighbours, found: Found, bleu: Sequence[Measure]) -> str:
  """What a start says of two schemes of a paper."""
  ours, theirs = found.get(pair.higher, {}), found.get(pair.lower, {})
  differences = [each.beside(ours, theirs) for each in bleu]
  known = [(own.mean, own.p_value) for own in differences if own]
  decided = verdict(known)
  cell = _cell(differences, bleu)
  return cell if decided == 'undecided' else f'{cell} {decided}'
