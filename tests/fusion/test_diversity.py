import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fusion_jax.fusion.diversity import layer_diversity

_KEEP = jnp.array([[True, True, False], [True, False, False]])
_diversity = jax.jit(layer_diversity)


def _layers(seed, count=3, width=8, dtype=jnp.float32):
  keys = jax.random.split(jax.random.key(seed), count)
  return tuple(jax.random.normal(key, (2, 3, width), dtype) for key in keys)


def test_by_hand():
  # cos^2 of (1, 0) and (3, 4) is 9/25, of (3, 4) and (0, 2) 16/25; the second
  # token is orthogonal, then proportional.
  a = jnp.array([[[1.0, 0.0], [0.0, 1.0]]])
  b = jnp.array([[[3.0, 4.0], [5.0, 0.0]]])
  c = jnp.array([[[0.0, 2.0], [-1.0, 0.0]]])
  both, first = jnp.array([[True, True]]), jnp.array([[True, False]])
  assert float(_diversity((a, b), both)) == pytest.approx((16 / 25 + 1) / 2)
  assert float(_diversity((a, b, c), first)) == pytest.approx(
    (16 / 25 + 9 / 25) / 2
  )
  assert float(_diversity((a, b, c), both)) == pytest.approx(
    ((16 / 25 + 1) / 2 + (9 / 25 + 0) / 2) / 2
  )


def test_log_distance_by_hand():
  # As above, with log d; d of the proportional pair is floored at 0.001.
  a = jnp.array([[[1.0, 0.0], [0.0, 1.0]]])
  b = jnp.array([[[3.0, 4.0], [5.0, 0.0]]])
  c = jnp.array([[[0.0, 2.0], [-1.0, 0.0]]])
  both = jnp.array([[True, True]])

  def value(*layers):
    return float(layer_diversity(layers, both, reward='log_distance'))

  log = math.log
  assert value(a, b) == pytest.approx((log(16 / 25) + log(1)) / 2)
  expected = (log(16 / 25) + 0 + log(9 / 25) + log(0.001)) / 4
  assert value(a, b, c) == pytest.approx(expected)
  gradient = jax.grad(
    lambda h: layer_diversity((h, h), both, reward='log_distance')
  )(a)
  assert np.isfinite(gradient).all()


def test_padding_is_nothing():
  layers = _layers(0)
  other = tuple(
    jnp.where(_KEEP[..., None], h, 1e3 * n) for n, h in enumerate(layers)
  )
  longer = tuple(jnp.pad(h, ((0, 1), (0, 2), (0, 0))) for h in layers)
  expected = _diversity(layers, _KEEP)
  np.testing.assert_array_equal(_diversity(other, _KEEP), expected)
  np.testing.assert_allclose(
    _diversity(longer, jnp.pad(_KEEP, ((0, 1), (0, 2)))), expected, rtol=1e-6
  )
  gradient = jax.grad(lambda h: layer_diversity(h, _KEEP))(layers)
  for g in gradient:
    assert not np.asarray(g)[~np.asarray(_KEEP)].any()
    assert np.asarray(g)[np.asarray(_KEEP)].all()


def test_one_layer_has_none():
  value, gradient = jax.value_and_grad(lambda h: layer_diversity((h,), _KEEP))(
    _layers(0)[0]
  )
  assert float(value) == 0
  assert value.dtype == jnp.float32
  assert not np.asarray(gradient).any()


@pytest.mark.parametrize('dtype', [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize('scale', [1e-6, 1e3, 0.0])
@pytest.mark.parametrize('same', [False, True])
def test_extreme_layers_stay_finite(scale, same, dtype):
  layers = tuple((scale * layer).astype(dtype) for layer in _layers(0))
  if same:
    layers = layers[:1] * len(layers)
  value, gradient = jax.value_and_grad(lambda h: layer_diversity(h, _KEEP))(
    layers
  )
  assert 0 <= float(value) <= 1
  for leaf in gradient:
    assert np.isfinite(np.asarray(leaf, np.float32)).all()
