"""Rows that go to the devices and come back."""

import itertools

import jax
import numpy as np
import pytest

from fusion_jax.config import PRESETS, DecodingConfig, ExperimentConfig
from fusion_jax.decoding.batches import (
  device_get_rows,
  device_put_rows,
  windows,
)
from fusion_jax.parallel.mesh import data_mesh, put_whole
from fusion_jax.tools.aot.hlo_collectives import collectives
from fusion_jax.tools.aot.programs import ProgramRequest, program_for


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
