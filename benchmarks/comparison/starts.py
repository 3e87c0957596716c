"""Runs from scratch, each beside the plain model that starts as it does."""

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.common import markdown
from benchmarks.comparison.noise import Noise, pooled
from benchmarks.comparison.orderings import LEVEL
from benchmarks.comparison.results import from_scratch
from benchmarks.comparison.wording import NONE, paragraph, signed
from benchmarks.schemes import BASELINE, PAPERS
from fusion_jax import figures
from fusion_jax.errors import InputError

# Results of finished runs, by scheme and seed.
Found = Mapping[str, Mapping[int, Mapping[str, Any]]]


class Figure(NamedTuple):
  """A number that a run has.

  name: with its unit.
  of: reads it from the results of a run.
  digits: that are shown after the point.
  """

  name: str
  of: Callable[[Mapping[str, Any]], float]
  digits: int = 2


class Start(NamedTuple):
  """Models of one norm whose matrices start alike.

  norm: of the models.
  corpus: of the recipe, with all layers.
  shallow: the corpus with two layers in the encoder.
  """

  norm: str
  corpus: str
  shallow: str


STARTS = {
  "pre-norm, Glorot's matrices": Start('pre', 'multi30k', 'multi30k_shallow'),
  'pre-norm, smaller matrices': Start(
    'pre', 'multi30k_mlrf', 'multi30k_shallow_mlrf'
  ),
  'post-norm, smaller matrices': Start('post', 'multi30k', 'multi30k_shallow'),
}
# The plain models of the shallow corpora.
SHALLOW = 'two encoder layers'
# Rows between the points of two starts.
_APART = 0.22
# Inches of a scheme.
_ROW = 0.35


def gathered(start: Start) -> Found:
  """Read the results that are there."""
  found: dict[str, dict[int, Mapping[str, Any]]] = defaultdict(dict)
  for run in from_scratch(start.corpus, start.norm):
    found[run['scheme']][run['seed']] = run
  for run in from_scratch(start.shallow, start.norm):
    if run['scheme'] == BASELINE:
      found[SHALLOW][run['seed']] = run
  return found


def shown(starts: Mapping[str, Found]) -> list[str]:
  """Return the schemes of at least two starts, the plain models first."""
  known = BASELINE, SHALLOW, *(name for own in PAPERS.values() for name in own)
  return [
    name for name in known if sum(name in own for own in starts.values()) > 1
  ]


def table(starts: Mapping[str, Found]) -> str:
  """Write loss and BLEU of the plain models, and what schemes differ by.

  Args:
    starts: Results by the name of the start; all have the plain model.
  """
  measured = _figures(starts)
  noises = [_noise(figure, starts.values()) for figure in measured]
  papers = {name: paper for paper, own in PAPERS.items() for name in own}
  rows = [
    (
      name if name == SHALLOW else f'`{name}`',
      papers.get(name, NONE),
      _parameters(name, starts.values()),
      *(_cell(name, own, measured, noises) for own in starts.values()),
    )
    for name in shown(starts)
  ]
  header = 'trained from scratch', 'paper', 'extra parameters', *starts
  tests = ' and '.join(f'`{test}`' for test in _tests(starts))
  text = paragraph(
    f'The validation loss, in nats, and BLEU on {tests}: of the plain model, '
    f'`{BASELINE}`, and how much more each scheme has than the plain model '
    'that starts as it does. Means over the seeds that both have, with their '
    f'number in parentheses.{_bold(noises)}'
  )
  return f'{text}\n\n{markdown(header, rows)}\n'


def draw(starts: Mapping[str, Found]) -> figures.Figure:
  """Draw the loss and BLEU: a row for each scheme, a point for each run.

  Args:
    starts: Results by the name of the start; all have the plain model.
  """
  schemes = shown(starts)
  measured = _figures(starts)
  size = 3.4, 1.2 + _ROW * len(schemes)
  figure, axes = figures.panels(len(measured), columns=len(measured), size=size)
  for number, ((start, found), style) in enumerate(
    zip(starts.items(), figures.styles(), strict=False)
  ):
    shift = _APART * (number - (len(starts) - 1) / 2)
    points = [
      (row + shift, *(each.of(run) for each in measured))
      for row, scheme in enumerate(schemes)
      for run in found.get(scheme, {}).values()
    ]
    rows, *columns = zip(*points, strict=True)
    for panel, values in zip(axes, columns, strict=True):
      panel.plot(values, rows, ls='', label=start, **style)
  for panel, each in zip(axes, measured, strict=True):
    panel.set_yticks(range(len(schemes)), [''] * len(schemes))
    panel.set_ylim(len(schemes) - 0.5, -0.5)
    panel.set_xlabel(each.name)
  axes[0].set_yticks(range(len(schemes)), schemes)
  figures.share_legend(figure, axes)
  return figure


def _tests(starts: Mapping[str, Found]) -> list[str]:
  """The test sets of the first plain model."""
  for start, found in starts.items():
    if BASELINE not in found:
      raise InputError(f'{start}: no plain model from scratch is finished')
  first = next(iter(starts.values()))[BASELINE]
  return list(_any(first)['tests'])


def _figures(starts: Mapping[str, Found]) -> list[Figure]:
  """The validation loss, and BLEU on each test set."""
  loss = Figure('validation loss, nats', lambda run: run['validation_nll'], 3)
  return [loss, *(_bleu(test) for test in _tests(starts))]


def _bleu(test: str) -> Figure:
  return Figure(f'BLEU, {test}', lambda run: run['tests'][test]['bleu'])


def _noise(figure: Figure, starts: Iterable[Found]) -> Noise | None:
  return pooled(
    [figure.of(run) for run in runs.values()]
    for found in starts
    for runs in found.values()
  )


def _bold(noises: Sequence[Noise | None]) -> str:
  """What bold means; nothing where a figure has no noise."""
  known = [noise for noise in noises if noise is not None]
  if len(known) < len(noises):
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
    _any(found[scheme])['parameters'] - _any(found[BASELINE])['parameters']
    for found in starts
    if scheme in found
  ]
  return ' / '.join(f'{number:+,}' for number in dict.fromkeys(extra))


def _any(runs: Mapping[int, Mapping[str, Any]]) -> Mapping[str, Any]:
  return next(iter(runs.values()))


def _cell(
  scheme: str,
  found: Found,
  measured: Sequence[Figure],
  noises: Sequence[Noise | None],
) -> str:
  """Figures of the plain model, or the differences to it; how many seeds."""
  own, plain = found.get(scheme, {}), found[BASELINE]
  seeds = [seed for seed in own if seed in plain]
  if not seeds:
    return NONE
  numbers = []
  for figure, noise in zip(measured, noises, strict=True):
    ours, theirs = (
      statistics.fmean(figure.of(runs[seed]) for seed in seeds)
      for runs in (own, plain)
    )
    if scheme == BASELINE:
      numbers.append(f'{ours:.{figure.digits}f}')
      continue
    clear = noise and noise.p_value(ours - theirs, len(seeds)) < LEVEL
    difference = signed(ours - theirs, figure.digits)
    numbers.append(f'**{difference}**' if clear else difference)
  return f'{" ".join(numbers)} ({len(seeds)})'
