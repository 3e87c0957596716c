"""Views of a run: their type, their results, and results that are kept."""

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
from matplotlib.figure import Figure

from fusion_jax import figures
from fusion_jax.analysis.run_with_text import RunWithText
from fusion_jax.config import ModelConfig, Side
from fusion_jax.errors import InputError
from fusion_jax.files import write_whole
from fusion_jax.json_input import read_json

SIDES: tuple[Side, ...] = get_args(Side)
# Results of a view as JSON values: mappings, lists, numbers, strings.
Numbers = Mapping[str, Any]


class ViewResult(NamedTuple):
  """Result of a view of one run.

  Attributes:
    numbers: Numbers of the view.
    figure: Figure of the numbers.
    summary: Summary of the numbers.
  """

  numbers: Numbers
  figure: Figure
  summary: str


@dataclasses.dataclass(frozen=True)
class View:
  """One way to look at a run.

  Attributes:
    name: Name of the subcommand and of the files.
    title: Title of the section in a report.
    source: Paper, with its figure or table, and equations.
    reading: Explanation of the figure, in one or two sentences.
    measure: Function that computes the numbers.
    draw: Function that makes the figure of the numbers.
    summary: Function that says the numbers in one or two sentences.
    applies: Whether a model has what the view looks at.
    needs: Models that the view applies to, in words, for a message.
    reads: Input of the view: 'parameters', 'metrics' (of the training) or
      'text'.
    slow: Whether the view takes minutes; a report then makes it only on
      request.
  """

  name: str
  title: str
  source: str
  reading: str
  measure: Callable[[RunWithText], Numbers]
  draw: Callable[[Numbers], Figure]
  summary: Callable[[Numbers], str]
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


def look_at(view: View, analysed: RunWithText, folder: Path) -> ViewResult:
  """Apply a view to a run, and write VIEW.json, VIEW.png and VIEW.svg."""
  if view.reads != 'metrics':
    analysed.check_finite()
  finding = view.look(analysed)
  path = folder / f'{view.name}.json'
  try:
    folder.mkdir(parents=True, exist_ok=True)
    # The numbers are there only with their own figure.
    path.unlink(missing_ok=True)
  except OSError as error:
    raise InputError(f'{folder}: {error.strerror}') from error
  values = {
    'view': view.name,
    'source': view.source,
    'summary': finding.summary,
    'numbers': finding.numbers,
  }
  figures.save(finding.figure, folder / view.name)
  keep(path, analysed, values, _key(view, analysed))
  return finding


def keep(
  path: Path, analysed: RunWithText, values: Mapping[str, Any], key: str | None
) -> None:
  """Write a result as JSON, with what it was made of."""
  about: dict[str, Any] = {
    'key': key,
    'run': str(analysed.workdir),
    'step': analysed.run.step,
    'steps': list(analysed.run.steps),
    'text': dataclasses.asdict(analysed.choice),
  }
  text = json.dumps(
    about | dict(values), ensure_ascii=False, indent=1, allow_nan=False
  )
  write_whole(path, text.encode() + b'\n')


def kept(path: Path, analysed: RunWithText, kind: Any) -> Any:
  """Read a result that `keep` wrote, if it was made of the same inputs."""
  try:
    found = read_json(path, kind)
  except InputError:
    return None
  return found if found['key'] == analysed.digest else None


def _key(view: View, analysed: RunWithText) -> str | None:
  """Return the digest by which a result is reused, if it read a text."""
  if view.reads != 'text':
    return None
  try:
    return analysed.digest
  except InputError:
    return None
