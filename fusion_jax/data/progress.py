"""A log line every few seconds: how far, how fast, how long still."""

import logging
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

logger = logging.getLogger(__name__)

_SECONDS_BETWEEN_LINES = 3.0
_ItemT = TypeVar('_ItemT')


def with_progress(
  items: Iterable[_ItemT], what: str, total: int
) -> Iterator[_ItemT]:
  """Passes items on and logs the rate and the time that is left.

  Args:
    items: anything iterable.
    what: names the work, 'encoding train' for example.
    total: the number of items, for the time that is left.

  Yields:
    The items.
  """
  begin = last = time.monotonic()
  done = 0
  for done, item in enumerate(items, start=1):
    yield item
    # Asking for the time costs as much as reading a line.
    if done % 256 == 0 and time.monotonic() - last > _SECONDS_BETWEEN_LINES:
      last = time.monotonic()
      logger.info('%s: %s', what, _state(done, total, last - begin))
  seconds = time.monotonic() - begin
  logger.info('%s: %s pairs in %.1f s', what, f'{done:,}', seconds)


def _state(done: int, total: int, seconds: float) -> str:
  rate = done / seconds
  return (
    f'{done:,} of {total:,} pairs ({done / max(total, 1):.0%}), '
    f'{rate:,.0f} pairs/s, {max(total - done, 0) / rate:,.0f} s left'
  )
