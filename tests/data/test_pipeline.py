import itertools
import logging
from typing import NamedTuple

import grain
import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fusion_jax.config import BatchConfig
from fusion_jax.data import batching, pipeline
from fusion_jax.data.mixing import Mixture

SEED = 3


class Pair(NamedTuple):
  source: np.ndarray
  target: np.ndarray


class MemorySplit:
  """Example i has ids made of i, so that a batch tells what is in it."""

  def __init__(self, count=100, longest=12):
    generator = np.random.default_rng(0)
    self.lengths = generator.integers(1, longest, (count, 2), dtype=np.int32)

  def __len__(self):
    return len(self.lengths)

  def __getitem__(self, index):
    source, target = self.lengths[index]
    return Pair(
      np.full(source, index + 1, np.int32), np.full(target, index + 1, np.int32)
    )

  def sample(self, index, seed):
    generator = np.random.default_rng((index, seed))
    source, target = generator.integers(1, self.lengths[index] + 1)
    return Pair(
      np.full(source, index + 1, np.int32), np.full(target, index + 1, np.int32)
    )


SPLIT = MemorySplit()
# 8 rows: the tests run on 1, 2, 4 or 8 devices.
SHAPES = batching.choose_shapes(SPLIT.lengths, BatchConfig(tokens=100))


PACKED = pipeline.training_shapes(
  SPLIT.lengths, BatchConfig(tokens=100, packing=True)
)


def batches_of(packing=False, **options):
  shapes = PACKED if packing else SHAPES
  return pipeline.TrainingBatches(
    SPLIT, shapes, SEED, packing=packing, **options
  )


def data_sharding():
  mesh = jax.make_mesh(
    (jax.device_count(),), ('data',), axis_types=(jax.sharding.AxisType.Auto,)
  )
  return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec('data'))


@pytest.fixture
def open_iterator():
  """Makes iterators over the training batches and closes them."""
  opened = []

  def make(**options):
    batches = batches_of(**options)
    opened.append(pipeline.training_iterator(batches, data_sharding()))
    return opened[-1]

  yield make
  for iterator in opened:
    iterator.close()


def take(iterator, count):
  return list(itertools.islice(iterator, count))


def indices_in(batches):
  """The examples in batches, in order."""
  found = []
  for batch in batches:
    source, segments = np.asarray(batch.source), batch.source_segments
    if segments is None:
      starts = np.arange(source.shape[1]) == 0
    else:
      starts = np.diff(np.asarray(segments), prepend=0, axis=1) > 0
    found.extend((source[starts & (source > 0)] - 1).tolist())
  return found


def joined(parts):
  """One batch of the rows of several."""
  return jax.tree.map(lambda *each: np.concatenate(each), *parts)


def assert_same(first, second):
  assert len(first) == len(second)
  for one, other in zip(first, second, strict=True):
    jax.tree.map(np.testing.assert_array_equal, one, other)


@settings(max_examples=20)
@given(
  step=st.integers(0, 10**9),
  count=st.sampled_from([1, 2, 4, 8]),
  packing=st.booleans(),
)
def test_processes_share_the_rows_of_a_batch(step, count, packing):
  whole = batches_of(packing)[step]
  parts = [
    batches_of(packing, process_index=index, process_count=count)[step]
    for index in range(count)
  ]
  assert_same([joined(parts)], [whole])


def test_the_order_of_one_corpus_is_that_of_old_runs():
  # Of the code that had no mixtures: a run that is resumed goes on with it.
  one = Mixture(SPLIT.lengths, [100], np.array([1.0]), SEED)
  batches = batches_of(mixture=one)
  assert batches.plan.batches_per_epoch == 12
  for step, expected in (
    (0, [57, 5, 67, 76, 27, 71]),
    (1, [16, 50, 89, 49, 10, 12]),
    (50, [50, 85, 16, 10, 45, 49]),
  ):
    assert indices_in([batches[step]])[:6] == expected
    assert_same([batches[step]], [batches_of()[step]])
  sampled = batches_of(mixture=one, sampling=True)
  assert_same([sampled[7]], [batches_of(sampling=True)[7]])
  assert sampled[7].source_lengths[:6].tolist() == [5, 9, 5, 1, 4, 4]
  assert sampled[7].target_lengths[:6].tolist() == [1, 1, 2, 1, 1, 2]


def mixed(**options):
  """80 examples and 20, which get half of the slots each."""
  mixture = Mixture(SPLIT.lengths, [80, 20], np.array([0.5, 0.5]), SEED)
  shapes = batching.choose_shapes(mixture.lengths, BatchConfig(tokens=100))
  return pipeline.TrainingBatches(
    SPLIT, shapes, SEED, mixture=mixture, **options
  )


def test_an_example_in_two_slots_of_an_epoch_is_drawn_twice():
  batches = mixed(sampling=True)
  drawn = {}
  for step in range(batches.plan.batches_per_epoch):
    batch = batches[step]
    for row in np.flatnonzero(batch.source_lengths):
      sizes = batch.source_lengths[row], batch.target_lengths[row]
      drawn.setdefault(batch.source[row, 0] - 1, []).append(sizes)
  twice = [sizes for index, sizes in drawn.items() if index >= 80]
  assert all(len(sizes) in (2, 3) for sizes in twice)
  assert sum(len(set(sizes)) > 1 for sizes in twice) > 10


def test_sampling_draws_anew_in_each_epoch():
  batches = batches_of(sampling=True)
  size = batches.plan.batches_per_epoch
  again = batches_of(sampling=True)
  assert_same([again[size + 1]], [batches[size + 1]])

  def lengths(epoch):
    steps = range(epoch * size, (epoch + 1) * size)
    drawn = np.zeros(100, int)
    for batch in map(batches.__getitem__, steps):
      real = batch.source_lengths > 0
      drawn[batch.source[real, 0] - 1] = batch.source_lengths[real]
    return drawn

  first, second = lengths(0), lengths(1)
  assert (first > 0).all()
  assert (first <= SPLIT.lengths[:, 0]).all()
  assert (first != second).mean() > 0.3


@pytest.mark.parametrize(('packing', 'arrays'), [(False, 4), (True, 6)])
def test_batches_arrive_on_the_devices_in_order(open_iterator, packing, arrays):
  # No implicit copy between host and device, in any thread.
  jax.config.update('jax_transfer_guard', 'disallow')
  try:
    arrived = take(open_iterator(packing=packing), 30)
  finally:
    jax.config.update('jax_transfer_guard', 'allow')
  for batch in arrived:
    assert len(jax.tree.leaves(batch)) == arrays
    for part in jax.tree.leaves(batch):
      assert part.sharding == data_sharding()
  expected = batches_of(packing)
  assert_same(arrived, [expected[step] for step in range(30)])


@pytest.mark.parametrize('step', [0, 1, 6, 10**12])
def test_resumes_at_the_batch_after_the_last_one_taken(open_iterator, step):
  size = batches_of().plan.batches_per_epoch
  iterator = open_iterator()
  grain.experimental.set_next_index(iterator, step)
  take(iterator, 3)
  # By now more batches have been read ahead.
  state = iterator.get_state()
  expected = take(iterator, size + 1)  # Across the end of an epoch.
  resumed = open_iterator()
  resumed.set_state(state)
  assert_same(take(resumed, size + 1), expected)
  assert_same(expected[:1], [batches_of()[step + 3]])
  # The same iterator goes back too.
  iterator.set_state(state)
  assert_same(take(iterator, 2), expected[:2])


def test_evaluation_has_every_example_once_in_a_fixed_order():
  batches = list(pipeline.evaluation_batches(SPLIT, SHAPES))
  assert sorted(indices_in(batches)) == list(range(100))
  assert_same(list(pipeline.evaluation_batches(SPLIT, SHAPES)), batches)
  sizes = {(*batch.source.shape, batch.target.shape[1]) for batch in batches}
  assert sizes <= set(SHAPES)


def test_processes_share_the_evaluation():
  whole = pipeline.evaluation_batches(SPLIT, SHAPES)
  parts = [
    pipeline.evaluation_batches(SPLIT, SHAPES, index, 2) for index in (0, 1)
  ]
  both = [joined(rows) for rows in zip(*parts, strict=True)]
  assert_same(both, list(whole))


def test_evaluation_counts_what_it_leaves_out(caplog):
  shapes = (batching.Shape(8, 6, 6),)
  left_out = int((SPLIT.lengths.max(axis=1) > 6).sum())
  assert 0 < left_out < 100
  with caplog.at_level(logging.WARNING):
    batches = list(pipeline.evaluation_batches(SPLIT, shapes))
  assert len(indices_in(batches)) == 100 - left_out
  assert f'{left_out} of 100 evaluation pairs' in caplog.text
