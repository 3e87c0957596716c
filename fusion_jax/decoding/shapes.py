"""The bounded set of batch shapes that decoding compiles, and how it is filled.

Sentences are taken longest first, so that a batch holds sentences of similar
length and only the last batch of a window is not full.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from fusion_jax.config import DecodingConfig

# Divisor of the rows for batches that are not full: a quarter of the full ones,
# a quarter of that and so on. Every shape costs a compilation.
_ROW_STEP = 4


class DecodeShape(NamedTuple):
  """Sentences, source positions and target positions of a batch."""

  rows: int
  source: int
  target: int


class PlannedBatch(NamedTuple):
  """Shape of a batch and the sentences that fill it, at most shape.rows."""

  shape: DecodeShape
  sentences: list[int]


def target_limit(
  source_length: int, options: DecodingConfig, longest: int | None = None
) -> int:
  """Return the largest number of subwords of a translation.

  It counts the end symbol and depends on the sentence alone, never on the
  batch it is in.
  """
  # 1.1 * 10 is 11.000000000000002: rounding first keeps its ceiling 11.
  scaled = math.ceil(round(options.max_length_ratio * source_length, 6))
  limit = scaled + options.max_length_extra
  return limit if longest is None else min(limit, longest)


def shortest_target(source_length: int, options: DecodingConfig) -> int:
  """Return the smallest number of subwords of a translation, end included."""
  scaled = math.ceil(round(options.min_length_ratio * source_length, 6))
  return max(scaled + options.min_length_extra, 1)


def decode_shapes(
  options: DecodingConfig, longest: int | None = None
) -> tuple[DecodeShape, ...]:
  """Return every shape that decoding with these options can compile.

  Source lengths are 8, 16, 24, 32, 48, 64, 96, ... up to
  options.max_source_length. Full batches have the largest power of two of rows
  that options.batch_tokens allows; smaller ones have a quarter of that, a
  sixteenth and so on, down to 1.
  """
  shapes = []
  for source in _source_lengths(options.max_source_length):
    target = target_limit(source, options, longest)
    slots = options.batch_tokens // (options.beam_size * source)
    rows = 2 ** max(slots.bit_length() - 1, 0)
    ladder = {1, rows}
    while rows > 1:
      rows = max(rows // _ROW_STEP, 1)
      ladder.add(rows)
    shapes += [DecodeShape(rows, source, target) for rows in sorted(ladder)]
  return tuple(shapes)


def plan_batches(
  lengths: Sequence[int], shapes: Sequence[DecodeShape]
) -> Iterator[PlannedBatch]:
  """Put sentences into batches, longest first."""
  rows_of = {
    source: list(group)
    for source, group in itertools.groupby(shapes, lambda each: each.source)
  }
  order = np.argsort(-np.asarray(lengths, np.int64), kind='stable').tolist()
  while order:
    source = min(each for each in rows_of if each >= lengths[order[0]])
    sentences = order[: rows_of[source][-1].rows]
    order = order[len(sentences) :]
    yield PlannedBatch(
      next(s for s in rows_of[source] if s.rows >= len(sentences)), sentences
    )


def shard_batches(
  batches: Iterable[PlannedBatch], processes: int, process: int
) -> Iterator[PlannedBatch]:
  """Yield the batches of one process.

  A program on the devices of several processes must be started by all of them,
  so each process gets the same shapes in the same order.
  """
  for shape, group in itertools.groupby(batches, lambda each: each.shape):
    same = list(group)
    for first in range(0, len(same), processes):
      own = same[first : first + processes][process : process + 1]
      yield from own or [PlannedBatch(shape, [])]


def _source_lengths(longest: int) -> list[int]:
  lengths = [8]
  while lengths[-1] < longest:
    # 16, 24, 32, 48, 64, 96, ...: powers of two and their midpoints.
    power = 2 ** (lengths[-1].bit_length() - 1)
    middle = power + power // 2
    lengths.append(middle if 16 <= lengths[-1] < middle else 2 * power)
  return [*lengths[:-1], longest]
