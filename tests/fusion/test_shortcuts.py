"""Lexical shortcuts and their gates."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attentions import CAUSAL, attend, fresh_parameters, normal_states
from cases import reading
from hypothesis import given, settings
from hypothesis import strategies as st

from fusion_jax.config import ModelConfig
from fusion_jax.fusion.shortcuts import ShortcutAttention, fuse, gate
from fusion_jax.layers.context import Context


def _shortcut_config(width=8, **shortcut):
  return ModelConfig(
    width=width,
    filter=12,
    heads=2,
    decoder_layers=4,
    norm='post',
    attention_bias=False,
    # Biases that differ from 0.
    initialization='fan_in',
    decoder=reading('shortcut', **shortcut),
  )


def _shortcut_attention(**options):
  return ShortcutAttention(_shortcut_config(**options), 'decoder')


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


def test_gate_biases_fill_their_range():
  module = _shortcut_attention(width=3_000)

  def biases(module):
    return module.key_gate_bias, module.value_gate_bias

  (keys, values), _ = module.init_with_output(jax.random.key(0), method=biases)
  limit = math.sqrt(3 / 3_000)
  for bias in (keys, values):
    assert 0.99 * limit < np.abs(bias).max() <= limit
    assert np.mean(bias) == pytest.approx(0, abs=limit / 20)
  assert not np.array_equal(keys, values)


def test_three_layers_do_for_a_scan():
  module, layers = _shortcut_attention(source='non_lexical'), normal_states(4)
  params = fresh_parameters(module, layers)
  np.testing.assert_array_equal(
    attend(module, params, (layers[0], layers[2], layers[3])),
    attend(module, params, layers),
  )


def test_telemetry_is_the_mean_over_tokens():
  module, layers = _shortcut_attention(), normal_states(3)
  params = fresh_parameters(module, layers)
  tokens = jnp.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], bool)
  context = Context(CAUSAL, True, tokens)

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
