"""A polite stop: SIGTERM and Ctrl-C set a flag that the loop checks."""

import contextlib
import logging
import signal
import threading
from collections.abc import Callable, Iterator

import jax
from jax.experimental import multihost_utils

from fusion_jax.training.step import StepPrograms

logger = logging.getLogger(__name__)


def stop_on_signals(
  programs: StepPrograms,
) -> contextlib.AbstractContextManager[Callable[[int], int]]:
  """Return a context in which SIGTERM or SIGINT asks for a stop.

  A second signal acts as it would outside the block. Among several processes
  SIGTERM to one of them stops all at the same step; SIGINT is not handled.

  Only the main thread can handle signals; in another one nothing asks.
  """
  if jax.process_count() > 1:
    return contextlib.nullcontext(
      lambda step: (
        signal.SIGTERM
        if multihost_utils.reached_preemption_sync_point(step)
        else 0
      )
    )
  if threading.current_thread() is not threading.main_thread():
    return contextlib.nullcontext(lambda step: 0)
  return _flag_signals(programs)


@contextlib.contextmanager
def _flag_signals(programs: StepPrograms) -> Iterator[Callable[[int], int]]:
  signalled = 0
  numbers = (signal.SIGTERM, signal.SIGINT)
  before = {number: signal.getsignal(number) for number in numbers}

  def ask(number, frame):
    del frame
    nonlocal signalled
    signalled = number
    signal.signal(number, before[number])
    waits_for = programs.compiling
    logger.info(
      '%s: saving, then stopping%s; a second one stops at once',
      signal.Signals(number).name,
      f', once {waits_for} is compiled' if waits_for else '',
    )

  for number in numbers:
    signal.signal(number, ask)
  try:
    yield lambda step: signalled
  finally:
    for number, handler in before.items():
      signal.signal(number, handler)
