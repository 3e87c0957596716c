"""Encoding of pairs of lines as records of ids, plain or randomly segmented.

A record is a `tf.train.Example` of four byte strings, as TFDS writes them.
Ids are little-endian int32, so that reading is a view of the bytes and takes
two microseconds. A feature that a split does not use is empty.

Chunks of pairs are encoded in any process, which also says why a training pair
is dropped.
"""

import dataclasses
import hashlib
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow_datasets as tfds
from jaxtyping import Bool, Int32
from tensorflow_datasets.proto import tf_example_pb2

from fusion_jax.config import FilterConfig
from fusion_jax.data.tokenizer import Tokenizer, normalised

EMPTY = 'empty'
TOO_LONG = 'too long'
LENGTH_RATIO = 'length ratio'
DUPLICATE = 'duplicate'
REASONS = (EMPTY, TOO_LONG, LENGTH_RATIO, DUPLICATE)

# Pairs with no side longer than this are not tested for their length ratio: a
# name or an exclamation may well be three times as long in translation.
_RATIO_FREE_LENGTH = 10
# Segmentations drawn to find out how long a line may become.
_MEASURED_DRAWS = 3
# Draws of a segmentation before the plain one is used.
_DRAWS = 4

Texts = tuple[str, str]


class Example(NamedTuple):
  """Ids of a pair, each side ending in the end symbol; no start symbol."""

  source: Int32[np.ndarray, 'S']
  target: Int32[np.ndarray, 'T']


_NO_IDS = Example(np.zeros([0], np.int32), np.zeros([0], np.int32))


def features() -> tfds.features.FeaturesDict:
  ids = tfds.features.Tensor(shape=(None,), dtype=np.int32, encoding='bytes')
  text = tfds.features.Text()
  return tfds.features.FeaturesDict(
    {'source': ids, 'target': ids, 'source_text': text, 'target_text': text}
  )


def serialised(ids: Example = _NO_IDS, texts: Texts = ('', '')) -> bytes:
  """Write `features` as TFDS does, in a sixth of its time."""
  record = tf_example_pb2.Example()
  fields = record.features.feature
  for name, side, text in zip(('source', 'target'), ids, texts, strict=True):
    fields[name].bytes_list.value.append(side.tobytes())
    fields[f'{name}_text'].bytes_list.value.append(text.encode())
  # Its fields are sorted: the same pair is the same record everywhere.
  return record.SerializeToString(deterministic=True)


def ids_of(record: bytes) -> Example:
  """Return the ids of a serialised record; empty if it holds text alone."""
  source, target = _values(record, 'source', 'target')
  return Example(
    np.frombuffer(source, np.int32), np.frombuffer(target, np.int32)
  )


def texts_of(record: bytes) -> Texts:
  """Return the source and target line of a record; empty if it has none."""
  source, target = _values(record, 'source_text', 'target_text')
  return source.decode(), target.decode()


def _values(record: bytes, *names: str) -> list[bytes]:
  fields = tf_example_pb2.Example.FromString(record).features.feature
  return [fields[name].bytes_list.value[0] for name in names]


@dataclasses.dataclass(frozen=True)
class PairEncoder:
  """Tokenizers of source and target, and the `alpha` of their sampling."""

  tokenizers: tuple[Tokenizer, Tokenizer]
  alphas: tuple[float, float]  # 0: no sampling.

  def encode(self, pairs: Sequence[Texts]) -> list[Example]:
    """Return the plain segmentations of pairs."""
    sides = enumerate(zip(*pairs, strict=True))
    return list(map(Example, *(self._plain(*side) for side in sides)))

  def _plain(
    self, side: int, lines: Sequence[str]
  ) -> list[Int32[np.ndarray, ' _']]:
    tokenizer = self.tokenizers[side]
    end = [tokenizer.vocabulary.end]
    encoded = tokenizer.encode_lines(lines)
    return [np.array(ids + end, np.int32) for ids in encoded]

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
    self, texts: Texts, seed: tuple[int, int], max_lengths: tuple[int, int]
  ) -> Example:
    """Draw a random segmentation of both lines that is not too long."""
    sides = []
    for side, alpha in enumerate(self.alphas):
      draws = (self._draw(texts, side, seed, k) for k in range(_DRAWS))
      fitting = (ids for ids in draws if len(ids) <= max_lengths[side])
      drawn = next(fitting, None) if alpha else None
      sides += self._plain(side, [texts[side]]) if drawn is None else [drawn]
    return Example(*sides)

  def longest(
    self, texts: Texts, plain: Sequence[int], seed: tuple[int, int]
  ) -> list[int]:
    """Return the lengths to expect of a pair whose segmentation is sampled."""
    lengths = list(plain)
    for side, alpha in enumerate(self.alphas):
      for k in range(_MEASURED_DRAWS if alpha else 0):
        drawn = len(self._draw(texts, side, seed, k))
        lengths[side] = max(lengths[side], drawn)
    return lengths

  def _draw(
    self, texts: Texts, side: int, seed: tuple[int, int], draw: int
  ) -> Int32[np.ndarray, 'S']:
    tokenizer = self.tokenizers[side]
    mixed = _mixed(*seed, side, draw)
    ids = tokenizer.sample(texts[side], self.alphas[side], mixed)
    return np.array([*ids, tokenizer.vocabulary.end], np.int32)


def _mixed(first: int, second: int, side: int, draw: int) -> int:
  """Return a 32-bit seed for one draw, unrelated to those of other draws."""
  packed = struct.pack('<QQBB', first % 2**64, second % 2**64, side, draw)
  return int.from_bytes(hashlib.blake2b(packed, digest_size=4).digest())


class RawChunk(NamedTuple):
  """Consecutive pairs of a direction, for training or held out."""

  direction: str
  train: bool
  pairs: list[Texts]


class EncodedChunk(NamedTuple):
  """Pairs that are encoded; every field has an entry for each of them."""

  records: list[bytes]
  lengths: Int32[np.ndarray, 'N 2']
  unknown: Int32[np.ndarray, 'N 2']
  reasons: list[str | None]  # Why it is dropped; None: it is kept.
  keys: list[bytes]  # Hashes of the texts, if repetitions are dropped.

  @property
  def usable(self) -> Bool[np.ndarray, 'N']:
    return np.array([reason is None for reason in self.reasons])

  def mark_repetitions(self, seen: set[bytes]) -> None:
    """Mark what repeats a pair that is kept, here or seen before."""
    for number, key in enumerate(self.keys):
      if self.reasons[number] is None:
        if key in seen:
          self.reasons[number] = DUPLICATE
        seen.add(key)


class KeptChunk(NamedTuple):
  """Pairs that are kept: direction, row of the first, records and lengths."""

  direction: str
  row: int
  records: list[bytes]
  lengths: Int32[np.ndarray, 'N 2']


@dataclasses.dataclass(frozen=True)
class ChunkEncoder:
  """Encoder of chunks of any direction, and limits of training pairs."""

  encoders: Mapping[str, PairEncoder]
  limits: FilterConfig

  def encode(self, chunk: RawChunk) -> EncodedChunk:
    """Encode pairs; held-out ones keep their text, because that is scored."""
    encoder = self.encoders[chunk.direction]
    texts = list(map(normalised, chunk.pairs))
    examples = encoder.encode(texts)
    lengths = np.array([tuple(map(len, ids)) for ids in examples], np.int32)
    limits = self.limits
    stored: Iterable[bytes]
    if not chunk.train:
      stored = map(serialised, examples, chunk.pairs)
      limits = FilterConfig(max_length=limits.max_length)
    elif any(encoder.alphas):
      stored = (serialised(texts=pair) for pair in texts)
    else:
      stored = map(serialised, examples)
    measured = zip(texts, lengths.tolist(), strict=True)
    return EncodedChunk(
      list(stored),
      lengths,
      encoder.unknown(examples),
      [reason(*pair, limits) for pair in measured],
      list(map(_key, texts)) if limits.drop_duplicates else [],
    )

  def longest(self, chunk: KeptChunk) -> KeptChunk:
    """Return sampled pairs with the lengths to expect."""
    encoder = self.encoders[chunk.direction]
    pairs = zip(chunk.records, chunk.lengths.tolist(), strict=True)
    longest = [
      encoder.longest(texts_of(record), plain, (row, 0))
      for row, (record, plain) in enumerate(pairs, chunk.row)
    ]
    lengths = np.array(longest, np.int32).reshape(-1, 2)
    return chunk._replace(lengths=np.minimum(lengths, self.limits.max_length))


def reason(
  texts: Texts, lengths: Sequence[int], limits: FilterConfig
) -> str | None:
  """Return the reason why a pair is dropped, whatever the others are."""
  shorter, longer = sorted(lengths)
  if not all(texts):
    return EMPTY
  if longer > limits.max_length:
    return TOO_LONG
  ratio = limits.max_length_ratio
  if ratio and longer > max(_RATIO_FREE_LENGTH, ratio * shorter):
    return LENGTH_RATIO
  return None


def _key(texts: Texts) -> bytes:
  return hashlib.blake2b('\n'.join(texts).encode(), digest_size=8).digest()
