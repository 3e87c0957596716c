"""A polite stop: SIGTERM and Ctrl-C set a flag that the loop checks."""

import contextlib
import logging
import signal
from collections.abc import Callable, Iterator

import jax
from jax.experimental import multihost_utils

logger = logging.getLogger(__name__)


def stop_on_signals() -> contextlib.AbstractContextManager[
  Callable[[int], bool]
]:
  """Return a context in which SIGTERM or SIGINT asks for a stop.

  A second signal acts as it would outside the block. Among several processes
  SIGTERM to one of them stops all at the same step; SIGINT is not handled.

  Returns:
    A context manager that gives a function from a step to whether to stop after
    it.
  """
  if jax.process_count() > 1:
    return contextlib.nullcontext(multihost_utils.reached_preemption_sync_point)
  return _own_signals()


@contextlib.contextmanager
def _own_signals() -> Iterator[Callable[[int], bool]]:
  asked = False
  numbers = (signal.SIGTERM, signal.SIGINT)
  before = {number: signal.getsignal(number) for number in numbers}

  def ask(number, frame):
    del frame
    nonlocal asked
    asked = True
    signal.signal(number, before[number])
    logger.info('%s: saving, then stopping', signal.Signals(number).name)

  for number in numbers:
    signal.signal(number, ask)
  try:
    yield lambda step: asked
  finally:
    for number, handler in before.items():
      signal.signal(number, handler)
