"""Checkpoint selection: which checkpoints of a run are loaded."""

import dataclasses
from pathlib import Path
from typing import Literal

import orbax.checkpoint as ocp

from fusion_jax.errors import InputError
from fusion_jax.runs.checkpoint_reading import (
  read_meta,
  read_quality,
  reading,
  warn_damaged,
)
from fusion_jax.runs.metrics_file import read_metrics
from fusion_jax.seals import DamagedError


@dataclasses.dataclass(frozen=True)
class CheckpointSelection:
  """Selection of the checkpoints to average.

  Attributes:
    step: 'last', 'best', or the newest step that may be chosen. 'best' is the
      step of the best validation if a single one of the last checkpoints is
      wanted, and 'last' otherwise.
    average: Number of checkpoints to average.
    average_of: Whether to take the last ones, or those of the best validations.
    parameters: Parameters of each checkpoint: those after its last update, or
      their moving average; None: the average where there is one.
  """

  step: int | str = 'best'
  average: int = 1
  average_of: Literal['last', 'best'] = 'last'
  parameters: Literal['last', 'ema'] | None = None

  def __post_init__(self):
    if self.average < 1:
      raise InputError(f'--average: must be at least 1, got {self.average}')


def candidates(
  manager: ocp.CheckpointManager, choice: CheckpointSelection, metric: str
) -> list[int]:
  """Return the steps to load, the most wanted first, damaged ones included."""
  directory = Path(manager.directory)
  steps = sorted(manager.all_steps(), reverse=True)
  if not steps:
    raise InputError(f'{directory}: no checkpoint yet; train first')
  newest = _newest(manager, choice, steps)
  if newest not in steps:
    raise InputError(
      f'{directory}: no checkpoint of step {newest}; there are '
      f'{", ".join(map(str, reversed(steps)))}'
    )
  allowed = [step for step in steps if step <= newest]
  if choice.average_of == 'last':
    return allowed
  quality = _qualities(manager, allowed, _logged(directory.parent, metric))
  validated = [step for step in allowed if step in quality]
  return sorted(validated, key=lambda step: quality[step], reverse=True)


def _newest(
  manager: ocp.CheckpointManager, choice: CheckpointSelection, steps: list[int]
) -> int:
  if isinstance(choice.step, int):
    return choice.step
  only_one = choice.average == 1 and choice.average_of == 'last'
  if choice.step == 'best' and only_one:
    return _best_step(manager, steps)
  return steps[0]


def _best_step(manager: ocp.CheckpointManager, steps: list[int]) -> int:
  """Return the best step as recorded by the newest readable checkpoint."""
  for step in steps:
    try:
      with reading():
        best = read_meta(manager, step)['progress']['best_step']
    except DamagedError as error:
      warn_damaged(Path(manager.directory) / str(step), error)
      continue
    return best if best in steps else step
  return steps[0]


def _qualities(
  manager: ocp.CheckpointManager, steps: list[int], logged: dict[int, float]
) -> dict[int, float]:
  """Return the qualities of validated checkpoints by step.

  Damaged checkpoints have none. A quality from the log counts only where the
  checkpoint does not hold one.
  """
  found = {}
  for step in steps:
    try:
      quality = read_quality(manager, step, logged.get(step))
    except DamagedError as error:
      warn_damaged(Path(manager.directory) / str(step), error)
      continue
    if quality is not None:
      found[step] = quality
  return found


def _logged(workdir: Path, metric: str) -> dict[int, float]:
  """Return the qualities in metrics.jsonl, for runs that did not save them."""
  sign = -1 if metric == 'loss' else 1
  return {
    row['step']: sign * row[metric]
    for row in read_metrics(workdir / 'metrics.jsonl')
    if row['kind'] == 'valid' and row.get(metric) is not None
  }
