"""Lexical shortcuts and their gates."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import reading
from flax.core import meta
from hypothesis import given, settings
from hypothesis import strategies as st

from fusion_jax.config import ModelConfig
from fusion_jax.fusion.shortcuts import ShortcutAttention, fuse, gate
from fusion_jax.layers.attention import MultiHeadAttention, causal_mask
from fusion_jax.layers.context import Context
from fusion_jax.testing import assert_close

_LENGTH = 5
_CAUSAL = causal_mask(_LENGTH)


def _shortcut_config(
  norm='post', attention_bias=False, dtype='float32', **shortcut
):
  return ModelConfig(
    width=8,
    filter=12,
    heads=2,
    decoder_layers=4,
    dropout=0.0,
    norm=norm,
    attention_bias=attention_bias,
    compute_dtype=dtype,
    # Biases that differ from 0.
    initialization='fan_in',
    decoder=reading('shortcut', **shortcut),
  )


def _shortcut_attention(**options):
  return ShortcutAttention(_shortcut_config(**options), 'decoder')


def _normal_states(count, dtype=jnp.float32):
  keys = jax.random.split(jax.random.key(7), count)
  return tuple(
    jax.random.normal(key, (2, _LENGTH, 8)).astype(dtype) for key in keys
  )


def _attend(module, params, layers, mask=_CAUSAL, h=None):
  x, context = layers[-1], Context(mask, True)
  h = x if h is None else h
  variables = {'params': params}
  return module.apply(variables, x, h, layers, context, method='attend')


def _initial_parameters(module, layers):
  x, context = layers[-1], Context(_CAUSAL, True)
  boxed = module.init(jax.random.key(3), x, x, layers, context, method='attend')
  return meta.unbox(boxed['params'])


def _memory_of(module, params, features, embedding):
  variables = {'params': params}
  return module.apply(variables, features, embedding, method='memory')


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


@pytest.mark.parametrize('bias', [True, False])
def test_closed_gates_are_plain_attention(bias):
  module, layers = _shortcut_attention(attention_bias=bias), _normal_states(3)
  plain = MultiHeadAttention(module.config)
  params = _with_gates(_initial_parameters(module, layers), -1e4)
  np.testing.assert_array_equal(
    _attend(module, params, layers), _attend(plain, _plain(params), layers)
  )
  cross = _memory_of(module, params, layers[1], layers[0])
  expected = _memory_of(plain, _plain(params), layers[1], layers[0])
  np.testing.assert_array_equal(cross.keys, expected.keys)
  np.testing.assert_array_equal(cross.values, expected.values)


def test_open_gates_attend_to_the_embedding_only():
  module, layers = _shortcut_attention(), _normal_states(3)
  plain = MultiHeadAttention(module.config)
  params = _with_gates(_initial_parameters(module, layers), 1e4)
  as_plain = _plain(params) | {
    'key': params['shortcut_key'],
    'value': params['shortcut_value'],
  }
  cross = _memory_of(module, params, layers[1], layers[0])
  expected = _memory_of(plain, as_plain, layers[0], layers[0])
  np.testing.assert_array_equal(cross.keys, expected.keys)
  np.testing.assert_array_equal(cross.values, expected.values)

  def over_the_embedding(module):
    seen = module.keys_values(layers[0])
    return module(layers[2], seen, _CAUSAL, True)

  np.testing.assert_array_equal(
    _attend(module, params, layers),
    plain.apply({'params': as_plain}, method=over_the_embedding),
  )


def test_gates_do_not_matter_where_both_projections_are_one():
  module, (x,) = _shortcut_attention(), _normal_states(1)
  params = _initial_parameters(module, (x,))
  params |= {'shortcut_key': params['key'], 'shortcut_value': params['value']}
  expected = _attend(MultiHeadAttention(module.config), _plain(params), (x,))
  assert_close(_attend(module, params, (x,)), expected)


def test_block_diagonal_feature_fusion_is_a_plain_shortcut():
  module, layers = _shortcut_attention(), _normal_states(3)
  fused = _shortcut_attention(feature_fusion=True)
  params = _initial_parameters(module, layers)
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
  assert shapes == jax.tree.map(jnp.shape, _initial_parameters(fused, layers))
  assert_close(_attend(fused, blocks, layers), _attend(module, params, layers))


def test_gate_biases_fill_their_range():
  config = dataclasses.replace(_shortcut_config(), width=3_000)
  module = ShortcutAttention(config, 'decoder')

  def biases(module):
    return module.key_gate_bias, module.value_gate_bias

  (keys, values), _ = module.init_with_output(jax.random.key(0), method=biases)
  limit = math.sqrt(3 / 3_000)
  for bias in (keys, values):
    assert 0.99 * limit < np.abs(bias).max() <= limit
    assert np.mean(bias) == pytest.approx(0, abs=limit / 20)
  assert not np.array_equal(keys, values)


def test_three_layers_do_for_a_scan():
  module, layers = _shortcut_attention(source='non_lexical'), _normal_states(4)
  params = _initial_parameters(module, layers)
  np.testing.assert_array_equal(
    _attend(module, params, (layers[0], layers[2], layers[3])),
    _attend(module, params, layers),
  )


def test_telemetry_is_the_mean_over_tokens():
  module, layers = _shortcut_attention(), _normal_states(3)
  params = _initial_parameters(module, layers)
  tokens = jnp.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], bool)
  context = Context(_CAUSAL, True, tokens)

  def telemetry(layers, context=context):
    _, state = module.apply(
      {'params': params},
      layers[-1],
      layers[-1],
      layers,
      context,
      method='attend',
      mutable=['telemetry'],
    )
    return state['telemetry']

  seen = telemetry(layers)
  for name in ('key', 'value'):
    gates = gate(
      layers[0] @ params[f'shortcut_{name}']['kernel'],
      layers[2] @ params[name]['kernel'],
      params[f'{name}_gate_bias'],
    )
    assert seen[f'{name}_gate'].shape == ()
    np.testing.assert_allclose(
      seen[f'{name}_gate'], gates[tokens].mean(), rtol=1e-5
    )
  padded = tuple(layer.at[0, 3:].set(9.0) for layer in layers)
  np.testing.assert_allclose(
    telemetry(padded)['key_gate'], seen['key_gate'], rtol=1e-6
  )
