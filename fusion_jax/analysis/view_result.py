"""What a view of a run gives: numbers, and how they are drawn."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from matplotlib.figure import Figure

from fusion_jax.analysis.run_with_text import RunWithText
from fusion_jax.config import ModelConfig


@dataclasses.dataclass(frozen=True)
class ViewResult:
  """What was seen of one run.

  Attributes:
    numbers: all of it, for JSON: mappings, lists, numbers, strings.
    draw: makes the figure of these numbers.
    summary: what is seen, in one or two sentences with figures.
  """

  numbers: Mapping[str, Any]
  draw: Callable[[], Figure]
  summary: str


@dataclasses.dataclass(frozen=True)
class View:
  """One way to look at a run.

  Attributes:
    name: of the subcommand and of the files.
    title: of the section in a report.
    source: the paper, its figure or table, and equations.
    reading: how to read the figure, in one or two sentences.
    look: makes the finding.
    applies: whether a model has what is looked at.
    needs: in words, which models have; for a message.
    reads: 'parameters', 'metrics' (those of the training) or 'text'.
    slow: it takes minutes; a report has it only if it was asked for or made
      before.
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
