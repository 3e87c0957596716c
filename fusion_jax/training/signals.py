"""A polite stop: SIGTERM and Ctrl-C set a flag that the loop looks at."""

import contextlib
import logging
import signal
from collections.abc import Callable, Iterator

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def stop_on_signals() -> Iterator[Callable[[], bool]]:
  """Within the block, the first SIGTERM or SIGINT asks for a stop.

  A second one acts as it would without the block.

  Yields:
    A function that says whether a stop was asked for.
  """
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
    yield lambda: asked
  finally:
    for number, handler in before.items():
      signal.signal(number, handler)
