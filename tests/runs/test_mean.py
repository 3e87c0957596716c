import jax
import jax.numpy as jnp
import numpy as np

from fusion_jax.parallel.mesh import by_rows, data_mesh
from fusion_jax.runs.loading import RunningMean


def _mean(leaves):
  mean = RunningMean()
  for leaf in leaves:
    mean.add({'leaf': jnp.asarray(leaf)})
  assert mean.count == len(leaves)
  return mean.value()['leaf']


def test_by_hand():
  np.testing.assert_array_equal(_mean([[1.0, -2.0], [2.0, 4.0]]), [1.5, 1.0])
  np.testing.assert_array_equal(_mean([[3.0, 0.1]]), np.float32([3.0, 0.1]))


def test_the_error_of_many_is_that_of_float32():
  leaves = np.random.default_rng(0).normal(size=(30, 500)).astype(np.float32)
  expected = leaves.astype(np.float64).mean(axis=0)
  # 30 additions of values below 5, each rounded to 2^-24 of a sum below 32.
  error = np.abs(_mean(list(leaves)) - expected)
  assert error.max() < 32 * 2**-24


def test_parameters_that_are_cut_over_devices_stay_so():
  sharding = by_rows(data_mesh())
  rows = np.arange(8.0, dtype=np.float32).reshape(8, 1)
  leaves = [jax.device_put(rows * k, sharding) for k in (1.0, 3.0)]
  mean = _mean(leaves)
  np.testing.assert_array_equal(mean, 2 * rows)
  assert mean.sharding == sharding
  assert len(mean.sharding.device_set) == 8
