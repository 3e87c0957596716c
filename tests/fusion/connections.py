"""Layers that stand for those of a stack with a layer connection."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from fusion_jax.config import ModelConfig, SideConfig
from fusion_jax.layers.attention import LayerInput, causal_mask
from fusion_jax.layers.context import Context

WIDTH = 8
CONTEXT = Context(causal_mask(3), True)


def connection_config(layers=4, norm='pre', decoder=None, **encoder):
  """A small model, whose encoder has these fields of `SideConfig`."""
  return ModelConfig(
    width=WIDTH,
    filter=12,
    heads=2,
    norm=norm,
    encoder_layers=layers,
    decoder_layers=layers,
    encoder=SideConfig(**encoder),
    decoder=decoder or SideConfig(),
  )


def normal(seed=0):
  """Stands for H[0]."""
  return jnp.float32(np.random.default_rng(seed).normal(size=(2, 3, WIDTH)))


def stand_in_layer(number, x, xp=jnp):
  """Stands for a layer, which reads every stream in another way."""
  if not isinstance(x, LayerInput):
    x = LayerInput(x, x, x, x)
  mixed = xp.tanh(x.query) + 0.5 * xp.sin(x.key) + 0.25 * xp.cos(x.value)
  return 0.5 * number * mixed + x.residual


def run(connection, x, context=CONTEXT, layer=stand_in_layer):
  """What every layer reads, and the output; and H[0..L]."""
  layers, inputs, carried = (x,), [], ()
  for number in range(1, connection.config.encoder_layers + 1):
    h, carried = connection.layer_input(layers, carried, context)
    inputs.append(h)
    y = layer(number, h).astype(x.dtype)
    layers = (*layers, connection.layer_output(layers, y))
  return (*inputs, connection.layer_input(layers, carried, context)[0]), layers


def applied(connection, parameters, x, *others):
  """What `run` returns; compiled."""

  def through(module, x):
    return run(module, x, *others)

  compiled = jax.jit(
    lambda p, x: connection.apply({'params': p}, x, method=through)
  )
  return compiled(parameters, x)


def fresh_parameters(connection):
  init = jax.jit(lambda x: connection.init(jax.random.key(0), x, method=run))
  return dict(nn.unbox(init(normal())).get('params', {}))


def drawn(connection, scale):
  """Parameters of a connection, normal with this deviation."""
  shapes = jax.eval_shape(
    lambda x: connection.init(jax.random.key(0), x, method=run), normal()
  )
  random = np.random.default_rng(1)
  return jax.tree.map(
    lambda leaf: jnp.float32(random.normal(0, scale, leaf.shape)),
    nn.unbox(shapes)['params'],
  )


def shaken(parameters):
  """Parameters at a generic point."""
  random = np.random.default_rng(9)
  return jax.tree.map(
    lambda leaf: jnp.float32(leaf + random.normal(0, 0.3, leaf.shape)),
    parameters,
  )
