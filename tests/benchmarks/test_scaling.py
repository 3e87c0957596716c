"""The exchanges of a step, on paper and compiled."""

import math

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from benchmarks.scaling import Way, check, expected, measured, small, way
from fusion_jax.config.training import ParallelConfig
from fusion_jax.data.batching import Shape
from fusion_jax.errors import CheckFailed
from fusion_jax.parallel.mesh import make_mesh
from fusion_jax.tools.aot.counts import Collective

_SHAPE = Shape(64, 16, 16)


def _on_paper(layout, *specs):
  """What parameters of 32 x 8 float32 that are cut so need."""
  config = small(layout, 2)
  mesh = make_mesh(ParallelConfig(*layout), jax.devices()[: math.prod(layout)])
  weights = [
    jax.ShapeDtypeStruct(
      (32, 8), jnp.float32, sharding=NamedSharding(mesh, PartitionSpec(*spec))
    )
    for spec in specs
  ]
  return {
    each: found.sent
    for each, found in expected(
      weights, mesh, config.model, _SHAPE, parts=2
    ).items()
  }


def test_gradients_of_whole_parameters_are_added_over_all_rows():
  # 1,024 bytes each, and of 8 devices each sends 2 * 7 / 8 of them.
  assert _on_paper((8, 1, 1), (), ()) == {
    Way('all-reduce', ('data',)): 2 * 2 * 7 / 8 * 1_024
  }


def test_cut_parameters_are_gathered_scattered_and_added_in_parts():
  assert _on_paper((2, 4, 1), ('fsdp',), ()) == {
    Way('all-gather', ('fsdp',)): 3 / 4 * 1_024,
    Way('reduce-scatter', ('fsdp',)): 3 / 4 * 1_024,
    Way('all-reduce', ('data',)): 2 * 1 / 2 * 1_024 / 4,
    Way('all-reduce', ('data', 'fsdp')): 2 * 7 / 8 * 1_024,
  }


def test_tensor_adds_activations_of_each_part():
  # 2 + 2 layers: 1 + 2 * 6 + 2 * 2 sums of 64 float32 for a source position,
  # 1 + 2 * 8 + 1 for a target position, and four numbers of it.
  a_row = 4 * 16 * ((17 + 18) * 64 + 4)
  assert _on_paper((1, 1, 2)) == {
    Way('all-reduce', ('tensor',)): 2 * 1 / 2 * 64 * a_row
  }


def test_axes_of_a_group():
  mesh = make_mesh(ParallelConfig(2, 2, 2))
  for members, axes in (
    ((0, 1), ('tensor',)),
    ((0, 2), ('fsdp',)),
    ((0, 2, 4, 6), ('data', 'fsdp')),
    (tuple(range(8)), ('data', 'fsdp', 'tensor')),
  ):
    found = Collective('all-reduce', 4, members, 1)
    assert way(found, mesh) == Way('all-reduce', axes)


@pytest.mark.extended
def test_a_step_on_all_axes_exchanges_what_it_has_to():
  rows = measured((2, 2, 2), 2)
  found = {(row['kind'], *row['axes']) for row in rows if row['paper']}
  assert found == {
    ('all-gather', 'fsdp'),
    ('reduce-scatter', 'fsdp'),
    ('all-reduce', 'data'),
    ('all-reduce', 'data', 'fsdp'),
    ('all-reduce', 'tensor'),
  }


@pytest.mark.parametrize(
  ('changes', 'times', 'message'),
  [
    ({'sent': 1_100.0}, 1, '1,100 bytes, on paper 1,000'),
    ({}, 2, 'all-reduce over data: 2 times an update'),
    ({'paper': 0.0, 'sent': 3_000.0}, 1, '3,000 bytes that the layout needs'),
    ({'paper': 0.0, 'kind': 'all-to-all'}, 1, 'all-to-all over data: 1,000'),
  ],
)
def test_what_is_refused(changes, times, message):
  row = {
    'mesh': [8, 1, 1],
    'parts': 2,
    'kind': 'all-reduce',
    'axes': ['data'],
    'sent': 1_000.0,
    'paper': 1_000.0,
  }
  check(row, 1)
  with pytest.raises(CheckFailed, match=message):
    check(row | changes, times)
