"""The diversity of layers, beside its formula."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fusion_jax.fusion.diversity import layer_diversity

_KEEP = jnp.array([[True, True, False], [True, False, False]])
_diversity = jax.jit(layer_diversity)
_with_gradient = jax.value_and_grad(
  lambda layers: layer_diversity(layers, _KEEP)
)


def _layers(count=3):
  keys = jax.random.split(jax.random.key(0), count)
  return tuple(jax.random.normal(key, (2, 3, 8)) for key in keys)


def test_padding_is_nothing():
  layers = _layers()
  other = tuple(
    jnp.where(_KEEP[..., None], h, 1e3 * n) for n, h in enumerate(layers)
  )
  expected, gradient = _with_gradient(layers)
  np.testing.assert_allclose(_diversity(other, _KEEP), expected, rtol=1e-6)
  for g in gradient:
    assert not np.asarray(g)[~np.asarray(_KEEP)].any()
    assert np.asarray(g)[np.asarray(_KEEP)].all()


def test_one_layer_and_no_tokens_have_none():
  value, (gradient,) = _with_gradient(_layers(1))
  assert float(value) == 0
  assert value.dtype == jnp.float32
  assert not np.asarray(gradient).any()
  assert float(_diversity(_layers(), jnp.zeros_like(_KEEP))) == 0


def test_bfloat16_layers_give_a_float32_value():
  half = tuple(h.astype(jnp.bfloat16) for h in _layers())
  value, gradient = _with_gradient(half)
  assert value.dtype == jnp.float32
  assert gradient[0].dtype == jnp.bfloat16
  exact = float(_diversity(_layers(), _KEEP))
  assert float(value) == pytest.approx(exact, rel=0.02)


@pytest.mark.parametrize('dtype', [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize('scale', [1e-6, 1e3, 0.0])
@pytest.mark.parametrize('same', [False, True])
def test_extreme_layers_stay_finite(scale, same, dtype):
  layers = tuple((scale * layer).astype(dtype) for layer in _layers())
  if same:
    layers = layers[:1] * len(layers)
  value, gradient = _with_gradient(layers)
  assert 0 <= float(value) <= 1
  for leaf in gradient:
    assert np.isfinite(np.asarray(leaf, np.float32)).all()
