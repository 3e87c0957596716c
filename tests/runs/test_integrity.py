"""Digests of arrays: by hand, every bit of them, and on many devices."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from fusion_jax.config import ParallelConfig
from fusion_jax.files import DamagedError, check_seal, sealed
from fusion_jax.parallel.mesh import make_mesh
from fusion_jax.runs.integrity import array_digests, check_arrays

_MASK = 2**32 - 1


def _lowbias32(x):
  """https://nullprogram.com/blog/2018/07/31/, in Python's integers."""
  x = (x ^ (x >> 16)) * 0x7FEB352D & _MASK
  x = (x ^ (x >> 15)) * 0x846CA68B & _MASK
  return x ^ (x >> 16)


def _by_hand(words):
  mixed = [
    _lowbias32(w ^ (i * 0x9E3779B9 & _MASK)) for i, w in enumerate(words)
  ]
  again = [(m ^ (m >> 15)) * 0x9E3779B9 for m in mixed]
  return f'{sum(mixed) & _MASK:08x}{sum(again) & _MASK:08x}'


def _digest(array):
  ((_, found),) = array_digests({'x': array}).items()
  assert found['shape'] == list(array.shape)
  return found['digest']


@pytest.mark.parametrize(
  ('array', 'words'),
  [
    (
      jnp.float32([[1.0, -2.0], [0.0, -0.0]]),
      [0x3F800000, 0xC0000000, 0, 1 << 31],
    ),
    (jnp.bfloat16([1.0, -2.0]), [0x3F80, 0xC000]),
    (jnp.int32(-1), [_MASK]),
    (jnp.uint32([7, 9]), [7, 9]),
    (jnp.int8([-1, 2]), [255, 2]),
    (jnp.array([True, False, True]), [1, 0, 1]),
    (jnp.zeros([0, 3]), []),
  ],
)
def test_by_hand(array, words):
  assert _digest(array) == _by_hand(words)


def test_no_bit_and_no_two_signs_may_differ():
  values = np.random.default_rng(0).normal(size=[3, 5]).astype(np.float32)
  bits, seen = values.reshape(-1).view(np.uint32), {_digest(jnp.array(values))}
  flips = [(position, 1 << bit) for position in range(15) for bit in range(32)]
  for position, flip in flips:
    bits[position] ^= flip
    seen.add(_digest(jnp.array(values)))
    bits[position] ^= flip
  assert len(seen) == 1 + len(flips)
  values[0, :2] *= -1
  assert _digest(jnp.array(values)) not in seen
  values[0, :2] *= -1
  assert _digest(jnp.array(values.T)) not in seen


@pytest.mark.parametrize(
  'spec', [('fsdp', 'tensor'), (None, 'fsdp'), (('data', 'fsdp', 'tensor'),)]
)
def test_devices_do_not_matter(spec):
  mesh = make_mesh(ParallelConfig(data=2, fsdp=2, tensor=2))
  values = jax.random.normal(jax.random.key(0), [16, 8])
  cut = jax.device_put(values, NamedSharding(mesh, PartitionSpec(*spec)))
  whole = _digest(values)
  assert _digest(cut) == whole
  # An array need not lie on the mesh that is set.
  with jax.set_mesh(mesh):
    assert _digest(values) == whole


_CUT_ARRAYS = """
import jax
jax.config.update('jax_num_cpu_devices', 8)
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from fusion_jax.runs.integrity import array_digests
mesh = Mesh(jax.devices(), ('fsdp',))
cut = NamedSharding(mesh, PartitionSpec('fsdp'))
arrays = jax.device_put([jax.numpy.ones([16, 32])] * 120, cut)
print(len(array_digests(arrays)))
"""


def test_many_arrays_that_are_cut_do_not_wait_for_one_another():
  # In a process of its own, as it is the process that would hang.
  command = [sys.executable, '-c', _CUT_ARRAYS]
  found = subprocess.run(command, capture_output=True, text=True, timeout=60)
  assert found.stdout == '120\n', found.stderr


def test_what_differs_is_named():
  tree = {'b': jnp.zeros(2), 'c': {'d': jnp.ones(3)}, 'e': None}
  written = array_digests(tree)
  assert list(written) == ['b', 'c/d']
  check_arrays(tree, written)
  check_arrays({'c': {'d': jnp.ones(3)}}, written)
  with pytest.raises(DamagedError, match=r'^c/d do not agree'):
    check_arrays(tree | {'c': {'d': jnp.zeros(3)}}, written)
  with pytest.raises(DamagedError, match=r'^b and 1 more arrays do not agree'):
    check_arrays(jax.tree.map(jnp.cos, tree), written)


def test_a_seal_survives_json_and_finds_changes():
  values = {'b': (1, 2.5), 'a': {'é': None}, 'nan': float('nan')}
  found = sealed(values)
  assert found['b'] == [1, 2.5]
  check_seal(found, 'it')
  for other in (values, found | {'b': [1, 2.25]}):
    with pytest.raises(DamagedError, match=r'^it does not agree'):
      check_seal(other, 'it')
