"""Multiway dynamic dense connections against their equations, in NumPy."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from references import layer_norm
from scipy.special import erf

from fusion_jax.config import ModelConfig
from fusion_jax.config.fusion import DlclOptions, MuddOptions, SideConfig
from fusion_jax.fusion.dlcl import Dlcl
from fusion_jax.fusion.mudd import Mudd
from fusion_jax.fusion.streams import StreamAttention, with_stream_norms
from fusion_jax.layers.attention import (
  LayerInput,
  MultiHeadAttention,
  causal_mask,
  residual_of,
)
from fusion_jax.layers.context import Context
from fusion_jax.testing import assert_close

_WIDTH = 8
_CONTEXT = Context(causal_mask(3), True)


def _config(layers=4, **options) -> ModelConfig:
  side = SideConfig('mudd', mudd=MuddOptions(**options))
  return ModelConfig(
    width=_WIDTH,
    filter=12,
    heads=2,
    norm='pre',
    encoder_layers=layers,
    decoder_layers=layers,
    encoder=side,
    decoder=side,
  )


def _x(seed=0):
  return jnp.float32(np.random.default_rng(seed).normal(size=(2, 3, _WIDTH)))


def _layer(number, x, xp=jnp):
  """Stands for a layer, which reads every stream in another way."""
  if not isinstance(x, LayerInput):
    x = LayerInput(x, x, x, x)
  mixed = xp.tanh(x.query) + 0.5 * xp.sin(x.key) + 0.25 * x.value
  return number * mixed + x.residual


def _run(connection, x):
  """What every layer reads, and the output, as a stack computes them."""
  layers, inputs, carried = (x,), [], ()
  for number in range(1, connection.config.encoder_layers + 1):
    h, carried = connection.layer_input(layers, carried, _CONTEXT)
    inputs.append(h)
    layers = (*layers, _layer(number, h))
  return (*inputs, connection.layer_input(layers, carried, _CONTEXT)[0]), layers


def _parameters(connection, scale=0.5):
  shapes = jax.eval_shape(
    lambda x: connection.init(jax.random.key(0), x, method=_run), _x()
  )
  random = np.random.default_rng(1)
  return jax.tree.map(
    lambda leaf: jnp.float32(random.normal(0, scale, leaf.shape)),
    nn.unbox(shapes)['params'],
  )


def _apply(connection, parameters, x):
  run = jax.jit(lambda p, x: connection.apply({'params': p}, x, method=_run))
  return run(parameters, x)


def _gelu(x):
  return 0.5 * x * (1 + erf(x / np.sqrt(2)))


def _sums(parameters, states, normed):
  """x_c[l+1] of each way c, from X[0..l]."""
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
    found[0] = layer_norm(found[0], parameters[f'sum_norm_{layer}'], 1e-6)
    found = [top + each for each in found]
  return LayerInput(*found) if len(found) > 1 else found[0]


@pytest.mark.parametrize('layers', [1, 4])
@pytest.mark.parametrize('norms', ['none', 'pre_post'])
@pytest.mark.parametrize('ways', [1, 4])
def test_against_its_equations(ways, norms, layers):
  connection = Mudd(_config(layers, ways=ways, norms=norms), 'encoder')
  parameters = _parameters(connection)
  inputs, _ = _apply(connection, parameters, _x())
  exact = jax.tree.map(np.float64, parameters)
  states = [np.float64(_x())]
  for number in range(1, layers + 2):
    wanted = states[0]
    if number > 1:
      wanted = _sums(exact, states, norms == 'pre_post')
    assert_close(inputs[number - 1], wanted, units=128)
    states.append(_layer(number, wanted, np))


@pytest.mark.parametrize('norms', ['none', 'pre_post'])
@pytest.mark.parametrize('ways', [1, 4])
def test_it_starts_as_the_layer_below(ways, norms):
  connection = Mudd(_config(ways=ways, norms=norms), 'encoder')
  variables = connection.init(jax.random.key(0), _x(), method=_run)
  inputs, states = _apply(connection, nn.unbox(variables)['params'], _x())
  for read, state in zip(inputs, states, strict=True):
    for own in jax.tree.leaves(read):
      np.testing.assert_array_equal(own, state)


def test_without_the_dynamic_part_it_is_a_depth_weighted_average():
  connection = Mudd(_config(ways=1), 'encoder')
  parameters = _parameters(connection)
  for name, part in parameters.items():
    if name.startswith('out_'):
      parameters[name] = jax.tree.map(jnp.zeros_like, part)
  side = SideConfig('dlcl', dlcl=DlclOptions(norms='none'))
  config = dataclasses.replace(connection.config, encoder=side)
  weights = np.zeros((5, 5), np.float32)
  for row in range(1, 5):
    weights[row, : row + 1] = parameters[f'static_{row}'][0]
  assert_close(
    _apply(connection, parameters, _x()),
    _apply(Dlcl(config, 'encoder'), {'weights': weights}, _x()),
  )


def test_equal_streams_with_equal_norms_are_plain_attention():
  config, x = _config(), _x()
  plain = MultiHeadAttention(config)

  def attend(module, x):
    h = residual_of(x)
    return module.attend(x, h, (), _CONTEXT)

  trained = nn.unbox(plain.init(jax.random.key(0), x, method=attend))['params']
  norm = {'scale': jnp.full(_WIDTH, 1.5), 'bias': jnp.full(_WIDTH, 0.25)}
  layer = with_stream_norms(
    {'self_attention': trained},
    {'self_attention_residual': {'norm': norm}},
  )
  streams = StreamAttention(config)
  h = jnp.float32(layer_norm(np.float64(x), norm, config.norm_epsilon))

  def of_streams(module, x):
    return module.attend(LayerInput(x, x, x, x), h, (), _CONTEXT)

  assert_close(
    streams.apply({'params': layer['self_attention']}, x, method=of_streams),
    plain.apply({'params': trained}, h, method=attend),
  )


def test_the_sum_of_the_residual_moves_at_the_first_step():
  """PrePost norms start as sums of 0, where a norm has a slope all the same."""
  connection = Mudd(_config(norms='pre_post'), 'encoder')
  variables = connection.init(jax.random.key(0), _x(), method=_run)
  parameters = nn.unbox(variables)['params']

  def loss(parameters):
    (*_, output), _ = connection.apply(
      {'params': parameters}, _x(), method=_run
    )
    return (output * _x(5)).sum()

  gradient = jax.grad(loss)(parameters)
  # A scale of 0.001 over sqrt(1e-6), the deviation of a sum of 0.
  assert np.abs(gradient['static_4']).max() > 0.1
  assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
