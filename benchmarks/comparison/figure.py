"""The figure of a comparison: what each scheme gains, and what it costs."""

from collections.abc import Mapping

from benchmarks.comparison.costs import PARTS
from benchmarks.comparison.tables import Kind, Line, Score, Table
from fusion_jax import figures

# In docs/, by the kind of the table.
FIGURES: dict[Kind, str] = {
  'continued': 'comparison_continued.svg',
  'scratch': 'comparison_scratch.svg',
}
# Inches of a scheme.
_ROW = 0.2


def draw(
  table: Table, of_steps: Mapping[str, Mapping[str, float]]
) -> figures.Figure:
  """The difference to the plain model in BLEU, a panel a test set, and costs.

  Differences have their 95 % interval in the paired bootstrap of the first
  seed, and a cross for each seed where there are several. The schemes are the
  rows of all panels.

  Args:
    table: With the plain model.
    of_steps: Times of steps, as from `costs`; schemes may be missing.
  """
  fused = [line for line in table.lines if _tests(line)]
  tests = list(dict.fromkeys(test for line in fused for test in _tests(line)))
  count = len(tests) + 1
  size = 3.4, 1.2 + _ROW * len(fused)
  figure, axes = figures.panels(count, columns=count, size=size)
  for panel, test in zip(axes, tests, strict=False):
    _draw_differences(panel, fused, test)
  _draw_costs(axes[-1], fused, of_steps)
  axes[0].set_yticks(range(len(fused)), [line.scheme for line in fused])
  return figure


def _tests(line: Line) -> list[str]:
  """The test sets on which a scheme is compared with the plain model."""
  return [test for test, own in line.bleu.items() if own.interval is not None]


def _draw_differences(
  panel: figures.Axes, fused: list[Line], test: str
) -> None:
  found = [line.bleu.get(test) for line in fused]
  figures.draw_intervals(
    panel,
    [''] * len(fused),
    [figures.drawn(own and own.difference) for own in found],
    [figures.drawn(own and own.interval) for own in found],
    [_crosses(own) for own in found],
    'BLEU less that of the plain model',
  )
  panel.axvline(0, color='black', linewidth=1)
  panel.set_title(test)


def _crosses(own: Score | None) -> tuple[float, ...]:
  return own.differences if own and len(own.differences) > 1 else ()


def _draw_costs(
  panel: figures.Axes,
  fused: list[Line],
  of_steps: Mapping[str, Mapping[str, float]],
) -> None:
  for (part, name), style in zip(PARTS.items(), figures.styles(), strict=False):
    rows = [row for row, own in enumerate(fused) if own.scheme in of_steps]
    values = [of_steps[fused[row].scheme][part] for row in rows]
    panel.plot(values, rows, linestyle='', label=name, **style)
  panel.set_yticks(range(len(fused)), [''] * len(fused))
  panel.set_ylim(len(fused) - 0.5, -0.5)
  panel.axvline(1, color='black', linewidth=1)
  panel.set_title('time of a step')
  panel.set_xlabel("relative to the plain model's")
  panel.legend(fontsize='small', loc='best')
