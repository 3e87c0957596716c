"""Where a training is: what changes from step to step."""

import contextlib
import dataclasses
import time
from collections.abc import Iterator

from fusion_jax.runs.checkpoint import Progress
from fusion_jax.runs.state import TrainState
from fusion_jax.training.step import Totals


class Clock:
  """Clock of the training time since the last lap, without pauses."""

  def __init__(self):
    self._begin = self._start = time.monotonic()
    self._pause = 0.0

  def total(self) -> float:
    """Return the seconds since the clock was made, pauses included."""
    return time.monotonic() - self._begin

  def lap(self) -> float:
    """Return the seconds since the last lap, and start the next."""
    now = time.monotonic()
    seconds = now - self._start - self._pause
    self._start, self._pause = now, 0.0
    return max(seconds, 1e-9)

  @contextlib.contextmanager
  def paused(self) -> Iterator[None]:
    """Leave out the time that is spent in the block."""
    begin = time.monotonic()
    yield
    self._pause += time.monotonic() - begin


@dataclasses.dataclass
class Position:
  """State of a training between two steps.

  Attributes:
    step: Number of finished updates.
    state: Parameters and optimizer, on the devices.
    totals: Sums since the last report, on the devices.
    progress: Best validation, time and skipped updates before this start.
    clock: Clock of this start.
  """

  step: int
  state: TrainState
  totals: Totals
  progress: Progress
  clock: Clock

  def timed_progress(self) -> Progress:
    """Return the progress with the time of this start added."""
    seconds = self.progress.seconds + self.clock.total()
    return dataclasses.replace(self.progress, seconds=seconds)
