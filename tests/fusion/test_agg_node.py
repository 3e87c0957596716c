import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from hypothesis import given, settings
from hypothesis import strategies as st
from trees import (
  HEADS,
  LENGTH,
  WIDTH,
  agg_node,
  apply_tree,
  assert_close,
  initial_parameters,
  layer_norm,
  make_context,
  noise_parameters,
  normal_state,
  normal_states,
  tree_config,
)

from fusion_jax.fusion.tree import add_residual, exploitation_scores
from fusion_jax.layers.attention import causal_mask, padding_mask


def _agg(options=None, **changes):
  return agg_node(tree_config(options=options, **changes))


def _silenced(params):
  """W2 = 0, b2 = 0."""
  return {**params, 'out': jax.tree.map(jnp.zeros_like, params['out'])}


def test_exploitation_scores_by_hand():
  # Three inputs of width 2: |W1| sums to 2 + 1 | 1 + 0 | 3 + 3.
  kernel = jnp.array([[1, -1], [0.5, 0.5], [-1, 0], [0, 0], [3, 0], [1, -2]])
  assert_close(exploitation_scores(kernel, 3), [0.3, 0.1, 0.6])
  np.testing.assert_array_equal(
    exploitation_scores(jnp.zeros((4, 3)), 2), [0, 0]
  )


@settings(max_examples=10)
@given(st.integers(1, 5), st.floats(1e-3, 1e3), st.integers(0, 99))
def test_exploitation_scores_are_shares(inputs, scale, seed):
  kernel = np.random.default_rng(seed).normal(size=(inputs * 4, 3))
  scores = exploitation_scores(jnp.float32(kernel), inputs)
  assert scores.shape == (inputs,)
  assert (np.asarray(scores) > 0).all()
  assert float(scores.sum()) == pytest.approx(1, rel=1e-5)
  assert_close(
    exploitation_scores(jnp.float32(-scale * kernel), inputs), scores
  )
  blocks = kernel.reshape(inputs, 4, 3)[::-1].reshape(-1, 3)
  assert_close(exploitation_scores(jnp.float32(blocks), inputs), scores[::-1])


def test_residuals_by_hand():
  y, *inputs = (jnp.full((1, 1, 2), n) for n in (1000.0, 1.0, 10.0, 100.0))
  inputs = tuple(inputs)
  for residual, total in (('all', 1111), ('top', 1010), ('none', 1000)):
    added = add_residual(y, inputs, 1, residual)
    np.testing.assert_array_equal(added, jnp.full((1, 1, 2), total))


@pytest.mark.parametrize(
  ('activation', 'residual', 'hidden'),
  [('sigmoid', 'all', 0), ('relu', 'top', 5), ('sigmoid', 'none', 0)],
)
def test_node_against_its_formula(activation, residual, hidden):
  agg = {'activation': activation, 'residual': residual, 'hidden': hidden}
  node, inputs = _agg(agg), normal_states(3)
  params = noise_parameters(node, inputs)
  width = hidden or 12
  assert params['hidden']['kernel'].shape == (3 * WIDTH, width)
  assert params['out']['kernel'].shape == (width, WIDTH)
  z = np.concatenate(inputs, -1)
  h = z @ params['hidden']['kernel'] + params['hidden']['bias']
  h = 1 / (1 + np.exp(-h)) if activation == 'sigmoid' else np.maximum(h, 0)
  y = h @ params['out']['kernel'] + params['out']['bias']
  y = y + {'all': sum(inputs), 'top': inputs[0], 'none': 0}[residual]
  output, recorded = apply_tree(node, params, inputs)
  assert_close(output, layer_norm(y, **params['norm']), 1e-4)
  assert_close(
    recorded['telemetry']['exploitation'],
    exploitation_scores(params['hidden']['kernel'], 3),
  )


@pytest.mark.parametrize('activation', ['sigmoid', 'relu', 'attention'])
@pytest.mark.parametrize('initialization', ['glorot', 'mlrf'])
def test_a_silent_node_is_the_norm_of_its_residuals(activation, initialization):
  agg = {'activation': activation, 'zero_out': True}
  node = _agg(agg, initialization=initialization)
  inputs = normal_states(3)
  params = initial_parameters(node, inputs)
  assert not any(np.asarray(leaf).any() for leaf in params['out'].values())
  output, _ = apply_tree(node, params, inputs)
  assert_close(output, layer_norm(sum(inputs)))


@pytest.mark.parametrize('activation', ['sigmoid', 'attention'])
def test_a_silent_node_is_symmetric_and_trains(activation):
  node, inputs = _agg({'activation': activation}), normal_states(3)
  params = _silenced(initial_parameters(node, inputs))
  output, _ = apply_tree(node, params, inputs)
  assert_close(apply_tree(node, params, inputs[::-1])[0], output)

  def loss(params):
    out = node.apply({'params': params}, inputs, 0, make_context())
    return (out * normal_state(7)).sum()

  gradient = jax.jit(jax.grad(loss))(params)
  assert np.asarray(gradient['out']['kernel']).any()


@pytest.mark.parametrize('residual', ['all', 'none'])
@pytest.mark.parametrize('activation', ['sigmoid', 'attention'])
def test_inputs_swap_with_the_blocks_of_the_kernel(activation, residual):
  node = _agg({'activation': activation, 'residual': residual})
  inputs = normal_states(3)
  params = noise_parameters(node, inputs)
  order = (2, 0, 1)
  swapped = jax.tree.map(lambda leaf: leaf, params)
  for name in ('hidden', 'query', 'key', 'value'):
    if name in params:
      blocks = params[name]['kernel'].reshape(3, WIDTH, -1)
      kernel = blocks[np.array(order)].reshape(3 * WIDTH, -1)
      swapped[name]['kernel'] = kernel
  moved = tuple(inputs[n] for n in order)
  assert_close(
    apply_tree(node, swapped, moved)[0],
    apply_tree(node, params, inputs)[0],
    1e-4,
  )


@pytest.mark.parametrize('residual', ['all', 'top', 'none'])
def test_a_fresh_node_is_standardised(residual):
  node, inputs = _agg({'residual': residual}), normal_states(2, scale=100.0)
  output, _ = apply_tree(node, initial_parameters(node, inputs), inputs)
  assert_close(output.mean(-1), np.zeros((2, LENGTH)), 1e-5)
  assert_close(output.var(-1), np.ones((2, LENGTH)), 1e-3)


@pytest.mark.parametrize('bias', [True, False])
def test_attention_node_against_a_loop_over_heads(bias):
  node = _agg({'activation': 'attention'}, attention_bias=bias)
  inputs = normal_states(2)
  params = noise_parameters(node, inputs)
  assert ('bias' in params['query']) == bias
  z = np.concatenate(inputs, -1)

  def project(name, x):
    return x @ params[name]['kernel'] + params[name].get('bias', 0)

  query, key, value = (project(name, z) for name in ('query', 'key', 'value'))
  mask, heads, size = np.asarray(causal_mask(LENGTH))[0, 0], [], WIDTH // 2
  for head in range(HEADS):
    part = slice(head * size, (head + 1) * size)
    logits = query[..., part] @ key[..., part].swapaxes(1, 2) / np.sqrt(size)
    weights = np.exp(np.where(mask, logits, -np.inf))
    weights /= weights.sum(-1, keepdims=True)
    heads.append(weights @ value[..., part])
  y = project('out', np.concatenate(heads, -1)) + sum(inputs)
  output, recorded = apply_tree(node, params, inputs)
  assert_close(output, layer_norm(y, **params['norm']), 1e-4)
  readers = [params[name]['kernel'] for name in ('query', 'key', 'value')]
  assert_close(
    recorded['telemetry']['exploitation'],
    exploitation_scores(jnp.concatenate(readers, 1), 2),
  )


def test_attention_node_sees_neither_the_future_nor_padding():
  node, inputs = _agg({'activation': 'attention'}), normal_states(2)
  params = noise_parameters(node, inputs)
  changed = tuple(x.at[:, 2:].set(9.0) for x in inputs)
  assert_close(
    apply_tree(node, params, changed)[0][:, :2],
    apply_tree(node, params, inputs)[0][:, :2],
  )
  mask = padding_mask(jnp.array([2, 2]), LENGTH)
  assert_close(
    apply_tree(node, params, changed, mask)[0][:, :2],
    apply_tree(node, params, inputs, mask)[0][:, :2],
  )
  assert not np.allclose(
    apply_tree(node, params, changed)[0][:, 3],
    apply_tree(node, params, inputs)[0][:, 3],
  )


def test_dropout_is_on_the_network_alone():
  node, inputs = _agg(dropout=0.5), normal_states(2)
  params = initial_parameters(node, inputs)
  # Without W2 the network is b2 = 0.25 everywhere: 0 or 0.5 after dropout.
  params['out'] = {
    'kernel': jnp.zeros((12, WIDTH)),
    'bias': jnp.full(WIDTH, 0.25),
  }
  flat = (jnp.ones((2, LENGTH, WIDTH)),) * 2
  output = node.apply(
    {'params': params},
    flat,
    0,
    make_context(deterministic=False),
    rngs={'dropout': jax.random.key(0)},
  )
  # The norm leaves two values a position: what was kept and what was not.
  kept = np.asarray(output) > 0
  assert 0 < kept.sum() < kept.size
  assert_close(output, layer_norm(2 + 0.5 * kept), 1e-3)
  assert_close(apply_tree(node, params, flat)[0], np.zeros_like(output))


def test_kernels_are_cut_along_their_hidden_axis():
  node = _agg()
  variables = jax.eval_shape(
    lambda: node.init(jax.random.key(0), normal_states(2), 0, make_context())
  )
  names = jax.tree.map(tuple, nn.get_partition_spec(variables['params']))
  assert names['hidden'] == {'kernel': ('embed', 'mlp'), 'bias': ('mlp',)}
  assert names['out'] == {'kernel': ('mlp', 'embed'), 'bias': ('embed',)}
  silent = _agg({'zero_out': True})
  variables = jax.eval_shape(
    lambda: silent.init(jax.random.key(0), normal_states(2), 0, make_context())
  )
  silent_names = nn.get_partition_spec(variables['params'])
  assert jax.tree.map(tuple, silent_names) == names
