"""Filter of training pairs, with the reason why each is dropped."""

import hashlib

from fusion_jax.config import FilterConfig

EMPTY = 'empty'
TOO_LONG = 'too long'
LENGTH_RATIO = 'length ratio'
DUPLICATE = 'duplicate'
REASONS = (EMPTY, TOO_LONG, LENGTH_RATIO, DUPLICATE)

# Pairs with no side longer than this are not tested for their length ratio: a
# name or an exclamation may well be three times as long in translation.
_RATIO_FREE_LENGTH = 10


class PairFilter:
  """Filter of training pairs that remembers the pairs it has kept.

  With `drop_duplicates` it holds an eight-byte hash of every pair it keeps.
  This is the only part of preparing a corpus whose memory grows with the
  corpus, by about 100 bytes per pair.
  """

  def __init__(self, config: FilterConfig):
    """Start with no pair seen."""
    self._config = config
    self._seen: set[int] = set()

  def reason(
    self, texts: tuple[str, str], lengths: tuple[int, int]
  ) -> str | None:
    """Return the reason why a pair is dropped."""
    return (
      unusable(texts, lengths, self._config.max_length)
      or self._disproportion(lengths)
      or self._repetition(texts)
    )

  def _disproportion(self, lengths: tuple[int, int]) -> str | None:
    largest_ratio = self._config.max_length_ratio
    shorter, longer = sorted(lengths)
    if largest_ratio == 0 or longer <= _RATIO_FREE_LENGTH:
      return None
    return LENGTH_RATIO if longer > largest_ratio * shorter else None

  def _repetition(self, texts: tuple[str, str]) -> str | None:
    if not self._config.drop_duplicates:
      return None
    joined = '\n'.join(texts).encode()
    digest = hashlib.blake2b(joined, digest_size=8).digest()
    key = int.from_bytes(digest, 'little')
    if key in self._seen:
      return DUPLICATE
    self._seen.add(key)
    return None


def unusable(
  texts: tuple[str, str], lengths: tuple[int, int], max_length: int
) -> str | None:
  """Return EMPTY or TOO_LONG if a pair cannot be an example, else None."""
  if not all(texts):
    return EMPTY
  return TOO_LONG if max(lengths) > max_length else None
