"""The form of a view: what it measures, draws and says of a run."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, get_args

import numpy as np
from jaxtyping import Float

from fusion_jax import figures
from fusion_jax.analysis.run_with_text import RunWithText
from fusion_jax.config import ModelConfig, Side

SIDES: tuple[Side, ...] = get_args(Side)
# Results of a view as JSON values: mappings, lists, numbers, strings.
Numbers = Mapping[str, Any]
# Width and height of a panel of a figure in inches.
PANEL = 4.4, 3.2


class ViewResult(NamedTuple):
  """Result of a view of one run."""

  numbers: Numbers
  figure: figures.Figure
  summary: str


@dataclasses.dataclass(frozen=True)
class View:
  """One way to look at a run.

  Attributes:
    name: Name of the subcommand and of the files.
    title: Title of the section in a report.
    source: Paper, with its figure or table, and equations.
    reading: Explanation of the figure, in one or two sentences.
    applies: Whether a model has what the view looks at.
    needs: Models that the view applies to, in words, for a message.
    reads: Input of the view: 'parameters', 'metrics' (of the training) or
      'text'.
    slow: Whether the view takes minutes; a report then makes it only on
      request.
  """

  name: str
  measure: Callable[[RunWithText], Numbers]
  draw: Callable[[Numbers], figures.Figure]
  summary: Callable[[Numbers], str]
  title: str
  source: str
  reading: str
  applies: Callable[[ModelConfig], bool] = lambda config: True
  needs: str = 'any model'
  reads: str = 'text'
  slow: bool = False

  def look(self, analysed: RunWithText) -> ViewResult:
    """Measure, draw and summarise a run."""
    numbers = self.measure(analysed)
    return ViewResult(numbers, self.draw(numbers), self.summary(numbers))


def sides_of(config: ModelConfig, *schemes: str) -> tuple[Side, ...]:
  """Return the sides whose fusion is one of the schemes, the encoder first."""
  return tuple(side for side in SIDES if config.side(side).fusion in schemes)


def nullable(values: np.ndarray) -> list[Any]:
  """Return nested lists of JSON numbers, with None for what is not finite."""
  numbers = values.astype(object)
  numbers[~np.isfinite(values)] = None
  return numbers.tolist()


def finite_or_nan(values: Any) -> Float[np.ndarray, '...']:
  """Return the array of nested lists that `nullable` made."""
  return np.array(values, np.float64)


class Panel(NamedTuple):
  """One panel of a figure: `figures.draw_lines` or the like, and its values."""

  draw: Callable[..., None]
  values: tuple[Any, ...]
  title: str = ''


def draw_panels(
  panels: Sequence[Panel], columns: int = 2, size: tuple[float, float] = PANEL
) -> tuple[figures.Figure, list[figures.Axes]]:
  """Draw panels row by row."""
  figure, axes = figures.panels(len(panels), columns, size)
  for place, panel in zip(axes, panels, strict=True):
    panel.draw(place, *panel.values)
    place.set_title(panel.title)
  return figure, axes


# Draws a map whose first row is the lowest.
draw_upwards = functools.partial(figures.draw_map, upwards=True)
