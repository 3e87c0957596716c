"""Rows that go to the devices and come back."""

import jax
import numpy as np
import pytest

from fusion_jax.config import PRESETS, DecodingConfig, ExperimentConfig
from fusion_jax.decoding.batches import fetched, placed
from fusion_jax.parallel.aot_programs import Request, program_for
from fusion_jax.parallel.collectives import collectives
from fusion_jax.parallel.mesh import data_mesh, put_whole


@pytest.mark.parametrize('rows', [1, 5, 8, 11])
def test_rows_come_back_in_order_with_the_last_again(rows):
  batch = {
    'ids': np.arange(3 * rows, dtype=np.int32).reshape(rows, 3),
    'lengths': np.arange(rows, dtype=np.int32),
    'none': None,
  }
  on_devices = placed(batch, data_mesh())
  back = fetched(on_devices)
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
  program = program_for(config, Request('decode'), jax.devices())
  assert program.shape.rows == 8
  assert collectives(program.traced.lower().compile().as_text()) == []
