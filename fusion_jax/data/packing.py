"""Packing of sentence pairs into rows, and the batches of such rows.

The content of a row is decided on the histogram of lengths, as in Krell et al.
(2021), "Efficient sequence packing without cross-contamination", here with
two lengths for each pair. The cost depends on the number of different lengths,
not on the number of pairs. Axis letters: N pairs, C different pairs of
lengths, R rows, B rows of a batch, K largest number of pairs in one of its
rows, S source and T target positions of a row.
"""

import dataclasses
from typing import NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Bool, Float, Int, Int32, UInt64

from fusion_jax.config import BatchConfig
from fusion_jax.data.batching import (
  EpochPlan,
  Lengths,
  Shape,
  TrainingPlan,
  batch_rows,
  reordered,
  warn_if_larger,
)
from fusion_jax.startup import log_table

_Sizes: TypeAlias = Int[np.ndarray, ' _']
_Room: TypeAlias = Int[np.ndarray, '2']

# A row has room for at least this number of pairs of mean length. With fewer,
# the room left in a row too often has a length that no pair has.
_PAIRS_A_ROW = 4


class Rows(NamedTuple):
  """Row r holds pairs of the lengths `lengths[starts[r] : starts[r + 1]]`."""

  starts: Int[np.ndarray, ' R+1']
  lengths: Lengths


def choose_packed_shape(
  lengths: Lengths, config: BatchConfig, devices: int = 1
) -> Shape:
  """Choose the shape of packed batches.

  Sides in proportion to those of the corpus, with room for the longest pair and
  for four of mean length. Of rows up to half longer, the shortest with which a
  batch of `config.tokens` slots holds nearly the most pairs.
  """
  mean, longest = lengths.mean(axis=0), lengths.max(axis=0)
  least = max((longest / mean).max(), _PAIRS_A_ROW) * mean
  sources, targets = (
    _sides(int(size), config.length_multiple) for size in np.ceil(least)
  )
  shape = _densest(sources, targets, mean, config, devices)
  warn_if_larger(shape, config.tokens)
  return shape


def _densest(
  sources: _Sizes,
  targets: _Sizes,
  mean: Float[np.ndarray, '2'],
  config: BatchConfig,
  devices: int,
) -> Shape:
  """Choose the shape that holds the most pairs of mean length in its slots."""
  source, target = sources[:, None], targets[None]
  rows = batch_rows(source + target, config, devices)
  pairs = rows * np.minimum(source / mean[0], target / mean[1])
  slots = rows * (source + target)
  # A batch with fewer slots than allowed is rated as if it used them all.
  density = pairs / np.maximum(slots, 2 * config.tokens)
  good = density >= 0.99 * density.max()
  place = np.where(good, source + target, np.iinfo(np.int64).max).argmin()
  s, t = np.unravel_index(place, rows.shape)
  return Shape(int(rows[s, t]), int(sources[s]), int(targets[t]))


def _sides(least: int, multiple: int) -> _Sizes:
  """List the lengths that one side of a row may have."""
  first, last = (-(-size // multiple) for size in (least, least + least // 2))
  return np.arange(first, last + 1) * multiple


def pack(lengths: Lengths, source: int, target: int) -> Rows:
  """Pack pairs of given lengths into rows.

  A row starts with the longest pair that is left. It then takes, of the pairs
  that fit, the one with the largest s / S + t / T - |u|, where u is the
  difference that would remain between the free room of the two sides, as
  shares of S and T. Rows of the same lengths are repeated as long as there are
  pairs for them.
  """
  assert (lengths <= (source, target)).all(), 'an example fits no row'
  cells = _Cells(lengths, np.array([source, target]))
  places, sizes, times = [], [], []
  while len(cells.left):
    row = cells.next_row()
    lengths_of_row = cells.lengths[row]
    count = cells.take(row)
    places.append(np.tile(lengths_of_row, (count, 1)))
    sizes.append(len(row))
    times.append(count)
  starts = np.concatenate([[0], np.cumsum(np.repeat(sizes, times))])
  return Rows(starts, np.concatenate(places).astype(np.int32))


class _Cells:
  """Different pairs of lengths that are left, the longest first."""

  def __init__(self, lengths: Lengths, room: _Room):
    """Count the examples by their lengths, for rows of that room."""
    codes = lengths[:, 0].astype(np.int64) * (room[1] + 1) + lengths[:, 1]
    counts = np.bincount(codes)
    used = np.flatnonzero(counts)
    cells = np.stack(np.divmod(used, room[1] + 1), axis=1)
    order = np.argsort(-(cells / room).sum(axis=1), kind='stable')
    self._room = room
    self._keep(cells[order], counts[used[order]])

  def _keep(
    self, lengths: Int[np.ndarray, 'C 2'], left: Int[np.ndarray, ' C']
  ) -> None:
    self.lengths, self.left = lengths, left
    # One array per side: comparing rows of two takes twice as long.
    self._sources, self._targets = lengths.T.copy()
    shares: Float[np.ndarray, 'C 2'] = lengths / self._room
    self._sizes = shares.sum(axis=1)
    self._leanings = shares[:, 0] - shares[:, 1]

  def next_row(self) -> list[int]:
    """Return the cells of a row, in the order in which it takes them."""
    row, left, room = [], self.left.copy(), self._room
    following: int | None = 0
    while following is not None:
      row.append(following)
      left[following] -= 1
      room = room - self.lengths[following]
      following = self._best(room, left)
    return row

  def _best(self, room: _Room, left: Int[np.ndarray, ' C']) -> int | None:
    """Return the cell that a row with that room takes next, if any fits."""
    shares = room / self._room
    first = np.searchsorted(-self._sizes, -shares.sum() - 1e-9)
    fits = self._sources[first:] <= room[0]
    fits &= self._targets[first:] <= room[1]
    fits &= left[first:] > 0
    places = np.flatnonzero(fits) + first
    if not len(places):
      return None
    leaning = shares[0] - shares[1] - self._leanings[places]
    return int(places[(self._sizes[places] - np.abs(leaning)).argmax()])

  def take(self, row: list[int]) -> int:
    """Remove such rows while pairs for them are left; return the number."""
    used, uses = np.unique(row, return_counts=True)
    count = int((self.left[used] // uses).min())
    self.left[used] -= count * uses
    kept = self.left > 0
    self._keep(self.lengths[kept], self.left[kept])
    return count


# Random bits of a 64-bit key, which order the examples of the same lengths.
_RANDOM_BITS = 32


@dataclasses.dataclass(frozen=True)
class PackedEpoch(EpochPlan):
  """Batches of one epoch of packed rows, which are the examples of its plan.

  Row r holds the examples `places[row_starts[r] : row_starts[r + 1]]`.
  """

  places: Int32[np.ndarray, ' examples']
  row_starts: Int[np.ndarray, ' N+1']

  def batch(self, index: int) -> tuple[Shape, Int32[np.ndarray, ' rows *K']]:
    """Return the shape of a batch and the examples of its rows; -1: none."""
    shape, own = super().batch(index)
    first = self.starts[index]
    starts = self.row_starts[first : first + len(own) + 1]
    counts = np.zeros(shape.rows, np.int64)
    counts[: len(own)] = np.diff(starts)
    examples = np.full((shape.rows, counts.max()), -1, np.int32)
    taken: Bool[np.ndarray, 'B K'] = np.arange(counts.max()) < counts[:, None]
    examples[taken] = self.places[starts[0] : starts[-1]]
    return shape, examples

  def table(self, lengths: Lengths) -> str:
    (shape,) = self.shapes
    sides = np.array([shape.source, shape.target]) * shape.rows * self.batches
    tokens = np.asarray(lengths).sum(axis=0, dtype=np.int64)
    pairs = f'{len(self.places) / len(self.order):.1f}'
    shares = *(tokens / sides), tokens.sum() / sides.sum()
    heads = 'rows', 'source', 'target', 'batches', 'pairs a row'
    shares_of = 'source real', 'target real', 'real tokens'
    row = *shape, self.batches, pairs, *shares
    return log_table([(*heads, *shares_of), row])


class PackedPlan(TrainingPlan):
  """Plan of all packed batches, a function of seed and step.

  The lengths in every row are the same in all epochs. An epoch puts random
  examples of just these lengths into the rows, and shuffles the rows.
  """

  def __init__(self, lengths: Lengths, shape: Shape, seed: int):
    rows = pack(np.asarray(lengths), shape.source, shape.target)
    self._row_starts = rows.starts
    self._cells = _cells(np.asarray(lengths), shape) << _RANDOM_BITS
    self._by_cell = np.argsort(_cells(rows.lengths, shape), kind='stable')
    totals = np.add.reduceat(rows.lengths, rows.starts[:-1], axis=0)
    super().__init__(totals.astype(np.int32), (shape,), seed)

  def _shuffled(self, epoch: int) -> PackedEpoch:
    plan = super()._shuffled(epoch)
    entropy = np.random.SeedSequence((self._seed, epoch), spawn_key=(2,))
    bits = np.random.Philox(entropy).random_raw(len(self._cells))
    keys: UInt64[np.ndarray, ' N'] = self._cells | (bits >> (64 - _RANDOM_BITS))
    places = np.empty(len(keys), np.int32)
    places[self._by_cell] = np.argsort(keys, kind='stable')
    places, row_starts = reordered(places, self._row_starts, plan.order)
    return PackedEpoch(**vars(plan), places=places, row_starts=row_starts)


def _cells(lengths: Lengths, shape: Shape) -> UInt64[np.ndarray, ' N']:
  """Map each pair of lengths to one number."""
  source, target = lengths.astype(np.uint64).T
  return source * np.uint64(shape.target + 1) + target
