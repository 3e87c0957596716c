import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from aggregates import (
  CONTEXT,
  WIDTH,
  apply_fusion,
  initial_parameters,
  noise_parameters,
  normal_layers,
  position,
  run_fusion,
  tiny_config,
  with_table,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.test_util import check_grads

from fusion_jax.fusion.feed_forward import FeedForwardFusion
from fusion_jax.fusion.hops import Hops, hop_scores, hop_sums


@functools.partial(jax.jit, static_argnums=0)
def _attention(module, params, layers):
  return module.apply({'params': params}, layers, method='attention')


@functools.partial(jax.jit, static_argnums=0)
def _network(module, params, z):
  return module.apply({'params': params}, z, CONTEXT, method='network')


def test_hop_scores_by_hand():
  z = position(1, -1)
  first = jnp.array([[[1.0, 2], [3, 0]]])
  second = jnp.array([[[1.0], [2]], [[3], [-1]]])
  # relu(1 - 3, 2) = (0, 2); times the columns (1, 3) and (2, -1).
  np.testing.assert_array_equal(
    hop_scores(z, first, second, jax.nn.relu), position([6], [-2])
  )
  # A W1 each: hop 1 as before; hop 2 has relu(1, 1) = (1, 1) -> 2 - 1.
  both = jnp.concatenate([first, jnp.array([[[1.0, 1], [0, 0]]])])
  np.testing.assert_array_equal(
    hop_scores(z, both, second, jax.nn.relu), position([6], [1])
  )


def test_hop_sums_by_hand():
  layers = (position(1, 2), position(10, 20))
  # [layer, hop, 1]
  attention = jnp.array([[[0.25], [1.0]], [[0.75], [0.0]]])[None, None]
  np.testing.assert_array_equal(
    hop_sums(attention, layers), position(7.75, 15.5, 1, 2)
  )
  # A weight for each feature of the only hop.
  attention = jnp.array([[[0.5, 0.0]], [[0.5, 1.0]]])[None, None]
  np.testing.assert_array_equal(hop_sums(attention, layers), position(5.5, 20))


@pytest.mark.parametrize('activation', ['tanh', 'relu'])
def test_hops_by_hand(activation):
  options = {
    **dict.fromkeys(('hops', 'scorer_width', 'hidden'), 1),
    'scorer_activation': activation,
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
  # Scores 2 f(1) and 2 f(-1); sums of the two layers 3 and 5.
  f = math.tanh if activation == 'tanh' else lambda x: max(x, 0)
  first = 1 / (1 + math.exp(2 * f(-1) - 2 * f(1)))
  expected = 3 * first + 5 * (1 - first)
  y = apply_fusion(Hops(config, 'encoder'), params, layers)
  np.testing.assert_allclose(y, position(expected, -expected), rtol=1e-6)


_INDEPENDENT = ['none', 'per_layer', 'per_hop']


@pytest.mark.parametrize('independent', _INDEPENDENT)
@pytest.mark.parametrize(('feature_wise', 'layers'), [(True, 3), (False, 6)])
def test_attention_sums_to_one_over_the_layers(
  independent, feature_wise, layers
):
  chosen = {'independent': independent, 'feature_wise': feature_wise}
  config = tiny_config('hops', layers, {'hops': 3, **chosen})
  module, x = with_table(Hops, config), normal_layers(layers + 1)
  params = noise_parameters(module, x)
  attention = _attention(module, params, x)
  assert attention.shape == (2, 5, layers + 1, 3, 8 if feature_wise else 1)
  assert attention.dtype == jnp.float32
  assert (attention >= 0).all()
  np.testing.assert_allclose(attention.sum(2), 1, rtol=1e-6)


@settings(max_examples=25)
@given(
  count=st.integers(1, 7),
  scale=st.sampled_from([1e-6, 1.0, 1e3]),
  seed=st.integers(0, 999),
)
def test_hop_sums_lie_among_the_layers(count, scale, seed):
  layers = tuple(scale * z for z in normal_layers(count, seed=seed))
  odds = np.random.default_rng(seed).exponential(size=(2, 5, count, 3, 1)) ** 3
  attention = jnp.asarray(odds / odds.sum(2, keepdims=True), jnp.float32)
  sums = np.asarray(hop_sums(attention, layers)).reshape(2, 5, 3, WIDTH)
  stacked = np.stack(layers)[..., None, :]
  slack = 1e-5 * scale
  assert (sums >= stacked.min(0) - slack).all()
  assert (sums <= stacked.max(0) + slack).all()


@pytest.mark.parametrize('independent', _INDEPENDENT)
def test_equal_scores_give_the_mean_in_every_hop(independent):
  config = tiny_config('hops', options={'independent': independent})
  module, x = with_table(Hops, config), normal_layers(4)
  params = noise_parameters(module, x)
  params['scorer_out']['kernel'] = jnp.zeros((6, 2))
  table = params['embedding']['embedding']
  mean = sum(z + row for z, row in zip(x, table, strict=True)) / 4
  expected = _network(module, params, jnp.concatenate([mean, mean], -1))
  np.testing.assert_allclose(
    apply_fusion(module, params, x), expected, rtol=1e-5, atol=1e-5
  )


def test_a_single_layer_gets_all_attention():
  config = tiny_config('hops', 1, {'include_embedding': False})
  module, x = with_table(Hops, config), normal_layers(2)
  params = noise_parameters(module, x)
  only = x[1] + params['embedding']['embedding'][1]
  expected = _network(module, params, jnp.concatenate([only, only], -1))
  np.testing.assert_allclose(
    apply_fusion(module, params, x), expected, rtol=1e-6
  )


@pytest.mark.parametrize(
  ('kind', 'options'),
  [
    (FeedForwardFusion, {}),
    *((Hops, {'hops': 3, 'independent': how}) for how in _INDEPENDENT),
  ],
)
def test_layers_change_places_together_with_what_is_theirs(kind, options):
  name = 'hops' if kind is Hops else 'feed_forward'
  config = tiny_config(name, options=options)
  module, x = with_table(kind, config), normal_layers(4)
  params = noise_parameters(module, x)
  order = np.array([2, 0, 3, 1])
  moved = jax.tree.map(lambda leaf: leaf, params)
  moved['embedding']['embedding'] = params['embedding']['embedding'][order]
  if kind is FeedForwardFusion:
    blocks = params['hidden']['kernel'].reshape(4, WIDTH, -1)
    moved['hidden']['kernel'] = blocks[order].reshape(4 * WIDTH, -1)
  elif options['independent'] == 'per_layer':
    kernel = params['scorer_hidden']['kernel']
    moved['scorer_hidden']['kernel'] = kernel[order]
  np.testing.assert_allclose(
    apply_fusion(module, params, x),
    apply_fusion(module, moved, tuple(x[i] for i in order)),
    rtol=1e-4,
    atol=1e-5,
  )


@pytest.mark.parametrize('independent', ['per_layer', 'per_hop'])
@pytest.mark.parametrize('feature_wise', [True, False])
def test_equal_independent_matrices_are_one_shared(independent, feature_wise):
  options = {'hops': 3, 'feature_wise': feature_wise}
  shared = Hops(tiny_config('hops', options=options), 'encoder')
  options['independent'] = independent
  own, x = (
    Hops(tiny_config('hops', options=options), 'encoder'),
    normal_layers(4),
  )
  params = noise_parameters(shared, x)
  copies = jnp.stack(
    [params['scorer_hidden']['kernel']]
    * (4 if independent == 'per_layer' else 3)
  )
  assert (
    copies.shape == noise_parameters(own, x)['scorer_hidden']['kernel'].shape
  )
  np.testing.assert_allclose(
    apply_fusion(shared, params, x),
    apply_fusion(own, params | {'scorer_hidden': {'kernel': copies}}, x),
    rtol=1e-4,
    atol=1e-5,
  )


def test_feature_wise_with_equal_columns_is_one_weight_a_layer():
  wise = Hops(tiny_config('hops', options={'feature_wise': True}), 'encoder')
  plain, x = Hops(tiny_config('hops'), 'encoder'), normal_layers(4)
  params = noise_parameters(plain, x)
  repeated = jnp.repeat(params['scorer_out']['kernel'], WIDTH, 1)
  np.testing.assert_allclose(
    apply_fusion(plain, params, x),
    apply_fusion(wise, params | {'scorer_out': {'kernel': repeated}}, x),
    rtol=1e-4,
    atol=1e-5,
  )


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
  np.testing.assert_allclose(recorded, kept.mean(0)[..., 0].T, rtol=1e-5)
  np.testing.assert_allclose(recorded.sum(1), 1, rtol=1e-5)


@pytest.mark.parametrize('shared', [True, False])
def test_gradients_of_attention_are_the_differences(shared):
  x, random = normal_layers(3, width=4), np.random.default_rng(5)
  first = random.normal(size=(1 if shared else 2, 4, 3)).astype('float32') / 2
  second = random.normal(size=(3, 2, 4)).astype('float32') / 2

  @jax.jit
  def fused(x, first, second):
    scores = [hop_scores(z, first, second, jnp.tanh) for z in x]
    return hop_sums(jax.nn.softmax(jnp.stack(scores, 2), 2), x).mean(0)

  check_grads(fused, (x, first, second), 1, ['rev'], 1e-2, 1e-2, 1e-2)
