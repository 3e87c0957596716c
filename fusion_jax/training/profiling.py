"""A profile of some steps, for TensorBoard or Perfetto."""

import contextlib
import logging
from pathlib import Path

import jax

logger = logging.getLogger(__name__)


class Profiler:
  """Profiler that is on for a range of steps and writes to DIR/profile."""

  def __init__(self, workdir: Path, steps: tuple[int, int] | None):
    """Prepare to profile."""
    self._folder = workdir / 'profile'
    self._first, self._last = steps or (0, 0)
    self._is_on = False

  def step(self, number: int) -> contextlib.AbstractContextManager:
    """Return the context of a step; its profile begins or ends before it."""
    if number == self._first:
      jax.profiler.start_trace(str(self._folder))
      self._is_on = True
    if number == self._last + 1:
      self.close()
    if not self._is_on:
      return contextlib.nullcontext()
    return jax.profiler.StepTraceAnnotation('train', step_num=number)

  def close(self) -> None:
    """End the profile and write it."""
    if self._is_on:
      self._is_on = False
      jax.profiler.stop_trace()
      logger.info('profile written to %s', self._folder)
