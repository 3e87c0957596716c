import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from aggregates import (
  initial_parameters,
  noise_parameters,
  normal_layers,
  run_fusion,
  tiny_config,
)

from fusion_jax.fusion.hops import Hops


@functools.partial(jax.jit, static_argnums=0)
def _attention(module, params, layers):
  return module.apply({'params': params}, layers, method='attention')


_INDEPENDENT = ['none', 'per_layer', 'per_hop']


@pytest.mark.parametrize('independent', _INDEPENDENT)
def test_scorer_matrices_start_as_if_alone(independent):
  options = {'scorer_width': 100, 'hops': 4, 'independent': independent}
  config = tiny_config('hops', 3, options, width=64, initialization='mlrf')
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
