"""Lexical shortcuts and their gates."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import reading
from drawn import normal
from flax.core import meta

from fusion_jax.config import ModelConfig
from fusion_jax.fusion.shortcuts import ShortcutAttention, fuse, gate
from fusion_jax.layers.attention import causal_mask
from fusion_jax.layers.context import Context

_LENGTH = 5
_CAUSAL = causal_mask(_LENGTH)


def _shortcut_attention(width=8, **shortcut):
  config = ModelConfig(
    width=width,
    heads=2,
    attention_bias=False,
    decoder=reading('shortcut', **shortcut),
  )
  return ShortcutAttention(config, 'decoder')


def _normal_states(count):
  return tuple(normal(2, _LENGTH, 8, seed=seed) for seed in range(count))


def _attend(module, params, layers, **context):
  """The output, and the telemetry."""
  x, context = layers[-1], Context(_CAUSAL, True, **context)
  return module.apply(
    {'params': params},
    x,
    x,
    layers,
    context,
    method='attend',
    mutable=['telemetry'],
  )


def _initial_parameters(module, layers):
  x, context = layers[-1], Context(_CAUSAL, True)
  boxed = module.init(jax.random.key(3), x, x, layers, context, method='attend')
  return meta.unbox(boxed['params'])


def test_gates_are_float32_and_exact_where_they_are_closed_or_open():
  # hidden + r * (shortcut - hidden) would lose 0.5 beside the large number.
  shortcut, hidden = jnp.bfloat16([[7.0, 0.5]]), jnp.bfloat16([[3.0, -1e8]])
  gates = gate(shortcut, hidden, jnp.float32([-1e4, 2e8]))
  assert gates.dtype == jnp.float32
  np.testing.assert_array_equal(gates, [[0, 1]])
  mixed = fuse(gates, shortcut, hidden)
  assert mixed.dtype == jnp.bfloat16
  np.testing.assert_array_equal(mixed, [[3, 0.5]])


def test_gate_biases_fill_their_range():
  module = _shortcut_attention(3_000)

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
    _attend(module, params, (layers[0], layers[2], layers[3]))[0],
    _attend(module, params, layers)[0],
  )


def test_telemetry_is_the_mean_over_tokens():
  module, layers = _shortcut_attention(), _normal_states(3)
  params = _initial_parameters(module, layers)
  tokens = jnp.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], bool)
  seen = _attend(module, params, layers, tokens=tokens)[1]['telemetry']
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
