"""A figure of runs from scratch by how their models start."""

from collections.abc import Mapping

from benchmarks.comparison.starts import Found, measures, shown
from fusion_jax import figures

# Rows between the points of two starts.
_APART = 0.22
# Inches of a scheme.
_ROW = 0.35


def draw(starts: Mapping[str, Found]) -> figures.Figure:
  """Draw the loss and BLEU: a row for each scheme, a point for each run.

  Args:
    starts: Results by the name of the start; all have the plain model.
  """
  schemes = shown(starts)
  every = measures(starts)
  size = 3.4, 1.2 + _ROW * len(schemes)
  figure, axes = figures.panels(len(every), columns=len(every), size=size)
  for number, ((start, found), style) in enumerate(
    zip(starts.items(), figures.styles(), strict=False)
  ):
    shift = _APART * (number - (len(starts) - 1) / 2)
    points = [
      (row + shift, *(each.of(run) for each in every))
      for row, scheme in enumerate(schemes)
      for run in found.get(scheme, {}).values()
    ]
    rows, *columns = zip(*points, strict=True)
    for panel, values in zip(axes, columns, strict=True):
      panel.plot(values, rows, ls='', label=start, **style)
  for panel, each in zip(axes, every, strict=True):
    panel.set_yticks(range(len(schemes)), [''] * len(schemes))
    panel.set_ylim(len(schemes) - 0.5, -0.5)
    panel.set_xlabel(each.name)
  axes[0].set_yticks(range(len(schemes)), schemes)
  figures.share_legend(figure, axes)
  return figure
