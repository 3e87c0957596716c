"""Mixtures of several predictions, beside their formulas."""

import jax
import jax.numpy as jnp
import numpy as np

from fusion_jax.fusion.mixture import mixture_log_probabilities


def _mixture(logits, log_weights, combine):
  """The mixture of given logits [G, M, V]: the output layer is the identity."""
  return mixture_log_probabilities(logits, log_weights, lambda x: x, combine)


def test_mixture_of_certain_groups_stays_finite():
  # exp(-1e4) is 0 in float32; its logarithm must still come out.
  logits = jnp.array([[[1e4, 0.0]], [[1e4, 0.0]]])
  for combine in ('arithmetic', 'geometric'):
    log_p = _mixture(logits, jnp.log(jnp.array([0.5, 0.5])), combine)
    np.testing.assert_allclose(log_p, [[0, -1e4]], atol=1e-5)


def test_mixture_of_bfloat16_features_is_float32():
  logits = 3 * jax.random.normal(jax.random.key(0), (3, 4, 7))
  log_weights = jnp.log(jnp.array([0.2, 0.3, 0.5]))
  half = _mixture(logits.astype(jnp.bfloat16), log_weights, 'arithmetic')
  assert half.dtype == jnp.float32
  exact = _mixture(logits, log_weights, 'arithmetic')
  np.testing.assert_allclose(half, exact, atol=0.1)
