"""Encoding of pairs of lines as ids, plain or in a random segmentation.

Chunks of pairs are encoded in any process.
"""

import dataclasses
import hashlib
import itertools
import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int32

from fusion_jax.config import FilterConfig
from fusion_jax.data import filtering, records
from fusion_jax.data.records import Example, serialised
from fusion_jax.data.tokenizer import Tokenizer, normalised

SOURCE, TARGET = 0, 1

# Segmentations drawn to find out how long a line may become.
_MEASURED_DRAWS = 3
# Draws of a segmentation before the plain one is used.
_DRAWS = 4


@dataclasses.dataclass(frozen=True)
class PairEncoder:
  """Tokenizers of the two sides and their sampling.

  Attributes:
    tokenizers: Tokenizers of source and target.
    alphas: `alpha` of `Tokenizer.sample` for source and target; 0 means no
      sampling.
  """

  tokenizers: tuple[Tokenizer, Tokenizer]
  alphas: tuple[float, float] = (0.0, 0.0)

  def encode(self, texts: tuple[str, str]) -> Example:
    """Return the plain segmentation of both lines."""
    return Example(*(self._plain(texts[side], side) for side in (0, 1)))

  def encode_pairs(self, pairs: Sequence[tuple[str, str]]) -> list[Example]:
    """Encode many pairs at once; see `encode`."""
    sides = []
    for lines, tokenizer in zip(
      zip(*pairs, strict=True), self.tokenizers, strict=True
    ):
      end = [tokenizer.vocabulary.end]
      sides.append(
        [np.array(ids + end, np.int32) for ids in tokenizer.encode_lines(lines)]
      )
    return [Example(*both) for both in zip(*sides, strict=True)]

  def unknown(self, examples: Sequence[Example]) -> Int32[np.ndarray, 'N 2']:
    """Return the numbers of unknown source and target subwords of examples."""
    counts = []
    for ids, tokenizer in zip(
      zip(*examples, strict=True), self.tokenizers, strict=True
    ):
      # No line is without its end symbol, so that all begin somewhere else.
      begins = np.cumsum([0, *map(len, ids[:-1])])
      unknown = np.concatenate(ids) == tokenizer.vocabulary.unknown
      counts.append(np.add.reduceat(unknown, begins, dtype=np.int32))
    return np.stack(counts, axis=1)

  def sample(
    self,
    texts: tuple[str, str],
    seed: tuple[int, int],
    max_lengths: tuple[int, int],
  ) -> Example:
    """Draw a random segmentation of both lines that is not too long."""
    ids = []
    for side in (SOURCE, TARGET):
      draws = (self._draw(texts[side], side, seed, k) for k in range(_DRAWS))
      fitting = (draw for draw in draws if len(draw) <= max_lengths[side])
      drawn = next(fitting, None) if self.alphas[side] else None
      ids.append(self._plain(texts[side], side) if drawn is None else drawn)
    return Example(*ids)

  def longest(
    self, texts: tuple[str, str], plain: Sequence[int], seed: tuple[int, int]
  ) -> tuple[int, int]:
    """Return the lengths to expect of a pair whose segmentation is sampled."""
    lengths = []
    for side in (SOURCE, TARGET):
      draws = range(_MEASURED_DRAWS if self.alphas[side] else 0)
      drawn = [len(self._draw(texts[side], side, seed, k)) for k in draws]
      lengths.append(max([plain[side], *drawn]))
    return lengths[SOURCE], lengths[TARGET]

  def _plain(self, text: str, side: int) -> Int32[np.ndarray, 'S']:
    tokenizer = self.tokenizers[side]
    ids = tokenizer.encode(text)
    return np.array([*ids, tokenizer.vocabulary.end], np.int32)

  def _draw(
    self, text: str, side: int, seed: tuple[int, int], draw: int
  ) -> Int32[np.ndarray, 'S']:
    tokenizer = self.tokenizers[side]
    ids = tokenizer.sample(text, self.alphas[side], _mixed(*seed, side, draw))
    return np.array([*ids, tokenizer.vocabulary.end], np.int32)


def _mixed(first: int, second: int, side: int, draw: int) -> int:
  """Return a 32-bit seed for one draw, unrelated to those of other draws."""
  packed = struct.pack('<QQBB', first % 2**64, second % 2**64, side, draw)
  return int.from_bytes(hashlib.blake2b(packed, digest_size=4).digest())


_NO_IDS = Example(records.NO_IDS, records.NO_IDS)
_NO_TEXTS = ('', '')


class RawChunk(NamedTuple):
  """Consecutive pairs of a direction."""

  direction: str
  pairs: list[tuple[str, str]]


class EncodedChunk(NamedTuple):
  """Pairs that are encoded; every field has an entry for each of them.

  Attributes:
    records: Serialised records.
    lengths: Source and target lengths in subwords.
    unknown: Numbers of unknown source and target subwords.
    reasons: Why a pair is dropped; None if it is kept.
    keys: Hashes of the texts, if repetitions are to be dropped.
  """

  records: list[bytes]
  lengths: Int32[np.ndarray, 'N 2']
  unknown: Int32[np.ndarray, 'N 2']
  reasons: list[str | None]
  keys: list[int]

  @property
  def usable(self) -> Bool[np.ndarray, 'N']:
    """Which pairs are kept."""
    return np.array([reason is None for reason in self.reasons])


class KeptChunk(NamedTuple):
  """Pairs that are kept: direction, row of the first, records and lengths."""

  direction: str
  row: int
  records: list[bytes]
  lengths: Int32[np.ndarray, 'N 2']


@dataclasses.dataclass(frozen=True)
class ChunkEncoder:
  """Encoder of chunks of any direction.

  Attributes:
    encoders: Encoder of each direction, by its name.
    limits: Which training pairs are dropped.
  """

  encoders: Mapping[str, PairEncoder]
  limits: FilterConfig

  def train(self, chunk: RawChunk) -> EncodedChunk:
    """Encode training pairs; those that are sampled are stored as text."""
    encoder = self.encoders[chunk.direction]
    texts = list(map(normalised, chunk.pairs))
    examples = encoder.encode_pairs(texts)
    lengths = _lengths(examples)
    stored = (
      [(_NO_IDS, pair) for pair in texts]
      if any(encoder.alphas)
      else [(ids, _NO_TEXTS) for ids in examples]
    )
    return EncodedChunk(
      list(itertools.starmap(serialised, stored)),
      lengths,
      encoder.unknown(examples),
      [
        filtering.reason(pair, both, self.limits)
        for pair, both in zip(texts, lengths.tolist(), strict=True)
      ],
      list(map(filtering.key, texts)) if self.limits.drop_duplicates else [],
    )

  def held_out(self, chunk: RawChunk) -> EncodedChunk:
    """Encode pairs of 'valid' or 'test', which keep their text as it stands."""
    encoder = self.encoders[chunk.direction]
    texts = list(map(normalised, chunk.pairs))
    examples = encoder.encode_pairs(texts)
    lengths = _lengths(examples)
    return EncodedChunk(
      list(map(serialised, examples, chunk.pairs)),
      lengths,
      encoder.unknown(examples),
      [
        filtering.unusable(pair, both, self.limits.max_length)
        for pair, both in zip(texts, lengths.tolist(), strict=True)
      ],
      [],
    )

  def longest(self, chunk: KeptChunk) -> KeptChunk:
    """Return sampled pairs with the lengths to expect."""
    encoder = self.encoders[chunk.direction]
    longest = [
      encoder.longest(records.texts(record), plain, (row, 0))
      for row, (record, plain) in enumerate(
        zip(chunk.records, chunk.lengths.tolist(), strict=True), chunk.row
      )
    ]
    lengths = np.array(longest, np.int32).reshape(-1, 2)
    return chunk._replace(lengths=np.minimum(lengths, self.limits.max_length))


def _lengths(examples: Sequence[Example]) -> Int32[np.ndarray, 'N 2']:
  return np.array([(len(s), len(t)) for s, t in examples], np.int32)
