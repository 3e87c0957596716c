"""Dynamic combination, where every position weighs its layers."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from aggregates import (
  CONTEXT,
  apply_fusion,
  initial_parameters,
  noise_parameters,
  normal_layers,
  position,
  run_fusion,
  tiny_config,
)

from fusion_jax.fusion.linear import DynamicCombination


def _module(layers=3, *others, **changes):
  config = tiny_config('dynamic_combination', layers, *others, **changes)
  return DynamicCombination(config, 'encoder')


@functools.partial(jax.jit, static_argnums=0)
def _weights(module, params, layers):
  return module.apply({'params': params}, layers[1:], CONTEXT, method='weights')


def test_dynamic_combination_by_hand():
  module = _module(2, {'hidden': 1}, width=2, heads=1)
  params = {
    'hidden': {
      'kernel': jnp.array([[1.0], [0], [0], [1]]),
      'bias': jnp.array([-3.0]),
    },
    'out': {
      'kernel': jnp.array([[1.0, 0, -1, 2]]),
      'bias': jnp.array([0.0, 1, 0, 0]),
    },
  }
  # H[0] is not read. relu(1 + 4 - 3) = 2: weights (2, 1), (-2, 4).
  # (2 * 1, 1 * 2) + (-2 * 3, 4 * 4)
  layers = (position(9, 9), position(1, 2), position(3, 4))
  y = apply_fusion(module, params, layers)
  np.testing.assert_array_equal(y, position(-4, 18))
  # relu(1 - 6 - 3) = 0: weights (0, 1), (0, 0).
  layers = (position(9, 9), position(1, 2), position(3, -6))
  y = apply_fusion(module, params, layers)
  np.testing.assert_array_equal(y, position(0, 2))


def test_baseline_start_trains_both_matrices():
  module, x = _module(3, None, 'baseline'), normal_layers(4)
  params = initial_parameters(module, x)

  def loss(params):
    return (apply_fusion(module, params, x) * x[0]).sum()

  gradient_of = jax.jit(jax.grad(loss))
  gradient = gradient_of(params)
  assert np.abs(gradient['out']['kernel']).max() > 0
  moved = jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient)
  assert np.abs(gradient_of(moved)['hidden']['kernel']).max() > 0


def test_recorded_weights_are_means_over_tokens():
  module, x = _module(), normal_layers(4)
  params = noise_parameters(module, x)
  tokens = jnp.arange(5) < jnp.array([[5], [2]])
  _, state = run_fusion(module, params, x, tokens)
  kept = np.asarray(_weights(module, params, x))[np.asarray(tokens)]
  recorded = state['telemetry']['layer_weights']
  np.testing.assert_allclose(recorded, kept.mean((0, 2)), rtol=1e-5, atol=1e-6)
