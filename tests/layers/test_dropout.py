"""The hash must be as good as threefry for what dropout needs of it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fusion_jax.layers.dropout import Dropout, hash_bits, keep_mask

_SHAPE = (512, 512)
# Five deviations of a mean of 2^18 independent bits: 5 * 0.5 / 2^9.
_FIVE_SIGMA = 5 * 0.5 / 512


def _bits(seed: int, shape=_SHAPE) -> np.ndarray:
  return np.asarray(hash_bits(jax.random.key(seed), shape))


def _bit_matrix(words: np.ndarray) -> np.ndarray:
  return (words.reshape(-1, 1) >> np.arange(32, dtype=np.uint32)) & 1


@pytest.mark.parametrize('seed', range(4))
def test_every_bit_is_balanced(seed):
  means = _bit_matrix(_bits(seed)).mean(0)
  assert np.abs(means - 0.5).max() < _FIVE_SIGMA


@pytest.mark.parametrize('lag', [1, 2, 64, 512, 513])
def test_positions_are_independent(lag):
  top = (_bits(3) >> 31).reshape(-1).astype(float)
  agreement = (top[lag:] == top[:-lag]).mean()
  assert abs(agreement - 0.5) < _FIVE_SIGMA


@pytest.mark.parametrize('other', [1, 2, 255, 2**31])
def test_keys_are_independent(other):
  top, top_other = _bits(0) >> 31, _bits(other) >> 31
  assert abs((top == top_other).mean() - 0.5) < _FIVE_SIGMA


def test_folded_keys_never_give_shifted_copies():
  key = jax.random.key(7)
  first, second = (
    np.asarray(hash_bits(jax.random.fold_in(key, i), (4096,))) for i in (0, 1)
  )
  # 2 * 4096 values of 32 bits share 4096^2 / 2^32 = 0.004 values by chance.
  assert len(np.intersect1d(first, second)) <= 2


def test_bytes_are_uniform():
  # Chi-square of 255 degrees of freedom: mean 255, deviation sqrt(510) = 22.6.
  counts = np.bincount((_bits(5) >> 24).reshape(-1), minlength=256)
  expected = counts.sum() / 256
  chi_square = ((counts - expected) ** 2 / expected).sum()
  assert 255 - 5 * 22.6 < chi_square < 255 + 5 * 22.6


def test_row_sums_have_binomial_variance():
  keep = np.asarray(keep_mask(jax.random.key(1), 0.1, (2048, 512), 'hash'))
  # 512 * 0.1 * 0.9 = 46.08; the variance of 2,048 sums is known to 3 %.
  assert keep.sum(1).var() == pytest.approx(46.08, rel=0.15)
  assert keep.sum(0).var() == pytest.approx(2048 * 0.09, rel=0.3)


@pytest.mark.parametrize('generator', ['hash', 'threefry'])
@pytest.mark.parametrize('rate', [0.1, 0.3, 0.9])
def test_share_kept(generator, rate):
  keep = keep_mask(jax.random.key(2), rate, _SHAPE, generator)
  deviation = (rate * (1 - rate)) ** 0.5 / 512
  assert abs(float(keep.mean()) - (1 - rate)) < 5 * deviation


def test_mask_does_not_depend_on_devices():
  key, shape = jax.random.key(0), (16, 24)
  mesh = jax.make_mesh(
    (8,), ('data',), axis_types=(jax.sharding.AxisType.Auto,)
  )
  rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec('data'))
  mask = jax.jit(
    lambda: keep_mask(key, 0.5, shape, 'hash'), out_shardings=rows
  )()
  np.testing.assert_array_equal(mask, keep_mask(key, 0.5, shape, 'hash'))


def test_expectation_is_kept():
  layer = Dropout(0.25)
  x = jnp.ones(_SHAPE)
  y = layer.apply({}, x, False, rngs={'dropout': jax.random.key(0)})
  assert set(np.unique(y)) == {0.0, np.float32(1 / 0.75)}
  assert float(y.mean()) == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize(('rate', 'deterministic'), [(0.5, True), (0.0, False)])
def test_no_dropout_is_the_identity_and_needs_no_key(rate, deterministic):
  x = jnp.arange(6.0).reshape(2, 3)
  np.testing.assert_array_equal(Dropout(rate).apply({}, x, deterministic), x)
