"""Runs from scratch, each beside the plain model that starts as it does."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.common import markdown
from benchmarks.comparison.orderings import LEVEL
from benchmarks.comparison.results import from_scratch
from benchmarks.comparison.tables import Score, beside
from benchmarks.comparison.wording import NONE, paragraph, signed
from benchmarks.schemes import BASELINE, PAPERS
from fusion_jax import figures
from fusion_jax.errors import InputError

# Results of finished runs, by scheme and seed.
Found = Mapping[str, Mapping[int, Mapping[str, Any]]]


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
  """Write BLEU of the plain models, and the differences of schemes to them.

  Args:
    starts: Results by the name of the start; all have the plain model.
  """
  tests = _tests(starts)
  papers = {name: paper for paper, own in PAPERS.items() for name in own}
  rows = [
    (
      name if name == SHALLOW else f'`{name}`',
      papers.get(name, NONE),
      _parameters(name, starts.values()),
      *(_cell(name, own, tests) for own in starts.values()),
    )
    for name in shown(starts)
  ]
  header = 'trained from scratch', 'paper', 'extra parameters', *starts
  names = ' and '.join(f'`{test}`' for test in tests)
  text = paragraph(
    f'BLEU on {names} of the plain model, `{BASELINE}`, and how much more each '
    'scheme has than the plain model that starts as it does: means over the '
    'seeds that both have, with their number in parentheses. Bold is p < '
    f"{LEVEL} in Welch's t-test over seeds. No p is corrected for the number "
    'of schemes, and one seed decides nothing.'
  )
  return f'{text}\n\n{markdown(header, rows)}\n'


def draw(starts: Mapping[str, Found]) -> figures.Figure:
  """Draw the loss and BLEU: a row for each scheme, a point for each run.

  Args:
    starts: Results by the name of the start; all have the plain model.
  """
  schemes = shown(starts)
  tests = _tests(starts)
  names = ['validation loss, nats', *(f'BLEU, {test}' for test in tests)]
  size = 3.4, 1.2 + _ROW * len(schemes)
  figure, axes = figures.panels(len(names), columns=len(names), size=size)
  for number, ((start, found), style) in enumerate(
    zip(starts.items(), figures.styles(), strict=False)
  ):
    shift = _APART * (number - (len(starts) - 1) / 2)
    points = [
      (
        row + shift,
        run['validation_nll'],
        *(run['tests'][test]['bleu'] for test in tests),
      )
      for row, scheme in enumerate(schemes)
      for run in found.get(scheme, {}).values()
    ]
    rows, *columns = zip(*points, strict=True)
    for panel, values in zip(axes, columns, strict=True):
      panel.plot(values, rows, ls='', label=start, **style)
  for panel, name in zip(axes, names, strict=True):
    panel.set_yticks(range(len(schemes)), [''] * len(schemes))
    panel.set_ylim(len(schemes) - 0.5, -0.5)
    panel.set_xlabel(name)
  axes[0].set_yticks(range(len(schemes)), schemes)
  figures.share_legend(figure, axes)
  return figure


def _tests(starts: Mapping[str, Found]) -> list[str]:
  """The test sets of the first plain model."""
  for start, found in starts.items():
    if BASELINE not in found:
      raise InputError(f'{start}: no plain model from scratch is finished')
  first = next(iter(starts.values()))[BASELINE]
  return list(next(iter(first.values()))['tests'])


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


def _cell(scheme: str, found: Found, tests: Sequence[str]) -> str:
  """BLEU of the plain model, or the differences to it; the number of seeds."""
  own, plain = found.get(scheme, {}), found[BASELINE]
  seeds = [seed for seed in own if seed in plain]
  if not seeds:
    return NONE
  scores = []
  for test in tests:
    ours, theirs = (
      {seed: run['tests'][test]['bleu'] for seed, run in runs.items()}
      for runs in (own, plain)
    )
    score = beside(ours, {} if scheme == BASELINE else theirs)
    scores.append(_bleu(score))
  return f'{" ".join(scores)} ({len(seeds)})'


def _bleu(score: Score) -> str:
  if score.difference is None:
    return f'{score.seeds.mean:.2f}'
  clear = score.over_seeds is not None and score.over_seeds < LEVEL
  difference = signed(score.difference)
  return f'**{difference}**' if clear else difference
