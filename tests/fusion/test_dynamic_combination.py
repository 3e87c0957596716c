"""Dynamic combination, where every position weighs its layers."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from aggregates import (
  CONTEXT,
  noise_parameters,
  normal_layers,
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


def test_recorded_weights_are_means_over_tokens():
  module, x = _module(), normal_layers(4)
  params = noise_parameters(module, x)
  tokens = jnp.arange(5) < jnp.array([[5], [2]])
  _, state = run_fusion(module, params, x, tokens)
  kept = np.asarray(_weights(module, params, x))[np.asarray(tokens)]
  recorded = state['telemetry']['layer_weights']
  np.testing.assert_allclose(recorded, kept.mean((0, 2)), rtol=1e-5, atol=1e-6)
