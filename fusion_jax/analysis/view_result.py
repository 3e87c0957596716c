"""The type of a view of a run, and the type of its result."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from matplotlib.figure import Figure

from fusion_jax.analysis.run_with_text import RunWithText
from fusion_jax.config import ModelConfig


@dataclasses.dataclass(frozen=True)
class ViewResult:
  """Result of a view of one run.

  Attributes:
    numbers: All results as JSON values: mappings, lists, numbers, strings.
    draw: Function that makes the figure of these numbers.
    summary: Summary of the results with numbers, in one or two sentences.
  """

  numbers: Mapping[str, Any]
  draw: Callable[[], Figure]
  summary: str


@dataclasses.dataclass(frozen=True)
class View:
  """One way to look at a run.

  Attributes:
    name: Name of the subcommand and of the files.
    title: Title of the section in a report.
    source: Paper, with its figure or table, and equations.
    reading: Explanation of the figure, in one or two sentences.
    look: Function that makes the result.
    applies: Whether a model has what the view looks at.
    needs: Models that the view applies to, in words, for a message.
    reads: Input of the view: 'parameters', 'metrics' (of the training) or
      'text'.
    slow: Whether the view takes minutes; a report then includes it only on
      request or if its files exist.
  """

  name: str
  title: str
  source: str
  reading: str
  look: Callable[[RunWithText], ViewResult]
  applies: Callable[[ModelConfig], bool] = lambda config: True
  needs: str = 'any model'
  reads: str = 'text'
  slow: bool = False
