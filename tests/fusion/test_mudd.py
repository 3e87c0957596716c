"""Multiway dynamic dense connections against their equations, in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from connections import (
  WIDTH,
  applied,
  connection_config,
  drawn,
  fresh_parameters,
  normal,
  run,
  stand_in_layer,
)
from numpy_parts import dense, layer_norm
from scipy.special import erf

from fusion_jax.config import ModelConfig
from fusion_jax.config.fusion import SideConfig
from fusion_jax.fusion.mudd import Mudd
from fusion_jax.layers.attention import LayerInput, key_value, padding_mask
from fusion_jax.models.stack import StackOutput
from fusion_jax.models.transformer import Transformer
from fusion_jax.testing import assert_close, drawn_parameters


def _config(layers=4, **options) -> ModelConfig:
  side = SideConfig('mudd', options)
  decoder = side if 'memory_ways' not in options else SideConfig()
  return connection_config(
    layers, decoder=decoder, fusion='mudd', options=options
  )


def _gelu(x):
  return 0.5 * x * (1 + erf(x / np.sqrt(2)))


def _sums(parameters, states, normed, residual=True):
  """Each sum over X[0..l], of which the first one may be the residual's."""
  layer, top = len(states) - 1, states[-1]
  unit = top / np.sqrt(np.square(top).mean(-1, keepdims=True) + 1e-6)
  hidden = _gelu(unit @ parameters[f'hidden_{layer}']['kernel'])
  static = parameters[f'static_{layer}']
  dynamic = hidden @ parameters[f'out_{layer}']['kernel']
  weights = dynamic.reshape(*top.shape[:2], *static.shape) + static
  if normed:
    states = [
      layer_norm(x, parameters[f'norm_{k}'], 1e-6) for k, x in enumerate(states)
    ]
  found = [
    sum(weights[..., way, k, None] * x for k, x in enumerate(states))
    for way in range(len(static))
  ]
  if normed:
    if residual:
      found[0] = layer_norm(found[0], parameters[f'sum_norm_{layer}'], 1e-6)
    found = [top + each for each in found]
  return found


def _input(parameters, states, normed):
  """x[l+1], of one way or four."""
  found = _sums(parameters, states, normed)
  return LayerInput(*found) if len(found) > 1 else found[0]


@pytest.mark.parametrize('layers', [1, 4])
@pytest.mark.parametrize('norms', ['none', 'pre_post'])
@pytest.mark.parametrize('ways', [1, 4])
def test_against_its_equations(ways, norms, layers):
  connection = Mudd(_config(layers, ways=ways, norms=norms), 'encoder')
  parameters = drawn(connection, 0.5)
  inputs, _ = applied(connection, parameters, normal())
  exact = jax.tree.map(np.float64, parameters)
  states = [np.float64(normal())]
  for number in range(1, layers + 2):
    wanted = states[0]
    if number > 1:
      wanted = _input(exact, states, norms == 'pre_post')
    assert_close(inputs[number - 1], wanted, units=128)
    states.append(stand_in_layer(number, wanted, np))


@pytest.mark.parametrize('norms', ['none', 'pre_post'])
@pytest.mark.parametrize(('ways', 'memory_ways'), [(0, 1), (0, 2), (4, 2)])
def test_memories_against_their_equation(ways, memory_ways, norms):
  """Four layers on either side; a memory for each layer of the decoder."""
  config = _config(ways=ways, memory_ways=memory_ways, norms=norms)
  connection = Mudd(config, 'encoder')
  parameters, normed = drawn(connection, 0.5), norms == 'pre_post'
  (*inputs, memories), _ = applied(connection, parameters, normal())
  # C = J memory_ways rows of L + 1 weights, and as wide a hidden layer.
  assert parameters['static_4'].shape == (4 * memory_ways, 5)
  assert parameters['hidden_4']['kernel'].shape == (8, 4 * memory_ways * 5)
  exact = jax.tree.map(np.float64, parameters)
  states = [np.float64(normal())]
  for number, found in enumerate(inputs, start=1):
    plain = number == 1 or not ways
    wanted = states[-1] if plain else _input(exact, states, normed)
    assert_close(found, wanted, units=128)
    states.append(stand_in_layer(number, wanted, np))
  wanted = np.stack(_sums(exact, states, normed, residual=False))
  if memory_ways == 2:
    # Keys, then values, of each layer of the decoder.
    wanted = np.stack([wanted[::2], wanted[1::2]], axis=1)
  assert_close(memories, wanted, units=128)


def test_cross_attention_projects_the_sums_of_keys_and_of_values():
  config = _config(ways=0, memory_ways=2)
  model = Transformer(config, 11, 11, 2)
  parameters = drawn_parameters(model)
  tokens = padding_mask(jnp.array([3, 2]), 3)
  features = jnp.float32(
    np.random.default_rng(0).normal(size=(4, 2, 2, 3, WIDTH))
  )

  def memories(model):
    return model.decoder.memories(
      StackOutput(features, (normal(),)), tokens
    ).layers

  found = model.apply({'params': parameters}, method=memories)
  for layer, (own, read) in enumerate(zip(found, features, strict=True)):
    attention = parameters['decoder'][f'layer_{layer}']['cross_attention']
    keys = dense(attention['key'], read[0])
    values = dense(attention['value'], read[1])
    assert_close(own, key_value(keys, values, config.heads))


def test_the_sum_of_the_residual_moves_at_the_first_step():
  """PrePost norms start as sums of 0, where a norm has a slope all the same."""
  connection = Mudd(_config(norms='pre_post'), 'encoder')
  parameters = fresh_parameters(connection)

  def loss(parameters):
    (*_, output), _ = connection.apply(
      {'params': parameters}, normal(), method=run
    )
    return (output * normal(5)).sum()

  gradient = jax.grad(loss)(parameters)
  # A scale of 0.001 over sqrt(1e-6), the deviation of a sum of 0.
  assert np.abs(gradient['static_4']).max() > 0.1
  assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
