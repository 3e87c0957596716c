"""Chunks of text that are encoded, in any process."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int32

from fusion_jax.config import FilterConfig
from fusion_jax.data import filtering, records
from fusion_jax.data.encoding import PairEncoder
from fusion_jax.data.normalise import normalised
from fusion_jax.data.records import Example, serialised

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
