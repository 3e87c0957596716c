"""Random segmentations of a line, the same for a seed wherever it runs.

SentencePiece can sample too, but what it draws for a seed differs from one
process to the next (observed with 0.2.3), so a resumed run would see other
data than an uninterrupted one. Here the draws come from Python's generator.
"""

import bisect
import functools
import itertools
import math
import random
import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import sentencepiece

# How SentencePiece writes a space.
_SPACE = '\u2581'
_WORDS = re.compile(f'{_SPACE}[^{_SPACE}]*|[^{_SPACE}]+')
# SentencePiece's own value: log P of an unknown character is this much below
# that of the least probable piece.
_UNKNOWN_PENALTY = 10.0
# This number of lattices is kept, of words of at most this number of
# characters; about 80 MB.
_CACHED_WORDS = 1 << 15
_CACHED_LENGTH = 16


class SubwordSampler:
  """Sampler of segmentations under a SentencePiece model."""

  def __init__(self, processor: sentencepiece.SentencePieceProcessor):
    """Read the pieces of a model."""
    self._processor = processor
    ids = range(processor.get_piece_size())
    special = (
      processor.is_control,
      processor.is_unknown,
      processor.is_unused,
      processor.is_byte,
    )
    self._ids = {
      processor.id_to_piece(each): each
      for each in ids
      if not any(holds(each) for holds in special)
    }
    self._scores = {
      piece: processor.get_score(each) for piece, each in self._ids.items()
    }
    self._longest = max(map(len, self._ids), default=1)
    # If no piece spans a space, the words of a line are independent.
    self._by_word = not any(_SPACE in piece[1:] for piece in self._ids)
    least = min(self._scores.values(), default=0.0)
    self._unknown_score = least - _UNKNOWN_PENALTY
    self._byte_ids = [
      processor.piece_to_id(f'<0x{byte:02X}>') for byte in range(256)
    ]
    self._has_bytes = all(map(processor.is_byte, self._byte_ids))
    self._cached = functools.lru_cache(_CACHED_WORDS)(self._lattice)

  def sample_unigram(self, text: str, alpha: float, seed: int) -> list[int]:
    """Draw a segmentation x with probability proportional to P(x)^alpha.

    Kudo (2018), section 3.2, over all segmentations (l unbounded): forward
    filtering, backward sampling.
    """
    return self._sample(text, seed, functools.partial(self._path, alpha))

  def sample_bpe(self, text: str, alpha: float, seed: int) -> list[int]:
    """Merge characters, leaving out each possible merge at random.

    Provilkov et al. (2020), Algorithm 1.
    """
    return self._sample(text, seed, functools.partial(self._merged, alpha))

  def _sample(
    self,
    text: str,
    seed: int,
    segment: Callable[[str, random.Random], Iterable[str]],
  ) -> list[int]:
    generator = random.Random(seed)
    text = self._processor.normalize(text)
    words = _WORDS.findall(text) if self._by_word else [text]
    pieces = (piece for word in words for piece in segment(word, generator))
    return list(self._with_unknowns(pieces))

  def _path(
    self, alpha: float, word: str, generator: random.Random
  ) -> list[str]:
    short = len(word) <= _CACHED_LENGTH
    lattice = (self._cached if short else self._lattice)(word, alpha)
    pieces, end = [], len(word)
    while end:
      arcs = lattice[end]
      drawn = bisect.bisect(arcs.cumulative, generator.random())
      start = arcs.starts[min(drawn, len(arcs.starts) - 1)]
      pieces.append(word[start:end])
      end = start
    return pieces[::-1]

  def _lattice(self, word: str, alpha: float) -> list['_Arcs']:
    """List, for each position, where the piece that ends there may begin."""
    lattice = [_Arcs([], [])]
    log_totals = [0.0]
    for end in range(1, len(word) + 1):
      starts, weights = [], []
      for start in range(max(0, end - self._longest), end):
        score = self._scores.get(word[start:end])
        if score is None and end - start == 1:
          score = self._unknown_score
        if score is not None:
          starts.append(start)
          weights.append(log_totals[start] + alpha * score)
      largest = max(weights)
      masses = [math.exp(weight - largest) for weight in weights]
      total = math.fsum(masses)
      log_totals.append(largest + math.log(total))
      shares = (mass / total for mass in masses)
      lattice.append(_Arcs(starts, list(itertools.accumulate(shares))))
    return lattice

  def _merged(
    self, alpha: float, word: str, generator: random.Random
  ) -> list[str]:
    pieces = list(word)
    while True:
      joined = map(''.join, itertools.pairwise(pieces))
      # The score of a BPE piece is its negative rank among the merges.
      merges = [
        (-self._scores[piece], position, piece)
        for position, piece in enumerate(joined)
        if piece in self._scores and generator.random() >= alpha
      ]
      if not merges:
        return pieces
      _, position, piece = min(merges)
      pieces[position : position + 2] = [piece]

  def _with_unknowns(self, pieces: Iterable[str]) -> Iterator[int]:
    """Yield ids; unknown characters give their bytes or one symbol a run."""
    unknown = self._processor.unk_id()
    previous = -1
    for piece in pieces:
      each = self._ids.get(piece, unknown)
      if each == unknown and self._has_bytes:
        yield from (self._byte_ids[byte] for byte in piece.encode())
      elif each != unknown or previous != unknown:
        yield each
      previous = each


class _Arcs(NamedTuple):
  """Pieces that may end at one position of a word.

  Attributes:
    starts: Where each piece begins.
    cumulative: Cumulative probabilities of the pieces.
  """

  starts: list[int]
  cumulative: list[float]
