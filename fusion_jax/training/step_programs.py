"""The programs of the update, one for each batch shape, told in the log.

A program is compiled in a thread before its first use, so that the thread of
the loop answers signals meanwhile.
"""

import logging
import time
from collections.abc import Callable
from concurrent import futures

from fusion_jax.data.batching import Shape

logger = logging.getLogger(__name__)


class StepPrograms:
  """Compiler of the update, told in the log.

  Attributes:
    compiling: Name of the shape that is being compiled; '' if none is.
  """

  def __init__(self, compile_update: Callable[[Shape], None], shapes: int):
    """Compile nothing yet."""
    self._compile_update, self._shapes = compile_update, shapes
    self._thread = futures.ThreadPoolExecutor(1)
    self._made: dict[Shape, futures.Future[None]] = {}
    self.compiling, self._tells = '', True

  def close(self) -> None:
    """Tell no more of what is still compiled; it cannot be stopped."""
    self._tells = False

  def begin(self, shape: Shape) -> None:
    """Compile the update for a shape in the background, if it is new."""
    if shape not in self._made:
      number = len(self._made) + 1
      self._made[shape] = self._thread.submit(self._compile, shape, number)

  def wait_for(self, shape: Shape) -> None:
    """Wait until the update is compiled for a shape, or raise its error."""
    self.begin(shape)
    self._made[shape].result()

  def _compile(self, shape: Shape, number: int) -> None:
    name = f'shape {number} of {self._shapes}'
    logger.info(
      'compiling %s (%d rows of %d source and %d target subwords) ...',
      name,
      shape.rows,
      shape.source,
      shape.target,
    )
    start, self.compiling = time.monotonic(), name
    try:
      self._compile_update(shape)
    finally:
      self.compiling = ''
    if self._tells:
      logger.info('compiled %s in %.1f s', name, time.monotonic() - start)
