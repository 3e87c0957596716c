"""Splitting of a line that is too long to translate at once."""

import re
from collections.abc import Callable, Iterator

# End of a sentence or clause, with the closing brackets and quotation marks.
# Chinese and Japanese put no space after it.
_SENTENCE_END = re.compile(
  r'[.!?;:…][\'")\]}’”»]*\s+|[。！？；：][\'")\]}’”」』）》]*\s*'
)
# Number of characters that are tried at once.
_SHORT = 4_096


def split_line(line: str, fits: Callable[[str], bool]) -> Iterator[str]:
  """Cut a line into pieces that fit, as few as the rules allow.

  A cut is made after the last end of a sentence in the second half of what
  fits, else at the last space, else anywhere. The time grows with the length of
  the line, not with its square.
  """
  start = 0
  while start < len(line):
    size = _longest_prefix(line, start, fits)
    if start + size < len(line):
      prefix = line[start : start + size]
      size = _sentence_end(prefix) or _last_space(line, start, size) or size
    yield line[start : start + size].strip()
    start += size
    while line[start : start + 1].isspace():
      start += 1


def _longest_prefix(line: str, start: int, fits: Callable[[str], bool]) -> int:
  """Return the number of characters from `start` on that fit, at least 1.

  A short line is tried as a whole. Otherwise the size is doubled and then
  bisected, so that the cost does not depend on the text that follows.
  """
  left = len(line) - start
  if left <= _SHORT and fits(line[start:]):
    return left
  high = 2
  while high < left and fits(line[start : start + high]):
    high *= 2
  low, high = max(high // 2, 1), min(high, left)
  if high == left > _SHORT and fits(line[start:]):
    return left
  while high - low > 1:
    middle = (low + high) // 2
    if fits(line[start : start + middle]):
      low = middle
    else:
      high = middle
  return low


def _sentence_end(prefix: str) -> int | None:
  ends = [match.end() for match in _SENTENCE_END.finditer(prefix)]
  return ends[-1] if ends and ends[-1] >= len(prefix) // 2 else None


def _last_space(line: str, start: int, size: int) -> int | None:
  """Return the number of characters of the whole words within `size`."""
  space = line.rfind(' ', start + 1, start + size + 1)
  return space - start if space > 0 else None
