"""Lexical shortcuts and their gates."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import reading
from flax.core import meta

from fusion_jax.config import ModelConfig
from fusion_jax.fusion.shortcuts import ShortcutAttention, gate
from fusion_jax.layers.attention import MultiHeadAttention, causal_mask
from fusion_jax.layers.context import Context

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
    initialization='mlrf',
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
