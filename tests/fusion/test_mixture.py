import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fusion_jax.fusion.gtrans import log_group_weights
from fusion_jax.fusion.mixture import keep_groups, mixture_log_probabilities


def test_psi_by_hand():
  # 31 of 2 sqrt(512): softmax(0, 31 / 22.6) = (.203, .797).
  log_psi = log_group_weights(jnp.array([0.0, 31.0]), math.sqrt(512))
  np.testing.assert_allclose(np.exp(log_psi), [0.2026, 0.7974], atol=1e-4)


@given(
  st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=6),
  st.floats(-100, 100, width=32),
  st.sampled_from([0.5, 1.0, 22.6]),
)
def test_psi_sums_to_1_whatever_is_added(weights, shift, temperature):
  weights = jnp.array(weights, jnp.float32)
  psi = np.exp(log_group_weights(weights, temperature))
  shifted = np.exp(log_group_weights(weights + shift, temperature))
  assert psi.sum() == pytest.approx(1, abs=1e-5)
  np.testing.assert_allclose(psi, shifted, rtol=1e-3, atol=1e-5)


def test_keep_groups_by_hand():
  features = jnp.arange(4.0).reshape(4, 1, 1, 1)
  psi = jnp.array([0.1, 0.2, 0.6, 0.1])
  kept, log_weights = keep_groups(features, jnp.log(psi), 1, 3)
  np.testing.assert_array_equal(kept[:, 0, 0, 0], [1, 2])
  np.testing.assert_allclose(np.exp(log_weights), [0.25, 0.75], rtol=1e-6)
  _, alone = keep_groups(features, jnp.log(psi), 3, 4)
  np.testing.assert_array_equal(alone, [0])


def _mixture(logits, log_weights, combine):
  """The mixture of given logits [G, M, V]: the output layer is the identity."""
  return mixture_log_probabilities(
    jnp.asarray(logits), jnp.asarray(log_weights), lambda x: x, combine
  )


_jitted_mixture = jax.jit(_mixture, static_argnums=2)


def _random_mixture(seed, groups=3, scale=3.0):
  keys = jax.random.split(jax.random.key(seed))
  logits = scale * jax.random.normal(keys[0], (groups, 4, 7))
  return logits, jax.nn.log_softmax(jax.random.normal(keys[1], (groups,)))


def test_mixture_by_hand():
  # P_1 = (1/4, 3/4), P_2 = (3/4, 1/4), psi = (3/4, 1/4).
  logits = np.log([[[1.0, 3.0]], [[3.0, 1.0]]]).astype(np.float32)
  psi = np.array([0.75, 0.25], np.float32)
  arithmetic = _mixture(logits, np.log(psi), 'arithmetic')
  np.testing.assert_allclose(np.exp(arithmetic), [[6 / 16, 10 / 16]], rtol=1e-6)
  geometric = _mixture(logits, np.log(psi), 'geometric')
  expected = [[0.25**0.75 * 0.75**0.25, 0.75**0.75 * 0.25**0.25]]
  np.testing.assert_allclose(np.exp(geometric), expected, rtol=1e-6)


@settings(max_examples=30)
@given(st.integers(0, 10_000), st.sampled_from([0.0, 1.0, 30.0]))
def test_mixture_sums(seed, scale):
  logits, log_weights = _random_mixture(seed, scale=scale)
  arithmetic = _jitted_mixture(logits, log_weights, 'arithmetic')
  geometric = _jitted_mixture(logits, log_weights, 'geometric')
  np.testing.assert_allclose(np.exp(arithmetic).sum(-1), 1, rtol=1e-5)
  assert (np.exp(geometric).sum(-1) <= 1 + 1e-5).all()
  # By the concavity of the logarithm, token by token.
  assert (np.asarray(geometric) <= np.asarray(arithmetic) + 1e-5).all()


@pytest.mark.parametrize('combine', ['arithmetic', 'geometric'])
def test_mixture_of_one_group_is_its_softmax(combine):
  logits, _ = _random_mixture(0, 1)
  np.testing.assert_array_equal(
    _mixture(logits, jnp.zeros(1), combine), jax.nn.log_softmax(logits[0])
  )


@pytest.mark.parametrize('combine', ['arithmetic', 'geometric'])
def test_mixture_of_equal_groups_is_any_of_them(combine):
  logits, log_weights = _random_mixture(0)
  equal = jnp.broadcast_to(logits[:1], logits.shape)
  np.testing.assert_allclose(
    _mixture(equal, log_weights, combine),
    jax.nn.log_softmax(logits[0]),
    rtol=1e-5,
  )


def test_mixture_of_certain_groups_stays_finite():
  # exp(-1e4) is 0 in float32; its logarithm must still come out.
  logits = jnp.array([[[1e4, 0.0]], [[1e4, 0.0]]])
  for combine in ('arithmetic', 'geometric'):
    log_p = _mixture(logits, jnp.log(jnp.array([0.5, 0.5])), combine)
    np.testing.assert_allclose(log_p, [[0, -1e4]], atol=1e-5)


def test_mixture_of_bfloat16_features_is_float32():
  logits, log_weights = _random_mixture(0)
  half = _mixture(logits.astype(jnp.bfloat16), log_weights, 'arithmetic')
  assert half.dtype == jnp.float32
  np.testing.assert_allclose(
    half, _mixture(logits, log_weights, 'arithmetic'), atol=0.1
  )
