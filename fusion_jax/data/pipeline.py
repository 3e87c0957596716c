"""Training and evaluation batches, from prepared examples to the device.

The global batch of a training step is a function of the corpus, the shapes,
the seed and the step, whatever the number of processes; each process reads
only its own rows of it.
"""

import logging
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import grain
import jax
import numpy as np
from jaxtyping import Int32

from fusion_jax.config import BatchConfig
from fusion_jax.data import batching
from fusion_jax.data.batching import Batch, Lengths, Shape, TrainingPlan
from fusion_jax.data.mixing import Mixture
from fusion_jax.data.packing import PackedPlan, choose_packed_shape

logger = logging.getLogger(__name__)


def training_shapes(
  lengths: Lengths,
  config: BatchConfig,
  devices: int = 1,
  max_length: int | None = None,
) -> tuple[Shape, ...]:
  """Choose the shapes of training batches: one with packing, else several."""
  if config.packing:
    return (choose_packed_shape(lengths, config, devices),)
  return batching.choose_shapes(lengths, config, devices, max_length)


class TrainingBatches:
  """Endless sequence of training batches of one process, by step."""

  def __init__(
    self,
    split: Any,
    shapes: tuple[Shape, ...],
    seed: int,
    process_index: int = 0,
    process_count: int = 1,
    sampling: bool = False,
    mixture: Mixture | None = None,
    packing: bool = False,
  ):
    """Plan the batches of a split, a `prepared.Split` or what is like it."""
    self._lengths = split.lengths if mixture is None else mixture.lengths
    if packing:
      (shape,) = shapes
      self.plan: TrainingPlan = PackedPlan(self._lengths, shape, seed)
    else:
      self.plan = TrainingPlan(self._lengths, shapes, seed)
    self._mixture = mixture
    self._packing = packing
    self._split = split
    self._seed = seed
    self._process = (process_index, process_count)
    self._sampling = sampling

  def __len__(self) -> int:
    return sys.maxsize

  def __getitem__(self, step: int) -> Batch:
    epoch, shape, slots = self.plan.batch(step)
    shape, slots = _share(shape, slots, *self._process)
    taken = slots >= 0
    counts = taken.sum(axis=1) if self._packing else None
    return batching.assemble(self._shown(epoch, slots[taken]), shape, counts)

  def table(self) -> str:
    """Format the shapes and their shares of real tokens as a table."""
    return self.plan.epoch(0).table(self._lengths)

  def _shown(
    self, epoch: int, slots: Int32[np.ndarray, ' examples']
  ) -> Sequence[Any]:
    indices = self.examples(epoch, slots)
    if not self._sampling:
      return [self._split[index] for index in indices.tolist()]
    # Consecutive slots have consecutive seeds.
    entropy = np.random.SeedSequence((self._seed, epoch), spawn_key=(1,))
    first = int(entropy.generate_state(1, np.uint64)[0])
    return [
      self._split.sample(index, (first + slot) % 2**64)
      for index, slot in zip(indices.tolist(), slots.tolist(), strict=True)
    ]

  def examples(
    self, epoch: int, slots: Int32[np.ndarray, ' rows']
  ) -> Int32[np.ndarray, ' rows']:
    """Return the examples that the plan's slots show in an epoch."""
    if self._mixture is None:
      return slots
    return self._mixture.examples(epoch, slots)


def training_iterator(
  batches: TrainingBatches, sharding: jax.sharding.Sharding
) -> grain.DatasetIterator[Batch]:
  """Iterate over the training batches on the devices, read ahead by threads.

  The iterator's state is the position after the last batch taken from it, which
  is restored without reading earlier batches. Call `close()` at the end.
  """

  def put(batch: Batch) -> Batch:
    """Copy the rows of this process to its devices."""
    return jax.tree.map(
      lambda part: jax.make_array_from_process_local_data(sharding, part), batch
    )

  options = grain.ReadOptions(num_threads=2, prefetch_buffer_size=16)
  dataset = grain.MapDataset.source(batches).to_iter_dataset(options)
  on_devices = grain.experimental.ThreadPrefetchIterDataset(
    dataset.map(put), prefetch_buffer_size=2
  )
  return iter(on_devices)


def abstract_batch(
  shape: Shape, packing: bool, sharding: jax.sharding.Sharding
) -> Batch:
  def ids(*sizes: int) -> Any:
    return jax.ShapeDtypeStruct(sizes, np.int32, sharding=sharding)

  sides = [ids(shape.rows, size) for size in (shape.source, shape.target)]
  lengths = [ids(shape.rows)] * 2
  return Batch(*sides, *lengths, *(sides if packing else ()))


def evaluation_batches(
  split: Any,
  shapes: tuple[Shape, ...],
  process_index: int = 0,
  process_count: int = 1,
) -> Iterator[Batch]:
  """Yield the examples that fit a shape, in a fixed order, on the host."""
  assignment = batching.assign_shapes(split.lengths, shapes)
  order = np.flatnonzero(assignment >= 0).astype(np.int32)
  if len(order) < len(split):
    logger.warning(
      '%d of %d evaluation pairs are longer than %d + %d subwords and are '
      'left out of the loss',
      len(split) - len(order),
      len(split),
      shapes[-1].source,
      shapes[-1].target,
    )
  plan = batching.plan_epoch(order, assignment, shapes)
  for index in range(plan.batches):
    shape, indices = _share(*plan.batch(index), process_index, process_count)
    examples = [split[index] for index in indices.tolist()]
    yield batching.assemble(examples, shape)


def _share(
  shape: Shape,
  indices: Int32[np.ndarray, ' examples *K'],
  process_index: int,
  process_count: int,
) -> tuple[Shape, Int32[np.ndarray, ' own *K']]:
  """Return the rows of a batch that one process reads, and their examples."""
  rows, left = divmod(shape.rows, process_count)
  assert not left, f'{shape.rows} rows for {process_count} processes'
  first = process_index * rows
  return shape._replace(rows=rows), indices[first : first + rows]
