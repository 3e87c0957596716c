"""Read-outs beside their formulas: starts, dropout, telemetry, precision."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from aggregates import (
  CONTEXT,
  KEY,
  apply_fusion,
  initial_parameters,
  noise_parameters,
  normal_layers,
  tiny_config,
)
from flax import linen as nn
from numpy_parts import layer_norm

from fusion_jax.config import ModelConfig, SideConfig
from fusion_jax.fusion.average import average
from fusion_jax.fusion.feed_forward import FeedForwardFusion, LayerEmbedding
from fusion_jax.fusion.hops import Hops
from fusion_jax.fusion.inputs import InputNorms, per_layer_norms, weighted_sum
from fusion_jax.fusion.linear import DynamicCombination, Linear
from fusion_jax.testing import assert_close


@pytest.mark.parametrize(
  'add',
  [
    lambda layers: weighted_sum(jnp.ones(5), layers),
    lambda layers: 5 * average(layers),
  ],
)
def test_bfloat16_layers_are_summed_in_float32(add):
  # 256 + 1 is no bfloat16 number: a sum term by term would stay at 256.
  layers = tuple(jnp.full((1, 1, 2), n, jnp.bfloat16) for n in (256, *[1] * 4))
  y = add(layers)
  assert y.dtype == jnp.bfloat16
  np.testing.assert_array_equal(y, jnp.full((1, 1, 2), 260))


@pytest.mark.parametrize(
  ('norm', 'input_norm', 'expected'),
  [
    ('pre', 'auto', True),
    ('post', 'auto', False),
    ('rezero', 'auto', False),
    ('pre', 'none', False),
    ('post', 'per_layer', True),
    ('rezero', 'per_layer', True),
  ],
)
def test_which_models_have_norms_of_the_fused_layers(
  norm, input_norm, expected
):
  config = ModelConfig(norm=norm, encoder=SideConfig(input_norm=input_norm))
  assert per_layer_norms(config, 'encoder') is expected


def test_each_layer_that_is_read_has_a_norm_of_its_own():
  norms = InputNorms(tiny_config('average', norm='pre'), 'encoder', (2, 3))
  layers = tuple(10.0**n * x for n, x in enumerate(normal_layers(4)))
  params = nn.unbox(norms.init(KEY, layers))['params']
  assert sorted(params) == ['input_norm_2', 'input_norm_3']
  params['input_norm_3']['scale'] *= 3
  normed = norms.apply({'params': params}, layers)
  upper = layer_norm(layers[2]), 3 * layer_norm(layers[3])
  assert_close(normed, (*layers[:2], *upper))


@pytest.mark.parametrize('factored', [True, False])
def test_linear_baseline_start_is_the_last_layer_exactly(factored):
  rates = {'dropout': 0.5, 'activation_dropout': 0.5}
  others = rates | {'initialization': 'fan_in', 'compute_dtype': 'bfloat16'}
  config = tiny_config(
    'linear', 3, {'factored': factored}, 'baseline', **others
  )
  module, x = Linear(config, 'decoder'), normal_layers(4, dtype='bfloat16')
  params = initial_parameters(module, x)
  y = apply_fusion(module, params, x, deterministic=False)
  assert y.dtype == 'bfloat16'
  np.testing.assert_array_equal(np.float32(y), np.float32(x[-1]))


@pytest.mark.parametrize(
  ('kind', 'scheme', 'least'),
  # Of those with a ReLU some may be closed.
  [
    (Linear, 'linear', np.min),
    (DynamicCombination, 'dynamic_combination', np.max),
  ],
)
def test_a_baseline_start_leaves_nothing_dead(kind, scheme, least):
  module = kind(tiny_config(scheme, start='baseline'), 'encoder')
  x = normal_layers(4)
  params = initial_parameters(module, x)

  def loss(params):
    return (apply_fusion(module, params, x) * x[1]).sum()

  gradient_of = jax.jit(jax.grad(loss))
  gradient = gradient_of(params)
  assert least(np.abs(gradient['out']['kernel'])) > 0
  moved = jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient)
  assert least(np.abs(gradient_of(moved)['hidden']['kernel'])) > 0


def test_plain_linear_starts_as_one_matrix_over_all_layers():
  config = tiny_config('linear', 3, {'factored': False}, width=64)
  params = initial_parameters(Linear(config, 'encoder'), normal_layers(4, 64))
  limit = math.sqrt(6 / (3 * 64 + 64))
  assert 0.99 * limit < np.abs(params['kernel']).max() <= limit


def test_layer_embedding_fits_the_deeper_stack():
  config = tiny_config('feed_forward')
  config = dataclasses.replace(config, encoder_layers=5, width=64)
  table = nn.unbox(LayerEmbedding(config).init(KEY))['params']['embedding']
  assert table.shape == (6, 64)
  assert 0.09 < np.abs(table).max() <= 0.1
  assert abs(table.mean()) < 0.01


def test_activation_dropout_reaches_the_hidden_layer():
  config = tiny_config('feed_forward', activation_dropout=0.5)
  module = FeedForwardFusion(config, 'encoder', LayerEmbedding(config))
  x = normal_layers(4)
  params = noise_parameters(module, x)
  y, z = (
    apply_fusion(module, params, x, deterministic=d) for d in (True, False)
  )
  assert np.abs(y - z).max() > 0.1


@pytest.mark.parametrize('independent', ['none', 'per_layer', 'per_hop'])
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


@pytest.mark.parametrize(
  ('kind', 'scheme', 'view', 'mean'),
  [
    (Hops, 'hops', 'hop_attention', lambda x: x.mean(0).T),
    (
      DynamicCombination,
      'dynamic_combination',
      'layer_weights',
      lambda x: x.mean((0, 2)),
    ),
  ],
)
def test_recorded_weights_are_means_over_tokens(kind, scheme, view, mean):
  module, x = kind(tiny_config(scheme), 'encoder'), normal_layers(4)
  tokens = jnp.arange(5) < jnp.array([[5], [2]])
  _, kept = module.apply(
    {'params': noise_parameters(module, x)},
    x,
    dataclasses.replace(CONTEXT, tokens=tokens),
    mutable=['telemetry', 'views'],
  )
  expected = mean(np.asarray(kept['views'][view])[np.asarray(tokens)])
  np.testing.assert_allclose(
    kept['telemetry'][view], expected, rtol=1e-5, atol=1e-6
  )
