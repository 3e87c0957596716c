"""A polite stop: SIGTERM and Ctrl-C set a flag that the loop looks at."""

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
  """Within the block, SIGTERM or SIGINT asks for a stop.

  A second one acts as it would without the block. Among several processes
  SIGTERM to one of them stops all at the same step; SIGINT is not heard.

  Returns:
    Gives a function that says after each step whether to stop there.
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
