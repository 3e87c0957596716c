import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from aggregates import (
  WIDTH,
  apply_fusion,
  initial_parameters,
  noise_parameters,
  normal_layers,
  position,
  run_fusion,
  tiny_config,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from fusion_jax.fusion.hops import Hops, hop_scores, hop_sums


@functools.partial(jax.jit, static_argnums=0)
def _attention(module, params, layers):
  return module.apply({'params': params}, layers, method='attention')


def test_hop_scores_by_hand():
  z = position(1, -1)
  first = jnp.array([[1.0, 2], [3, 0]])
  second = jnp.array([[1.0, 2], [3, -1]])
  # tanh(1 - 3, 2) = (-t, t); times the columns (1, 3) and (2, -1).
  one, two = math.tanh(1), math.tanh(2)
  np.testing.assert_allclose(
    hop_scores(z, [first], second), position(2 * two, -3 * two), rtol=1e-6
  )
  # A W1 each: hop 1 as before; hop 2 has tanh(1, 1) -> 2 - 1.
  both = [first, jnp.array([[1.0, 1], [0, 0]])]
  np.testing.assert_allclose(
    hop_scores(z, both, second), position(2 * two, one), rtol=1e-6
  )


def test_hop_sums_by_hand():
  layers = (position(1, 2), position(10, 20))
  # [layer, hop]
  attention = jnp.array([[0.25, 1.0], [0.75, 0.0]])[None, None]
  np.testing.assert_array_equal(
    hop_sums(attention, layers), position(7.75, 15.5, 1, 2)
  )


def test_hops_by_hand():
  options = {
    **dict.fromkeys(('hops', 'scorer_width', 'hidden'), 1),
    'norm': 'none',
  }
  config = tiny_config('hops', 1, options, width=2, heads=1)
  params = {
    'scorer_hidden': {'kernel': jnp.array([[1.0], [0]])},
    'scorer_out': {'kernel': jnp.array([[2.0]])},
    'hidden': {'kernel': jnp.array([[1.0], [1]]), 'bias': jnp.array([0.0])},
    'out': {'kernel': jnp.array([[1.0, -1]]), 'bias': jnp.array([0.0, 0.0])},
  }
  layers = (position(1, 2), position(-1, 6))
  # Scores 2 tanh(1) and 2 tanh(-1); sums of the two layers 3 and 5.
  first = 1 / (1 + math.exp(-4 * math.tanh(1)))
  expected = 3 * first + 5 * (1 - first)
  y = apply_fusion(Hops(config, 'encoder'), params, layers)
  np.testing.assert_allclose(y, position(expected, -expected), rtol=1e-6)


_INDEPENDENT = ['none', 'per_layer', 'per_hop']


@settings(max_examples=25)
@given(
  count=st.integers(1, 7),
  scale=st.sampled_from([1e-6, 1.0, 1e3]),
  seed=st.integers(0, 999),
)
def test_hop_sums_lie_among_the_layers(count, scale, seed):
  layers = tuple(scale * z for z in normal_layers(count, seed=seed))
  odds = np.random.default_rng(seed).exponential(size=(2, 5, count, 3)) ** 3
  attention = jnp.asarray(odds / odds.sum(2, keepdims=True), jnp.float32)
  sums = np.asarray(hop_sums(attention, layers)).reshape(2, 5, 3, WIDTH)
  stacked = np.stack(layers)[..., None, :]
  slack = 1e-5 * scale
  assert (sums >= stacked.min(0) - slack).all()
  assert (sums <= stacked.max(0) + slack).all()


@pytest.mark.parametrize('independent', _INDEPENDENT)
def test_scorer_matrices_start_as_if_alone(independent):
  options = {'scorer_width': 100, 'hops': 4, 'independent': independent}
  config = tiny_config('hops', 3, options, width=64, initialization='fan_in')
  params = initial_parameters(Hops(config, 'encoder'), normal_layers(4, 64))
  kernels = params['scorer_hidden']['kernel'].reshape(-1, 64, 100)
  # U(-1 / sqrt(fan_in), 1 / sqrt(fan_in)), Wang et al. (2018), section 4.2.
  largest = np.abs(kernels).max((1, 2))
  assert (largest > 0.99 / 8).all()
  assert (largest <= 1 / 8).all()
  assert len(np.unique(largest)) == len(kernels)
  assert 0.09 < np.abs(params['scorer_out']['kernel']).max() <= 0.1


@pytest.mark.parametrize('include', [True, False])
def test_recorded_attention_is_the_mean_over_tokens(include):
  config = tiny_config('hops', options={'include_embedding': include})
  module, x = Hops(config, 'encoder'), normal_layers(4)
  params = noise_parameters(module, x)
  fused = x if include else x[1:]
  attention = _attention(module, params, fused)
  tokens = jnp.arange(5) < jnp.array([[5], [2]])
  _, state = run_fusion(module, params, x, tokens)
  recorded = state['telemetry']['hop_attention']
  kept = np.asarray(attention)[np.asarray(tokens)]
  np.testing.assert_allclose(recorded, kept.mean(0).T, rtol=1e-5)
  np.testing.assert_allclose(recorded.sum(1), 1, rtol=1e-5)
