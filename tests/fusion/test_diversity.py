import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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


@settings(max_examples=30)
@given(st.integers(0, 10_000))
def test_between_0_and_1(seed):
  value = _diversity(_layers(seed), _KEEP)
  assert value.dtype == jnp.float32
  assert 0 <= float(value) <= 1


@settings(max_examples=20)
@given(st.integers(0, 10_000), st.sampled_from([-3.0, -1.0, 0.5, 1.0, 7.0]))
def test_proportional_layers_have_none(seed, factor):
  (h,) = _layers(seed, 1)
  value = float(_diversity((h, factor * h), _KEEP))
  assert 0 <= value < 1e-6


def test_orthogonal_layers_have_all():
  h = jnp.zeros((2, 3, 8)).at[..., 0].set(2.0)
  assert float(_diversity((h, jnp.roll(h, 1, -1), h), _KEEP)) == 1


@settings(max_examples=20)
@given(st.integers(0, 10_000))
def test_the_length_of_a_vector_is_nothing(seed):
  layers = _layers(seed)
  keys = jax.random.split(jax.random.key(seed + 1), len(layers))
  scaled = tuple(
    h * jax.random.uniform(key, (2, 3, 1), minval=0.1, maxval=10)
    for h, key in zip(layers, keys, strict=True)
  )
  np.testing.assert_allclose(
    _diversity(layers, _KEEP), _diversity(scaled, _KEEP), rtol=1e-5
  )


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


def test_no_tokens_have_none():
  assert float(_diversity(_layers(0), jnp.zeros_like(_KEEP))) == 0


def test_bfloat16_layers_give_a_float32_value():
  layers = _layers(1)
  half = tuple(h.astype(jnp.bfloat16) for h in layers)
  value, gradient = jax.value_and_grad(lambda h: layer_diversity(h, _KEEP))(
    half
  )
  assert value.dtype == jnp.float32
  assert gradient[0].dtype == jnp.bfloat16
  assert float(value) == pytest.approx(
    float(_diversity(layers, _KEEP)), rel=0.02
  )


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
