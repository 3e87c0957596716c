"""The figure of the schemes with two kinds of initial matrices.

    python -m benchmarks.comparison_starts [--output=docs/comparison_starts.svg]

Draws the validation loss and the BLEU of every pre-norm run from scratch of the
schemes that have finished runs with both, in benchmarks/results/comparison.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS, make_parser
from benchmarks.schemes import BASELINE
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

# Results of a scheme, a dictionary for each seed.
Seeds = list[dict[str, Any]]


def runs(folder: Path) -> dict[str, Seeds]:
  """Read the pre-norm runs from scratch of a corpus, by scheme."""
  found: dict[str, Seeds] = {}
  for phase in ('plain', 'scratch'):
    for path in sorted((folder / phase / 'pre').glob('*.json')):
      numbers = json.loads(path.read_text())
      found.setdefault(numbers['scheme'], []).append(numbers)
  return found


def draw(starts: Mapping[str, Mapping[str, Seeds]]) -> figures.Figure:
  """Draw a row for each scheme that all starts have, a point for each run.

  Args:
    starts: What `runs` has read, by the name of the start.
  """
  first, *others = starts.values()
  schemes = [name for name in first if all(name in other for other in others)]
  tests = list(first[BASELINE][0]['tests'])
  names = ['validation loss, nats', *(f'BLEU, {test}' for test in tests)]
  size = 3.4, 1.2 + _ROW * len(schemes)
  figure, axes = figures.panels(len(names), columns=len(names), size=size)
  shifts = [_APART * (n - (len(starts) - 1) / 2) for n in range(len(starts))]
  for panel, name, values in zip(axes, names, _columns(tests), strict=True):
    for start, shift, style in zip(
      starts, shifts, figures.styles(), strict=False
    ):
      points = [
        (values(run), row + shift)
        for row, scheme in enumerate(schemes)
        for run in starts[start][scheme]
      ]
      panel.plot(*zip(*points, strict=True), ls='', label=start, **style)
    panel.set_yticks(range(len(schemes)), [''] * len(schemes))
    panel.set_ylim(len(schemes) - 0.5, -0.5)
    panel.set_xlabel(name)
  axes[0].set_yticks(range(len(schemes)), schemes)
  figures.share_legend(figure, axes)
  return figure


def _columns(tests: Sequence[str]) -> list[Any]:
  """Functions from the results of a run to its loss and its scores."""
  scores = [lambda run, test=test: run['tests'][test]['bleu'] for test in tests]
  return [lambda run: run['validation_nll'], *scores]


@one_line_errors
def main(argv: list[str]) -> None:
  parser = make_parser(__doc__, ROOT / 'docs' / 'comparison_starts.svg')
  output = parser.parse_args(argv).output
  folder = RESULTS / 'comparison'
  starts = {name: runs(folder / own) for own, name in _STARTS.items()}
  write_whole(output, figures.as_svg(draw(starts)))


if __name__ == '__main__':
  main(sys.argv[1:])
