"""Batch shapes of a corpus and the examples of each batch, in NumPy.

A corpus gets a handful of batch shapes at most, chosen for its own lengths.
Each example goes to the shape that fits it with the fewest slots, and an epoch
is cut into whole batches of one shape each. Axis letters: B rows, S source and
T target positions, N examples of the corpus.
"""

import dataclasses
import functools
import logging
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
from jaxtyping import Array, Int, Int16, Int32

from fusion_jax.config import BatchConfig
from fusion_jax.errors import InputError
from fusion_jax.startup import log_table

logger = logging.getLogger(__name__)

# Source and target subwords of each example, the end symbols included.
Lengths: TypeAlias = Int32[np.ndarray, 'N 2']

_Counts = TypeVar('_Counts', np.ndarray, np.integer)
# Lengths that a side of a shape may have, each pair of them, and a place there.
_Sizes: TypeAlias = Int[np.ndarray, ' _']
_Grid: TypeAlias = Int[np.ndarray, 'Gs Gt']
_Cap: TypeAlias = tuple[int, int]


class Shape(NamedTuple):
  """Sizes of a batch: rows, source positions, target positions."""

  rows: int
  source: int
  target: int

  @property
  def slots(self) -> int:
    return self.source + self.target

  def holds(self, other: 'Shape') -> bool:
    """Return whether every example that fits `other` fits this shape."""
    return self.source >= other.source and self.target >= other.target


class Batch(NamedTuple):
  """Padded examples: NumPy arrays on the host, JAX arrays on the device.

  Both sides end in the end symbol and have no start symbol. Positions beyond
  the length are 0, and a row of length 0 holds padding only.

  A packed row holds several examples side by side, and its length counts all
  their tokens. Segments number these examples from 1 and are 0 at padding;
  they are None where every row holds one example.
  """

  source: Int32[np.ndarray | Array, 'B S']
  target: Int32[np.ndarray | Array, 'B T']
  source_lengths: Int32[np.ndarray | Array, ' B']
  target_lengths: Int32[np.ndarray | Array, ' B']
  source_segments: Int32[np.ndarray | Array, 'B S'] | None = None
  target_segments: Int32[np.ndarray | Array, 'B T'] | None = None


@dataclasses.dataclass(frozen=True)
class EpochPlan:
  """Batches of one epoch.

  Batch b has the examples `order[starts[b] : starts[b + 1]]` and the shape
  `shapes[shape_ids[b]]`.
  """

  shapes: tuple[Shape, ...]
  order: Int32[np.ndarray, ' N']
  shape_ids: Int[np.ndarray, ' batches']
  starts: Int[np.ndarray, ' batches+1']

  @property
  def batches(self) -> int:
    return len(self.shape_ids)

  def batch(self, index: int) -> tuple[Shape, Int32[np.ndarray, ' rows *K']]:
    """Return the shape of a batch and its examples (at most `rows`)."""
    first, last = self.starts[index], self.starts[index + 1]
    return self.shapes[self.shape_ids[index]], self.order[first:last]

  def slots(self) -> int:
    """Count all slots of the epoch's batches, padding rows included."""
    sizes = np.array([shape.rows * shape.slots for shape in self.shapes])
    return int(sizes[self.shape_ids].sum())

  def table(self, lengths: Lengths) -> str:
    sizes = np.diff(self.starts)
    tokens = np.add.reduceat(lengths[self.order].sum(axis=1), self.starts[:-1])
    names = 'rows', 'source', 'target', 'batches', 'examples', 'real tokens'
    rows: list[Sequence[Any]] = [names]
    for index, shape in enumerate(self.shapes):
      own = self.shape_ids == index
      share = sizes[own].sum() / sizes.sum()
      slots = max(own.sum() * shape.rows * shape.slots, 1)
      rows.append((*shape, own.sum(), share, tokens[own].sum() / slots))
    real = tokens.sum() / self.slots()
    return log_table([*rows, ('all', '', '', self.batches, 1.0, real)])


class TrainingPlan:
  """Plan of all training batches, a function of seed and step.

  An epoch shuffles all examples, groups them by shape (`plan_epoch`) and
  shuffles the batches, of which every epoch has the same number.
  """

  def __init__(self, lengths: Lengths, shapes: tuple[Shape, ...], seed: int):
    self.shapes = shapes
    self._seed = seed
    self._assignment = assign_shapes(lengths, shapes)
    assert (self._assignment >= 0).all(), 'an example fits no shape'
    unshuffled = np.arange(len(lengths), dtype=np.int32)
    plan = plan_epoch(unshuffled, self._assignment, shapes)
    self.batches_per_epoch = plan.batches
    # Several threads ask for an epoch batch by batch.
    self.epoch = functools.lru_cache(maxsize=2)(self._shuffled)

  def batch(
    self, step: int
  ) -> tuple[int, Shape, Int32[np.ndarray, ' rows *K']]:
    """Return the epoch of a global batch, its shape and its examples."""
    epoch, index = divmod(step, self.batches_per_epoch)
    return epoch, *self.epoch(epoch).batch(index)

  def _shuffled(self, epoch: int) -> EpochPlan:
    bits = np.random.Philox(np.random.SeedSequence((self._seed, epoch)))
    order = _permutation(bits, len(self._assignment))
    plan = plan_epoch(order, self._assignment, self.shapes)
    batch_order = _permutation(bits, plan.batches)
    order, starts = reordered(plan.order, plan.starts, batch_order)
    shape_ids = plan.shape_ids[batch_order]
    return EpochPlan(self.shapes, order, shape_ids, starts)


def reordered(
  values: Int32[np.ndarray, ' N'],
  starts: Int[np.ndarray, ' starts'],
  order: Int[np.ndarray, ' runs'],
) -> tuple[Int32[np.ndarray, ' N'], Int[np.ndarray, ' starts']]:
  """Put runs of values, which begin at `starts`, into another order."""
  sizes = np.diff(starts)[order]
  new_starts = np.concatenate([[0], np.cumsum(sizes)])
  # Element e of the new order stood at e - new start + old start.
  moved = np.repeat(starts[order] - new_starts[:-1], sizes)
  return values[np.arange(len(values)) + moved], new_starts


def choose_shapes(
  lengths: Lengths,
  config: BatchConfig,
  devices: int = 1,
  max_length: int | None = None,
) -> tuple[Shape, ...]:
  """Choose the batch shapes that leave the least padding in a corpus.

  Minimises sum_n min{S_k + T_k : example n fits (S_k, T_k)} over the caps
  (S_k, T_k) by coordinate descent, see `_choose_caps`. The last shape holds
  the longest source and the longest target.
  """
  if max_length is not None:
    lengths = lengths[lengths.max(axis=1) <= max_length]
  if not len(lengths):
    raise InputError(
      'no sentence pair to make batches of: none has at most '
      f'data.filter.max_length={max_length} subwords on both sides'
    )
  sources, targets = (
    _candidates(int(longest), config.length_multiple)
    for longest in lengths.max(axis=0)
  )
  histogram = _histogram(lengths, sources, targets)
  caps = _choose_caps(histogram, sources, targets, config.shapes)
  shapes = []
  for s, t in caps:
    rows = batch_rows(sources[s] + targets[t], config, devices)
    shapes.append(Shape(int(rows), int(sources[s]), int(targets[t])))
  shapes.sort(key=lambda shape: (shape.slots, shape))
  warn_if_larger(shapes[-1], config.tokens)
  return tuple(shapes)


def assign_shapes(
  lengths: Lengths, shapes: Sequence[Shape]
) -> Int16[np.ndarray, ' N']:
  """Return the index of the smallest shape that fits each example, or -1."""
  assignment = np.full(len(lengths), -1, np.int16)
  for index in reversed(range(len(shapes))):
    fits = lengths[:, 0] <= shapes[index].source
    fits &= lengths[:, 1] <= shapes[index].target
    assignment[fits] = index
  return assignment


def plan_epoch(
  order: Int32[np.ndarray, ' N'],
  assignment: Int16[np.ndarray, ' examples'],
  shapes: tuple[Shape, ...],
) -> EpochPlan:
  """Cut examples into batches; those of one shape keep the given order.

  The examples that remain after the last whole batch of a shape move up to the
  next shape that holds them, unless the empty rows of a short batch cost fewer
  slots. All batches of a shape share its empty rows evenly. How many there are
  does not depend on the order.
  """
  assigned = assignment[order]
  queues = [order[assigned == index] for index in range(len(shapes))]
  for index, shape in enumerate(shapes[:-1]):
    larger = range(index + 1, len(shapes))
    above = next(other for other in larger if shapes[other].holds(shape))
    left = len(queues[index]) % shape.rows
    cost_of_moving = left * (shapes[above].slots - shape.slots)
    if left and cost_of_moving <= (shape.rows - left) * shape.slots:
      queues[index], rest = np.split(queues[index], [-left])
      queues[above] = np.concatenate([rest, queues[above]])
  counts, sizes = [], [np.zeros(1, np.int64)]
  for queue, shape in zip(queues, shapes, strict=True):
    count = -(-len(queue) // shape.rows)
    counts.append(count)
    sizes.append(np.diff(np.arange(count + 1) * len(queue) // max(count, 1)))
  return EpochPlan(
    shapes,
    np.concatenate(queues),
    np.repeat(np.arange(len(shapes)), counts),
    np.cumsum(np.concatenate(sizes)),
  )


def assemble(
  examples: Sequence[Any],
  shape: Shape,
  counts: Int[np.ndarray, ' B'] | None = None,
) -> Batch:
  """Pad examples, pairs of ids `source` and `target`, with 0 to a batch.

  Row b holds the next `counts[b]` of them side by side, or one.
  """
  per_row = np.ones(len(examples), int) if counts is None else counts
  assert len(per_row) <= shape.rows, f'{len(per_row)} examples for {shape}'
  row = np.repeat(np.arange(len(per_row)), per_row)
  number = np.arange(len(row)) - (np.cumsum(per_row) - per_row)[row] + 1
  sides, segments = [], []
  for ids, width in (
    ([pair.source for pair in examples], shape.source),
    ([pair.target for pair in examples], shape.target),
  ):
    sizes = np.array([len(sentence) for sentence in ids], np.int64)
    lengths = np.bincount(row, sizes, shape.rows).astype(np.int32)
    sides.append((_filled(lengths, width, ids), lengths))
    if counts is not None:
      segments.append(_filled(lengths, width, [np.repeat(number, sizes)]))
  (source, source_lengths), (target, target_lengths) = sides
  return Batch(source, target, source_lengths, target_lengths, *segments)


def _filled(
  lengths: Int32[np.ndarray, ' B'], width: int, values: Sequence[np.ndarray]
) -> Int32[np.ndarray, 'B L']:
  """Put values into rows of these lengths, one after the other; 0 is left."""
  assert lengths.max() <= width, f'{lengths.max()} ids for {width}'
  rows = np.zeros((len(lengths), width), np.int32)
  if values:
    rows[np.arange(width) < lengths[:, None]] = np.concatenate(values)
  return rows


def batch_rows(
  slots: Int[_Counts, '*caps'], config: BatchConfig, devices: int
) -> Int[_Counts, '*caps']:
  """Return as many rows as `config.tokens` allows, at least one multiple."""
  multiple = math.lcm(config.row_multiple, devices)
  return np.maximum(2 * config.tokens // slots // multiple, 1) * multiple


def warn_if_larger(shape: Shape, tokens: int) -> None:
  """Warn if a batch of the shape has more than 2 * `tokens` slots."""
  if shape.rows * shape.slots > 2 * tokens:
    logger.warning(
      'a batch of %d rows (the least that data.batch.row_multiple and the '
      'devices allow) of %d + %d positions is larger than '
      'data.batch.tokens=%d',
      *shape,
      tokens,
    )


def _candidates(longest: int, multiple: int) -> _Sizes:
  """List possible cap lengths: multiples, in steps of 2 % when large."""
  last = -(-longest // multiple) * multiple
  lengths = [multiple]
  while lengths[-1] < last:
    step = max(lengths[-1] // 50 // multiple, 1) * multiple
    lengths.append(min(lengths[-1] + step, last))
  return np.array(lengths)


def _histogram(lengths: Lengths, sources: _Sizes, targets: _Sizes) -> _Grid:
  """Count the examples by the smallest candidate lengths that hold them."""
  cells = np.searchsorted(sources, np.arange(sources[-1] + 1))[lengths[:, 0]]
  cells *= len(targets)
  cells += np.searchsorted(targets, np.arange(targets[-1] + 1))[lengths[:, 1]]
  size = len(sources) * len(targets)
  return np.bincount(cells, minlength=size).reshape(len(sources), -1)


def _choose_caps(
  histogram: _Grid, sources: _Sizes, targets: _Sizes, count: int
) -> list[_Cap]:
  """Choose caps of few total slots: greedily, then moving one at a time."""
  slots = sources[:, None] + targets
  caps = [(len(sources) - 1, len(targets) - 1)]
  while len(caps) < count:
    gains = _gains(histogram, slots, caps)
    if not gains.any():
      return caps
    caps.append(_largest(gains))
  moved = True
  while moved:
    moved = False
    for index in range(1, count):
      gains = _gains(histogram, slots, caps[:index] + caps[index + 1 :])
      if gains.max() > gains[caps[index]]:
        caps[index], moved = _largest(gains), True
  return caps


def _largest(gains: _Grid) -> _Cap:
  source, target = np.unravel_index(gains.argmax(), gains.shape)
  return int(source), int(target)


def _gains(histogram: _Grid, slots: _Grid, others: Sequence[_Cap]) -> _Grid:
  """Compute the slots that one more cap at each place would save."""
  cost = np.full_like(histogram, np.iinfo(histogram.dtype).max)
  for source, target in others:
    corner = cost[: source + 1, : target + 1]
    np.minimum(corner, slots[source, target], out=corner)
  # An example that costs c slots saves max(c - u, 0) in a cap of u slots. How
  # many of one c fit is a 2-D prefix sum.
  gains = np.zeros_like(histogram)
  for value in {slots[place] for place in others}:
    fitting = np.where(cost == value, histogram, 0)
    fitting = fitting.cumsum(axis=0).cumsum(axis=1)
    gains += fitting * np.maximum(value - slots, 0)
  return gains


def _permutation(bits: np.random.Philox, size: int) -> Int32[np.ndarray, ' N']:
  """Draw a random permutation, the same in all versions of NumPy (NEP 19)."""
  keys = bits.random_raw(size)
  return np.argsort(keys, kind='stable').astype(np.int32)
