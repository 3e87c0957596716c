"""The figure of a comparison: what each scheme gains over the plain model."""

from benchmarks.comparison.tables import Line, Table
from fusion_jax import figures

# Inches of a scheme.
_ROW = 0.2


def draw(table: Table) -> figures.Figure:
  """The difference to the plain model in BLEU, a panel a test set.

  With its 95 % interval in the paired bootstrap of the first seed.
  """
  fused = [line for line in table.lines if _tests(line)]
  tests = list(dict.fromkeys(test for line in fused for test in _tests(line)))
  size = 4.4, 1 + _ROW * len(fused)
  figure, axes = figures.panels(len(tests), columns=len(tests), size=size)
  for panel, test in zip(axes, tests, strict=True):
    lines = [line for line in fused if test in _tests(line)]
    found = [line.bleu[test] for line in lines]
    figures.draw_intervals(
      panel,
      [line.scheme for line in lines],
      [own.difference for own in found],
      [own.interval for own in found],
      [()] * len(lines),
      'BLEU less that of the plain model',
    )
    panel.axvline(0, color='black', linewidth=1)
    panel.set_title(test)
  return figure


def _tests(line: Line) -> list[str]:
  """The test sets on which a scheme is compared with the plain model."""
  return [test for test, own in line.bleu.items() if own.interval is not None]
