import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.test_util import check_grads
from tiny_shortcuts import (
  CAUSAL,
  LENGTH,
  attend,
  initial_parameters,
  memory_of,
  normal_states,
  shortcut_attention,
  shortcut_config,
)

from fusion_jax.fusion.shortcuts import ShortcutAttention, fuse, gate
from fusion_jax.layers.attention import MultiHeadAttention
from fusion_jax.testing import assert_close


def _with_gates(params, bias):
  full = jnp.full((8,), bias)
  return params | {'key_gate_bias': full, 'value_gate_bias': full}


def _plain(params):
  return {name: params[name] for name in ('query', 'key', 'value', 'out')}


def test_gates_by_hand():
  shortcut = jnp.array([[0.0, math.log(3), 1.0, 0.0]])
  hidden = jnp.array([[0.0, 0.0, -1.0, 2e4]])
  bias = jnp.array([0.0, 0.0, -math.log(3), -1e4])
  gates = gate(shortcut, hidden, bias)
  np.testing.assert_allclose(gates, [[0.5, 0.75, 0.25, 1.0]], rtol=1e-6)
  mixed = fuse(gates, jnp.full((1, 4), 10.0), jnp.full((1, 4), 2.0))
  np.testing.assert_allclose(mixed, [[6.0, 8.0, 4.0, 10.0]], rtol=1e-6)


@settings(max_examples=30)
@given(
  st.integers(0, 99),
  st.sampled_from([1e-6, 1.0, 1e3]),
  st.sampled_from(['float32', 'bfloat16']),
)
def test_mixtures_lie_between_their_parts(seed, scale, dtype):
  keys = jax.random.split(jax.random.key(seed), 3)
  shortcut, hidden = (
    (scale * jax.random.normal(key, (3, 8))).astype(dtype) for key in keys[:2]
  )
  gates = gate(shortcut, hidden, jax.random.normal(keys[2], (8,)))
  mixed = fuse(gates, shortcut, hidden)
  assert gates.dtype == jnp.float32
  assert mixed.dtype == jnp.dtype(dtype)
  assert ((gates >= 0) & (gates <= 1)).all()
  slack = 1e-6 * scale
  low, high = jnp.minimum(shortcut, hidden), jnp.maximum(shortcut, hidden)
  assert (mixed >= low - slack).all()
  assert (mixed <= high + slack).all()


def test_the_gradient_of_the_gates_by_finite_differences():
  shortcut, hidden, bias = jax.random.normal(jax.random.key(0), (3, 8))

  def mixed(*arguments):
    shortcut, hidden, bias = map(jnp.asarray, arguments)
    return fuse(gate(shortcut, hidden, bias), shortcut, hidden)

  check_grads(
    mixed,
    (shortcut, hidden, bias),
    order=1,
    eps=1e-2,
    atol=1e-3,
    rtol=1e-2,
  )


def test_gated_attention_against_numpy():
  config = dataclasses.replace(shortcut_config(), heads=1)
  module, (embedding, h) = (
    ShortcutAttention(config, 'decoder'),
    normal_states(2),
  )
  fresh = initial_parameters(module, (embedding, h))
  params = jax.tree.map(np.asarray, fresh)
  e, x = np.asarray(embedding), np.asarray(h)

  def gated(name):
    shortcut = e @ params[f'shortcut_{name}']['kernel']
    hidden = x @ params[name]['kernel']
    total = shortcut + hidden + params[f'{name}_gate_bias']
    r = 1 / (1 + np.exp(-total))
    return r * shortcut + (1 - r) * hidden

  logits = x @ params['query']['kernel'] @ gated('key').swapaxes(1, 2)
  logits = np.where(np.tri(LENGTH), logits / math.sqrt(8), -np.inf)
  weights = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
  expected = weights @ gated('value') @ params['out']['kernel']
  y = attend(module, fresh, (embedding, h))
  assert_close(y, expected)


@pytest.mark.parametrize('bias', [True, False])
def test_closed_gates_are_plain_attention(bias):
  module, layers = shortcut_attention(attention_bias=bias), normal_states(3)
  plain = MultiHeadAttention(module.config)
  params = _with_gates(initial_parameters(module, layers), -1e4)
  np.testing.assert_array_equal(
    attend(module, params, layers),
    attend(plain, _plain(params), layers),
  )
  cross = memory_of(module, params, layers[1], layers[0])
  expected = memory_of(plain, _plain(params), layers[1], layers[0])
  np.testing.assert_array_equal(cross.keys, expected.keys)
  np.testing.assert_array_equal(cross.values, expected.values)


def test_open_gates_attend_to_the_embedding_only():
  module, layers = shortcut_attention(), normal_states(3)
  plain = MultiHeadAttention(module.config)
  params = _with_gates(initial_parameters(module, layers), 1e4)
  as_plain = _plain(params) | {
    'key': params['shortcut_key'],
    'value': params['shortcut_value'],
  }
  cross = memory_of(module, params, layers[1], layers[0])
  expected = memory_of(plain, as_plain, layers[0], layers[0])
  np.testing.assert_array_equal(cross.keys, expected.keys)
  np.testing.assert_array_equal(cross.values, expected.values)

  def over_the_embedding(module):
    seen = module.keys_values(layers[0])
    return module(layers[2], seen, CAUSAL, True)

  np.testing.assert_array_equal(
    attend(module, params, layers),
    plain.apply({'params': as_plain}, method=over_the_embedding),
  )


def test_gates_do_not_matter_where_both_projections_are_one():
  module, (x,) = shortcut_attention(), normal_states(1)
  params = initial_parameters(module, (x,))
  params |= {
    'shortcut_key': params['key'],
    'shortcut_value': params['value'],
  }
  expected = attend(MultiHeadAttention(module.config), _plain(params), (x,))
  assert_close(attend(module, params, (x,)), expected)


def test_block_diagonal_feature_fusion_is_a_plain_shortcut():
  module, layers = shortcut_attention(), normal_states(3)
  fused = shortcut_attention(feature_fusion=True)
  params = initial_parameters(module, layers)
  blocks = {
    name: params[name]
    for name in ('query', 'out', 'key_gate_bias', 'value_gate_bias')
  }
  for name in ('key', 'value'):
    kernel = jax.scipy.linalg.block_diag(
      params[f'shortcut_{name}']['kernel'], params[name]['kernel']
    )
    blocks[f'fused_{name}'] = {'kernel': kernel}
  shapes = jax.tree.map(jnp.shape, blocks)
  assert shapes == jax.tree.map(jnp.shape, initial_parameters(fused, layers))
  assert_close(attend(fused, blocks, layers), attend(module, params, layers))


def test_feature_fusion_mixes_the_features():
  module, (embedding, h) = (
    shortcut_attention(feature_fusion=True),
    normal_states(2),
  )
  params = _with_gates(initial_parameters(module, (h,)), -1e4)
  # With closed gates only the half of K_H is left, and it still reads E.
  ours = memory_of(module, params, h, embedding)
  assert not np.allclose(ours.keys, memory_of(module, params, h, h).keys)


def test_gate_biases_fill_their_range():
  config = dataclasses.replace(shortcut_config(), width=3_000)
  module = ShortcutAttention(config, 'decoder')

  def biases(module):
    return module.key_gate_bias, module.value_gate_bias

  (keys, values), _ = module.init_with_output(jax.random.key(0), method=biases)
  limit = math.sqrt(3 / 3_000)
  for bias in (keys, values):
    assert 0.99 * limit < np.abs(bias).max() <= limit
    assert np.mean(bias) == pytest.approx(0, abs=limit / 20)
  assert not np.array_equal(keys, values)
