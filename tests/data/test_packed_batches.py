from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hypothesis_numpy
from test_batching import caption_lengths

from fusion_jax.data.batching import Shape
from fusion_jax.data.packing import PackedPlan, assemble_packed, packing_table

_LENGTHS = st.integers(1, 80).flatmap(
  lambda count: hypothesis_numpy.arrays(
    np.int32, (count, 2), elements=st.integers(1, 30)
  )
)


class _Pair(NamedTuple):
  source: np.ndarray
  target: np.ndarray


def _pair(source, target):
  return _Pair(np.array(source, np.int32), np.array(target, np.int32))


@settings(max_examples=60)
@given(
  lengths=_LENGTHS,
  rows=st.integers(1, 6),
  spare=st.integers(0, 60),
  seed=st.integers(0, 2**31),
)
def test_every_example_once_an_epoch_and_no_row_too_full(
  lengths, rows, spare, seed
):
  source, target = (lengths.max(axis=0) + spare).tolist()
  plan = PackedPlan(lengths, Shape(rows, source, target), seed)
  for epoch in range(2):
    first = epoch * plan.batches_per_epoch
    seen = []
    for step in range(first, first + plan.batches_per_epoch):
      batch_epoch, shape, examples = plan.batch(step)
      assert (batch_epoch, shape) == (epoch, (rows, source, target))
      assert len(examples) == rows
      assert (examples >= 0).any()
      taken = (examples >= 0)[..., None]
      totals = np.where(taken, lengths[examples], 0).sum(axis=1)
      assert (totals <= (source, target)).all()
      seen.extend(examples[examples >= 0].tolist())
    assert sorted(seen) == list(range(len(lengths)))


def test_order_depends_on_seed_and_epoch_alone():
  lengths, shape = caption_lengths(500), Shape(4, 64, 64)
  plan, again, other = (PackedPlan(lengths, shape, seed) for seed in (1, 1, 2))
  again.epoch(7)  # The order in which epochs are asked for does not matter.
  step = 3 * plan.batches_per_epoch + 2
  np.testing.assert_array_equal(plan.batch(step)[2], again.batch(step)[2])
  np.testing.assert_array_equal(plan.epoch(3).places, again.epoch(3).places)
  for different in (plan.epoch(4), other.epoch(3)):
    assert (plan.epoch(3).places != different.places).mean() > 0.9


def test_examples_change_their_company():
  # 40 pairs of the same lengths, two a row: over epochs any two may meet.
  plan = PackedPlan(np.full((40, 2), 5, np.int32), Shape(20, 10, 10), 0)
  partners = set()
  for epoch in range(400):
    examples = plan.epoch(epoch).batch(0)[1]
    row = examples[(examples == 0).any(axis=1)][0]
    partners.add(int(row.sum()))
  assert partners == set(range(1, 40))


def test_order_of_a_seed_never_changes():
  # Made by this code with numpy 2.4.6. If it changes, a run that is resumed
  # repeats some examples in the rest of its epoch and misses others.
  lengths = np.array([[3, 3], [3, 4], [5, 5], [3, 3], [6, 5], [6, 5]], np.int32)
  plan = PackedPlan(lengths, Shape(2, 9, 9), seed=4)
  assert [plan.batch(step)[2].tolist() for step in range(4)] == [
    [[4, 1], [-1, -1]],
    [[5, 3], [2, 0]],
    [[5, 1], [-1, -1]],
    [[4, 3], [2, 0]],
  ]


def test_batches_share_the_empty_rows():
  # Nine rows of one pair for batches of eight.
  plan = PackedPlan(np.full((9, 2), 5, np.int32), Shape(8, 6, 6), 0)
  taken = [(plan.batch(step)[2] >= 0).sum() for step in range(2)]
  assert plan.batches_per_epoch == 2
  assert sorted(taken) == [4, 5]


def test_assemble():
  batch = assemble_packed(
    [_pair([5, 6, 2], [7, 2]), _pair([2], [8, 9, 1, 2]), _pair([4, 2], [3, 2])],
    np.array([2, 0, 1]),
    Shape(3, 5, 6),
  )
  assert batch.source.tolist() == [[5, 6, 2, 2, 0], [0] * 5, [4, 2, 0, 0, 0]]
  assert batch.source_segments.tolist() == [
    [1, 1, 1, 2, 0],
    [0] * 5,
    [1, 1, 0, 0, 0],
  ]
  assert batch.target.tolist() == [
    [7, 2, 8, 9, 1, 2],
    [0] * 6,
    [3, 2, 0, 0, 0, 0],
  ]
  assert batch.target_segments.tolist() == [
    [1, 1, 2, 2, 2, 2],
    [0] * 6,
    [1, 1, 0, 0, 0, 0],
  ]
  assert batch.source_lengths.tolist() == [4, 0, 2]
  assert batch.target_lengths.tolist() == [6, 0, 2]
  assert {part.dtype for part in batch} == {np.dtype(np.int32)}


def test_assemble_nothing():
  batch = assemble_packed([], np.zeros(2, int), Shape(2, 3, 4))
  assert not batch.source.any()
  assert not batch.target_segments.any()
  assert batch.target_lengths.tolist() == [0, 0]


def test_a_row_that_is_too_full_is_our_bug():
  with pytest.raises(AssertionError, match='4 ids for 3'):
    assemble_packed([_pair([5, 2], [2])] * 2, np.array([2, 0]), Shape(2, 3, 4))


def test_table():
  # Three rows in two batches of two: 12 + 10 of 4 * 9 + 4 * 9 slots.
  lengths = np.array([[3, 3], [3, 2], [9, 9], [6, 5]], np.int32)
  plan = PackedPlan(lengths, Shape(2, 9, 9), seed=0)
  lines = packing_table(lengths, plan.epoch(0)).splitlines()
  assert len(lines) == 2
  # 21 source and 19 target tokens in 36 slots a side; 4 pairs in 3 rows.
  assert lines[1].split() == [
    '2',
    '9',
    '9',
    '2',
    '1.3',
    '58.3%',
    '52.8%',
    '55.6%',
  ]
