"""Layers that stand for those of a stack, with a layer connection."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from fusion_jax.config import ModelConfig, SideConfig
from fusion_jax.layers.attention import LayerInput, causal_mask
from fusion_jax.layers.context import Context

WIDTH = 8
CONTEXT = Context(causal_mask(3), True)


def connected(side: SideConfig, decoder: SideConfig, layers=4) -> ModelConfig:
  """A small pre-norm model."""
  return ModelConfig(
    width=WIDTH,
    filter=12,
    heads=2,
    norm='pre',
    encoder_layers=layers,
    decoder_layers=layers,
    encoder=side,
    decoder=decoder,
  )


def h0(seed=0):
  """Stands for H[0]."""
  return jnp.float32(np.random.default_rng(seed).normal(size=(2, 3, WIDTH)))


def a_layer(number, x, xp=jnp):
  """Stands for a layer, which reads every stream in another way."""
  if not isinstance(x, LayerInput):
    x = LayerInput(x, x, x, x)
  mixed = xp.tanh(x.query) + 0.5 * xp.sin(x.key) + 0.25 * xp.cos(x.value)
  return 0.5 * number * mixed + x.residual


def run(connection, x, context=CONTEXT):
  """What every layer reads, and the output; and H[0..L]."""
  layers, inputs, carried = (x,), [], ()
  for number in range(1, connection.config.encoder_layers + 1):
    h, carried = connection.layer_input(layers, carried, context)
    inputs.append(h)
    layers = (*layers, a_layer(number, h).astype(x.dtype))
  return (*inputs, connection.layer_input(layers, carried, context)[0]), layers


def drawn(connection, scale):
  """Parameters of a connection, normal with this deviation."""
  shapes = jax.eval_shape(
    lambda x: connection.init(jax.random.key(0), x, method=run), h0()
  )
  random = np.random.default_rng(1)
  return jax.tree.map(
    lambda leaf: jnp.float32(random.normal(0, scale, leaf.shape)),
    nn.unbox(shapes)['params'],
  )


def applied(connection, parameters, x, context=CONTEXT):
  """What `run` returns; compiled."""
  compiled = jax.jit(
    lambda p, x: connection.apply({'params': p}, x, context, method=run)
  )
  return compiled(parameters, x)
