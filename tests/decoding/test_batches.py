"""Shapes of batches, what fills them, and rows on their way to devices."""

import itertools

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fusion_jax.config import PRESETS, DecodingConfig, ExperimentConfig
from fusion_jax.data.batching import Shape
from fusion_jax.decoding.batches import (
  PlannedBatch,
  decode_shapes,
  device_get_rows,
  device_put_rows,
  plan_batches,
  shard_batches,
  target_limit,
  windows,
)
from fusion_jax.parallel.mesh import data_mesh, put_whole
from fusion_jax.tools.aot.counts import collectives
from fusion_jax.tools.aot.programs import ProgramRequest, program_for


def test_shapes_worked_out_by_hand():
  # 200 slots, beam 2: 200 / 16 = 12 rows of 8, 6 of 16, 5 of 20; powers of
  # two below are 8, 4, 4. Targets: ceil(1.5 * source) + 1.
  options = DecodingConfig(
    beam_size=2,
    max_length_ratio=1.5,
    max_length_extra=1,
    max_source_length=20,
    batch_tokens=200,
  )
  assert decode_shapes(options) == (
    Shape(1, 8, 13),
    Shape(2, 8, 13),
    Shape(8, 8, 13),
    Shape(1, 16, 25),
    Shape(4, 16, 25),
    Shape(1, 20, 31),
    Shape(4, 20, 31),
  )


def test_source_lengths_of_the_defaults():
  lengths = sorted({shape.source for shape in decode_shapes(DecodingConfig())})
  assert lengths == [8, 16, 24, 32, 48, 64, 96, 128, 192, 256]
  short = decode_shapes(DecodingConfig(max_source_length=5))
  assert {shape.source for shape in short} == {5}


def test_a_batch_has_a_row_even_where_there_are_no_slots():
  options = DecodingConfig(batch_tokens=1, max_source_length=100)
  assert {shape.rows for shape in decode_shapes(options)} == {1}


def test_target_limit():
  options = DecodingConfig(max_length_ratio=1.1, max_length_extra=2)
  # 1.1 * 10 is 11.000000000000002 in floating point; 1.1 * 11 = 12.1.
  assert target_limit(10, options) == 13
  assert target_limit(11, options) == 15
  assert target_limit(11, options, longest=14) == 14


@settings(max_examples=50)
@given(
  st.lists(st.integers(1, 40), max_size=80),
  st.integers(1, 400),
  st.integers(1, 5),
)
def test_every_sentence_is_in_one_batch_that_holds_it(lengths, tokens, beam):
  options = DecodingConfig(
    max_source_length=40, batch_tokens=tokens, beam_size=beam
  )
  shapes = decode_shapes(options)
  batches = list(plan_batches(lengths, shapes))
  planned = [i for batch in batches for i in batch.sentences]
  assert sorted(planned) == list(range(len(lengths)))
  assert [lengths[i] for i in planned] == sorted(lengths, reverse=True)
  for batch in batches:
    assert batch.shape in shapes
    assert len(batch.sentences) <= batch.shape.rows
    assert max(lengths[i] for i in batch.sentences) <= batch.shape.source


def _batch(source, sentence):
  return PlannedBatch(Shape(2, source, 9), [sentence])


def test_batches_dealt_to_three_processes():
  batches = [_batch(8, i) for i in range(4)] + [_batch(4, 4), _batch(4, 5)]
  shares = [list(shard_batches(batches, 3, process)) for process in range(3)]
  assert [[batch.sentences for batch in share] for share in shares] == [
    [[0], [3], [4]],
    [[1], [], [5]],
    [[2], [], []],
  ]


@settings(max_examples=50)
@given(st.lists(st.integers(1, 40), max_size=80), st.integers(1, 5))
def test_processes_have_the_same_shapes_and_together_every_batch(
  lengths, processes
):
  options = DecodingConfig(max_source_length=40, batch_tokens=80, beam_size=1)
  batches = list(plan_batches(lengths, decode_shapes(options)))
  shares = [
    list(shard_batches(batches, processes, process))
    for process in range(processes)
  ]
  for together in zip(*shares, strict=True):
    assert len({batch.shape for batch in together}) == 1
    assert together[0].sentences
  found = [batch for share in shares for batch in share if batch.sentences]
  assert sorted(found) == sorted(batches)


@pytest.mark.parametrize('rows', [1, 5, 8, 11])
def test_rows_come_back_in_order_with_the_last_again(rows):
  batch = {
    'ids': np.arange(3 * rows, dtype=np.int32).reshape(rows, 3),
    'lengths': np.arange(rows, dtype=np.int32),
    'none': None,
  }
  on_devices = device_put_rows(batch, data_mesh())
  back = device_get_rows(on_devices)
  spare = -rows % 8
  for name in ('ids', 'lengths'):
    shard = on_devices[name].addressable_shards[0].data
    assert len(shard) == (rows + spare) // 8
    np.testing.assert_array_equal(back[name][:rows], batch[name])
    last = np.repeat(batch[name][-1:], spare, axis=0)
    np.testing.assert_array_equal(back[name][rows:], last)
  assert back['none'] is None


def test_what_is_whole_is_on_every_device():
  tree = put_whole({'x': np.arange(3.0)}, data_mesh())
  assert tree['x'].is_fully_replicated
  assert tree['x'].devices() == set(jax.devices())


def test_devices_that_search_exchange_nothing():
  config = ExperimentConfig(
    model=PRESETS['tiny'],
    decoding=DecodingConfig(max_source_length=8, batch_tokens=256),
  )
  program = program_for(config, ProgramRequest('decode'), jax.devices())
  assert program.shape.rows == 8
  assert collectives(program.traced.lower().compile().as_text()) == []


def test_windows_grow_to_the_slots_of_their_batches():
  slots = [3, 9, 0, 4, 7, 1] * 200
  cut = list(windows(enumerate(slots), batch_slots=40, batches=8))
  assert list(itertools.chain(*cut)) == list(range(len(slots)))
  sizes = [sum(1 + slots[item] for item in window) for window in cut]
  assert 160 <= sizes[0] < 160 + 10
  assert all(320 <= size < 320 + 10 for size in sizes[1:-1])


def test_windows_of_very_short_items_are_bounded():
  items = 100_000
  cut = list(windows(((item, 0) for item in range(items)), 1_000_000))
  assert list(itertools.chain(*cut)) == list(range(items))
  assert [len(window) for window in cut] == [32_768] * 3 + [1_696]
