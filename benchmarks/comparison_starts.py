"""The figure of the schemes with two kinds of initial matrices.

    python -m benchmarks.comparison_starts [--output=docs/comparison_starts.svg]

Draws the validation loss and the BLEU of every pre-norm run from scratch of the
schemes that have finished runs with both, in benchmarks/results/comparison.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.common import make_parser
from benchmarks.comparison.results import pre_norm_from_scratch
from benchmarks.serving import ROOT
from fusion_jax import figures
from fusion_jax.files import write_whole
from fusion_jax.startup import one_line_errors

# By the corpus of the comparison.
_STARTS = {'multi30k': "Glorot's matrices", 'multi30k_mlrf': 'smaller matrices'}
# Rows between the points of two starts.
_APART = 0.3
# Inches of a scheme.
_ROW = 0.35


def draw(starts: Mapping[str, Sequence[Mapping[str, Any]]]) -> figures.Figure:
  """Draw a row for each scheme that all starts have, a point for each run.

  Args:
    starts: Results of runs, the plain model's first, by the name of the start.
  """
  first, *others = (
    dict.fromkeys(run['scheme'] for run in runs) for runs in starts.values()
  )
  schemes = [name for name in first if all(name in other for other in others)]
  tests = next(iter(starts.values()))[0]['tests']
  names = ['validation loss, nats', *(f'BLEU, {test}' for test in tests)]
  size = 3.4, 1.2 + _ROW * len(schemes)
  figure, axes = figures.panels(len(names), columns=len(names), size=size)
  for number, ((start, runs), style) in enumerate(
    zip(starts.items(), figures.styles(), strict=False)
  ):
    shown = [run for run in runs if run['scheme'] in schemes]
    shift = _APART * (number - (len(starts) - 1) / 2)
    rows = [schemes.index(run['scheme']) + shift for run in shown]
    for panel, values in zip(
      axes, zip(*map(_values, shown), strict=True), strict=True
    ):
      panel.plot(values, rows, ls='', label=start, **style)
  for panel, name in zip(axes, names, strict=True):
    panel.set_yticks(range(len(schemes)), [''] * len(schemes))
    panel.set_ylim(len(schemes) - 0.5, -0.5)
    panel.set_xlabel(name)
  axes[0].set_yticks(range(len(schemes)), schemes)
  figures.share_legend(figure, axes)
  return figure


def _values(run: Mapping[str, Any]) -> tuple[float, ...]:
  """The loss of a run and its BLEU on each test set."""
  scores = (own['bleu'] for own in run['tests'].values())
  return run['validation_nll'], *scores


@one_line_errors
def main(argv: list[str]) -> None:
  parser = make_parser(__doc__, ROOT / 'docs' / 'comparison_starts.svg')
  output = parser.parse_args(argv).output
  starts = {
    name: pre_norm_from_scratch(corpus) for corpus, name in _STARTS.items()
  }
  write_whole(output, figures.as_svg(draw(starts)))


if __name__ == '__main__':
  main(sys.argv[1:])
