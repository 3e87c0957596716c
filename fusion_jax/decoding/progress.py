"""Tells on stderr how far a long translation is."""

import logging
import time

logger = logging.getLogger(__name__)

_SECONDS_BETWEEN_LINES = 5.0


class Progress:
  """Counts sentences; logs their number, their rate and the time left."""

  def __init__(self, total: int | None):
    """Starts the clock.

    Args:
      total: sentences to come, if known.
    """
    self._total = total
    self._done = 0
    self._start = self._last = time.monotonic()

  def add(self, sentences: int) -> None:
    """Counts, and logs if the last line is some seconds old."""
    self._done += sentences
    now = time.monotonic()
    if now - self._last >= _SECONDS_BETWEEN_LINES:
      self._last = now
      logger.info('%s', self._state(now - self._start))

  def finish(self) -> None:
    """Logs the whole."""
    seconds = time.monotonic() - self._start
    logger.info('%s in %.1f s', self._state(seconds), seconds)

  def _state(self, seconds: float) -> str:
    rate = self._done / max(seconds, 1e-9)
    state = f'{self._done:,} sentences, {rate:,.1f} sentences/s'
    left = (self._total or 0) - self._done
    return f'{state}, {left / rate:,.0f} s left' if left > 0 < rate else state
