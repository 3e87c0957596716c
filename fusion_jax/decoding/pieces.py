"""Cuts a line that is too long to translate at once."""

import re
from collections.abc import Callable, Iterator

from fusion_jax.evaluation.metrics import language_of

# The end of a sentence or clause, with the brackets and quotation marks that
# close there. Chinese and Japanese put no space after it.
_SENTENCE_END = re.compile(
  r'[.!?;:…][\'")\]}’”»]*\s+|[。！？；：][\'")\]}’”」』）》]*\s*'
)
_UNSPACED = ('ja', 'zh')


def split_line(line: str, fits: Callable[[str], bool]) -> Iterator[str]:
  """Cuts a line into pieces that fit, as few as the rules allow.

  A cut is made after the last end of a sentence in the second half of what
  fits, else at the last space, else anywhere.

  Args:
    line: normalised text.
    fits: whether a piece is short enough. What fits must still fit when it
      is made shorter, more or less.

  Yields:
    The pieces, without white space at their ends. A single character is a
    piece even where it does not fit.
  """
  while line and not fits(line):
    end = _longest_prefix(line, fits)
    end = _sentence_end(line[:end]) or _last_space(line, end) or end
    yield line[:end].rstrip()
    line = line[end:].lstrip()
  if line:
    yield line


def joiner(language: str) -> str:
  """What stands between the translations of two pieces."""
  return '' if language_of(language) in _UNSPACED else ' '


def _longest_prefix(line: str, fits: Callable[[str], bool]) -> int:
  """Characters of a prefix that fits, at least 1.

  Doubling, then bisection: the cost does not grow with what follows.
  """
  high = 2
  while high < len(line) and fits(line[:high]):
    high *= 2
  low, high = max(high // 2, 1), min(high, len(line))
  while high - low > 1:
    middle = (low + high) // 2
    if fits(line[:middle]):
      low = middle
    else:
      high = middle
  return low


def _sentence_end(prefix: str) -> int | None:
  ends = [match.end() for match in _SENTENCE_END.finditer(prefix)]
  return ends[-1] if ends and ends[-1] >= len(prefix) // 2 else None


def _last_space(line: str, end: int) -> int | None:
  """Where the last word that is whole in line[:end] ends."""
  space = line.rfind(' ', 1, end + 1)
  return space if space > 0 else None
