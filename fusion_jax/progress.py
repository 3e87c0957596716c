"""A log line every few seconds: how far, how fast, how long still."""

import contextlib
import logging
import threading
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

logger = logging.getLogger(__name__)

_SECONDS_BETWEEN_LINES = 4.0
_SECONDS_BETWEEN_BEATS = 10.0
# Asking for the time costs as much as reading a line.
_ITEMS_BETWEEN_LOOKS = 256
_ItemT = TypeVar('_ItemT')


class Progress:
  """Count work that is done; log the count, the rate and the time left."""

  def __init__(self, total: int | None, unit: str, what: str = ''):
    """Start the clock."""
    self._total, self._unit = total, unit
    self._name = f'{what}: ' if what else ''
    self._done = 0
    self._start = self._last = time.monotonic()

  def add(self, count: int) -> None:
    """Count, and log if the last line is some seconds old."""
    self._done += count
    now = time.monotonic()
    if now - self._last >= _SECONDS_BETWEEN_LINES:
      self._last = now
      logger.info('%s%s', self._name, self._state(now - self._start))

  def finish(self) -> None:
    """Log the whole."""
    seconds = time.monotonic() - self._start
    rate = self._rate(seconds)
    state = f'{self._counted(self._done)}, {rate:,.1f} per second'
    logger.info('%s%s, in %.1f s', self._name, state, seconds)

  def _counted(self, number: int) -> str:
    unit = self._unit.removesuffix('s') if number == 1 else self._unit
    return f'{number:,} {unit}'

  def _rate(self, seconds: float) -> float:
    return self._done / max(seconds, 1e-9)

  def _state(self, seconds: float) -> str:
    rate = self._rate(seconds)
    left = (self._total or 0) - self._done
    of = f'{self._done:,} of ' if self._total else ''
    counted = self._counted(self._total or self._done)
    state = f'{of}{counted}, {rate:,.1f} per second'
    return f'{state}, {left / rate:,.0f} s left' if left > 0 < rate else state


@contextlib.contextmanager
def tell_how_long(
  what: str, every: float = _SECONDS_BETWEEN_BEATS
) -> Iterator[None]:
  """Log how long the block works, which cannot say how far it is."""
  ended, start = threading.Event(), time.monotonic()

  def beat() -> None:
    while not ended.wait(every):
      logger.info('%s: since %.0f s', what, time.monotonic() - start)

  thread = threading.Thread(target=beat, daemon=True)
  thread.start()
  try:
    yield
  finally:
    ended.set()
    thread.join()


def with_progress(
  items: Iterable[_ItemT], what: str, total: int, unit: str = 'pairs'
) -> Iterator[_ItemT]:
  """Pass items on and log how far they are."""
  progress, unseen = Progress(total, unit, what), 0
  for item in items:
    yield item
    unseen += 1
    if unseen == _ITEMS_BETWEEN_LOOKS:
      progress.add(unseen)
      unseen = 0
  progress.add(unseen)
  progress.finish()
