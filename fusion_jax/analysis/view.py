"""The form of a view: what it measures, draws and says of a run."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from jaxtyping import Float

from fusion_jax import figures
from fusion_jax.analysis.run_with_text import RunWithText
from fusion_jax.config import ModelConfig, Side

SIDES: tuple[Side, ...] = get_args(Side)
# Results of a view as JSON values: mappings, lists, numbers, strings.
Numbers = Mapping[str, Any]


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
    reading: Explanation of the figure, in one or two sentences.
    needs: Models that the view applies to, in words, for a message.
    reads: Input of the view.
    slow: Whether the view takes minutes.
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
  reads: Literal['text', 'metrics', 'parameters'] = 'text'
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
