"""A stack that stands for one with a layer connection, and its inputs."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from fusion_jax.config import ModelConfig, SideConfig
from fusion_jax.layers.attention import causal_mask
from fusion_jax.layers.context import Context

WIDTH = 8


def make_context(length=3, deterministic=True):
  return Context(causal_mask(length), deterministic)


def connection_config(layers, norm='post', **side):
  return ModelConfig(
    width=WIDTH,
    filter=16,
    heads=2,
    encoder_layers=layers,
    norm=norm,
    encoder=SideConfig(**side),
  )


def normal(seed=0, scale=1.0, dtype=jnp.float32):
  x = np.random.default_rng(seed).normal(size=(2, 3, WIDTH))
  return jnp.asarray(scale * x, dtype)


def stand_in_layer(number, x, xp=jnp):
  """Stands for layer `number` of a stack."""
  return xp.tanh(x) * number + 0.3 * xp.roll(x, number, axis=-1)


def run(connection, x, layer=stand_in_layer):
  """As a stack does: H[0..L], the inputs of all layers and the output."""
  layers, inputs, carried = (x,), [], ()
  for number in range(1, connection.config.encoder_layers + 1):
    h, carried = connection.layer_input(
      layers, carried, make_context(x.shape[1])
    )
    inputs.append(h)
    y = layer(number, h)
    layers = (*layers, connection.layer_output(layers, y))
  h, _ = connection.layer_input(layers, carried, make_context(x.shape[1]))
  return layers, (*inputs, h)


def initial_parameters(connection, x):
  init = jax.jit(lambda x: connection.init(jax.random.key(0), x, method=run))
  return dict(nn.unbox(init(x)).get('params', {}))


def applied(connection, params, x, layer=stand_in_layer):
  def through(module, x):
    return run(module, x, layer)

  apply = jax.jit(
    lambda params, x: connection.apply({'params': params}, x, method=through)
  )
  return apply(params, x)


def layer_norm(x, scale=1.0, bias=0.0):
  x = np.asarray(x, np.float64)
  variance = x.var(-1, keepdims=True)
  return (x - x.mean(-1, keepdims=True)) / np.sqrt(
    variance + 1e-6
  ) * scale + bias


def shaken(params, seed=9):
  """Parameters at a generic point."""
  rng = np.random.default_rng(seed)
  return jax.tree.map(
    lambda leaf: np.float32(leaf + rng.normal(0, 0.3, leaf.shape)), params
  )


def assert_close(a, b, tolerance=1e-5):
  largest = np.max(np.abs(b), initial=1)
  np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * largest)
