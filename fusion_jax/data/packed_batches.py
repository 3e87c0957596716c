"""Batches of packed rows: the examples that share a row, and their arrays.

Axis letters: B rows of a batch, K largest number of examples in one of its
rows, S source and T target positions, N examples and R rows of the corpus.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int, Int32, UInt64

from fusion_jax.data.batching import (
  Batch,
  EpochPlan,
  Example,
  Shape,
  TrainingPlan,
)
from fusion_jax.data.packing import pack

# Random bits of a 64-bit key, which order the examples of the same lengths.
_RANDOM_BITS = 32


class PackedEpoch(NamedTuple):
  """Batches of one epoch of packed rows.

  Attributes:
    rows: Rows of each batch, in the order of the batches.
    places: Examples of each row, row by row, in the same order.
    starts: Row r of that order holds `places[starts[r] : starts[r + 1]]`.
  """

  rows: EpochPlan
  places: Int32[np.ndarray, ' N']
  starts: Int[np.ndarray, ' R+1']

  @property
  def batches(self) -> int:
    return self.rows.batches

  def batch(self, index: int) -> tuple[Shape, Int32[np.ndarray, 'B K']]:
    """Return the shape of a batch and the examples of its rows."""
    shape = self.rows.shapes[0]
    first, last = self.rows.starts[index], self.rows.starts[index + 1]
    starts = self.starts[first : last + 1]
    counts = np.zeros(shape.rows, np.int64)
    counts[: last - first] = np.diff(starts)
    examples = np.full((shape.rows, counts.max()), -1, np.int32)
    taken: Bool[np.ndarray, 'B K'] = np.arange(counts.max()) < counts[:, None]
    examples[taken] = self.places[starts[0] : starts[-1]]
    return shape, examples

  def slots(self) -> int:
    """Count all slots of the epoch's batches, padding rows included."""
    return self.rows.slots()


class PackedPlan(TrainingPlan):
  """Plan of all packed batches, a function of seed and step.

  The lengths in every row are the same in all epochs. An epoch puts random
  examples of just these lengths into the rows, and shuffles the rows.
  """

  def __init__(
    self, lengths: Int32[np.ndarray, 'N 2'], shape: Shape, seed: int
  ):
    rows = pack(np.asarray(lengths), shape.source, shape.target)
    self._row_starts = rows.starts
    self._cells = _cells(np.asarray(lengths), shape) << _RANDOM_BITS
    self._by_cell = np.argsort(_cells(rows.lengths, shape), kind='stable')
    totals = np.add.reduceat(rows.lengths, rows.starts[:-1], axis=0)
    super().__init__(totals.astype(np.int32), (shape,), seed)

  def _shuffled(self, epoch: int) -> PackedEpoch:
    rows = self._shuffled_rows(epoch)
    entropy = np.random.SeedSequence((self._seed, epoch), spawn_key=(2,))
    bits = np.random.Philox(entropy).random_raw(len(self._cells))
    keys: UInt64[np.ndarray, ' N'] = self._cells | (bits >> (64 - _RANDOM_BITS))
    places = np.empty(len(keys), np.int32)
    places[self._by_cell] = np.argsort(keys, kind='stable')
    sizes = np.diff(self._row_starts)[rows.order]
    starts = np.concatenate([[0], np.cumsum(sizes)])
    # A place of the new order stood at place - new start + old start.
    moved = np.repeat(self._row_starts[rows.order] - starts[:-1], sizes)
    return PackedEpoch(rows, places[np.arange(len(places)) + moved], starts)


def assemble_packed(
  examples: Sequence[Example], counts: Int[np.ndarray, ' B'], shape: Shape
) -> Batch:
  """Put examples side by side into rows, padded with 0."""
  row = np.repeat(np.arange(len(counts)), counts)
  number = np.arange(len(row)) - (np.cumsum(counts) - counts)[row] + 1
  sources, source_lengths, source_segments = _side_by_side(
    [example.source for example in examples], row, number, shape.source, shape
  )
  targets, target_lengths, target_segments = _side_by_side(
    [example.target for example in examples], row, number, shape.target, shape
  )
  return Batch(
    sources,
    targets,
    source_lengths,
    target_lengths,
    source_segments,
    target_segments,
  )


def packing_table(lengths: Int32[np.ndarray, 'N 2'], plan: PackedEpoch) -> str:
  """Format the packed shape as a table for the log."""
  shape, batches = plan.rows.shapes[0], plan.batches
  sides = np.array([shape.source, shape.target]) * shape.rows * batches
  tokens = np.asarray(lengths).sum(axis=0, dtype=np.int64)
  shares = (*(tokens / sides), tokens.sum() / sides.sum())
  pairs = len(plan.places) / (len(plan.starts) - 1)
  names = 'rows', 'source', 'target', 'batches', 'pairs a row'
  heads = (*names, 'source real', 'target real', 'real tokens')
  return '\n'.join(
    (
      ''.join(f'{head:>13}' for head in heads),
      ''.join(f'{size:>13,}' for size in (*shape, batches))
      + f'{pairs:>13.1f}'
      + ''.join(f'{share:>13.1%}' for share in shares),
    )
  )


def _cells(
  lengths: Int32[np.ndarray, 'N 2'], shape: Shape
) -> UInt64[np.ndarray, ' N']:
  """Map each pair of lengths to one number."""
  source, target = lengths.astype(np.uint64).T
  return source * np.uint64(shape.target + 1) + target


def _side_by_side(
  sentences: Sequence[Int32[np.ndarray, ' _']],
  row: Int[np.ndarray, ' M'],
  number: Int[np.ndarray, ' M'],
  width: int,
  shape: Shape,
) -> tuple[
  Int32[np.ndarray, 'B L'], Int32[np.ndarray, ' B'], Int32[np.ndarray, 'B L']
]:
  """Return the ids, the lengths of the rows and the segments of one side."""
  sizes = np.array([len(sentence) for sentence in sentences], np.int64)
  lengths = np.bincount(row, sizes, shape.rows).astype(np.int32)
  assert lengths.max() <= width, f'{lengths.max()} ids for {width}'
  ids, segments = np.zeros((2, shape.rows, width), np.int32)
  kept: Bool[np.ndarray, 'B L'] = np.arange(width) < lengths[:, None]
  if sentences:
    ids[kept] = np.concatenate(sentences)
    segments[kept] = np.repeat(number, sizes)
  return ids, lengths, segments
