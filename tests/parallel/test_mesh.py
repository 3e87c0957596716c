"""Meshes of given devices, and over slices of a pod."""

import jax
import pytest

from fusion_jax.config.training import ParallelConfig
from fusion_jax.errors import InputError
from fusion_jax.parallel.mesh import make_mesh, over_slices


@pytest.mark.parametrize(
  ('shape', 'slices', 'outer'),
  [
    ((32, 1, 1), 2, (2, 1, 1)),
    ((4, 4, 2), 4, (4, 1, 1)),
    ((1, 8, 2), 2, (1, 2, 1)),
    ((2, 4, 1), 4, (2, 2, 1)),
    ((6, 2, 1), 4, (2, 2, 1)),
  ],
)
def test_data_lies_over_slices_and_then_fsdp(shape, slices, outer):
  assert over_slices(shape, slices) == outer


@pytest.mark.parametrize(
  ('shape', 'slices'), [((1, 1, 8), 2), ((3, 1, 2), 2), ((2, 3, 2), 4)]
)
def test_tensor_stays_inside_of_a_slice(shape, slices):
  with pytest.raises(InputError, match='does not divide over the'):
    over_slices(shape, slices)


def test_a_mesh_of_given_devices():
  devices = jax.devices()[2:6]
  mesh = make_mesh(ParallelConfig(fsdp=2), devices)
  assert dict(mesh.shape) == {'data': 2, 'fsdp': 2, 'tensor': 1}
  assert list(mesh.devices.flat) == devices
  with pytest.raises(InputError, match='does not multiply to the 4 devices'):
    make_mesh(ParallelConfig(fsdp=3), devices)
