"""Filter of training pairs, with the reason why each is dropped."""

import hashlib
from collections.abc import Sequence

from fusion_jax.config import FilterConfig

EMPTY = 'empty'
TOO_LONG = 'too long'
LENGTH_RATIO = 'length ratio'
DUPLICATE = 'duplicate'
REASONS = (EMPTY, TOO_LONG, LENGTH_RATIO, DUPLICATE)

# Pairs with no side longer than this are not tested for their length ratio: a
# name or an exclamation may well be three times as long in translation.
_RATIO_FREE_LENGTH = 10


class Repetitions:
  """Filter of pairs that are kept already.

  It holds an eight-byte hash of every pair that is kept. This is the only part
  of preparing a corpus whose memory grows with the corpus, by about 100 bytes
  per pair.
  """

  def __init__(self):
    """Start with no pair seen."""
    self._seen: set[int] = set()

  def mark(self, reasons: list[str | None], keys: Sequence[int]) -> None:
    """Replace None by DUPLICATE where a pair repeats one that was kept."""
    for number, key in enumerate(keys):
      if reasons[number] is None:
        if key in self._seen:
          reasons[number] = DUPLICATE
        self._seen.add(key)


def key(texts: tuple[str, str]) -> int:
  """Return the hash of a pair of lines."""
  joined = '\n'.join(texts).encode()
  digest = hashlib.blake2b(joined, digest_size=8).digest()
  return int.from_bytes(digest, 'little')


def reason(
  texts: tuple[str, str], lengths: Sequence[int], config: FilterConfig
) -> str | None:
  """Return the reason why a pair is dropped, whatever the others are."""
  return unusable(texts, lengths, config.max_length) or _disproportion(
    lengths, config.max_length_ratio
  )


def unusable(
  texts: tuple[str, str], lengths: Sequence[int], max_length: int
) -> str | None:
  """Return EMPTY or TOO_LONG if a pair cannot be an example, else None."""
  if not all(texts):
    return EMPTY
  return TOO_LONG if max(lengths) > max_length else None


def _disproportion(lengths: Sequence[int], largest_ratio: float) -> str | None:
  shorter, longer = sorted(lengths)
  if largest_ratio == 0 or longer <= _RATIO_FREE_LENGTH:
    return None
  return LENGTH_RATIO if longer > largest_ratio * shorter else None
