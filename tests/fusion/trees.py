"""Tiny aggregation trees, and the stack that runs them."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from fusion_jax.config import ModelConfig
from fusion_jax.config.fusion import SideConfig
from fusion_jax.fusion.tree import (
  AggNode,
  Hierarchical,
  Iterative,
)
from fusion_jax.layers.attention import causal_mask
from fusion_jax.layers.caches import CacheCursor
from fusion_jax.layers.context import Context

WIDTH, LENGTH, HEADS = 8, 4, 2


def make_context(mask=None, deterministic=True, caches=None):
  mask = causal_mask(LENGTH) if mask is None else mask
  return Context(mask, deterministic, caches=caches or CacheCursor())


def tree_config(layers=3, norm='post', options=None, **changes):
  side = SideConfig('hierarchical', options or {})
  return ModelConfig(
    width=WIDTH,
    filter=12,
    heads=HEADS,
    encoder_layers=layers,
    norm=norm,
    encoder=side,
    **changes,
  )


def normal_state(seed=0, scale=1.0, dtype=jnp.float32):
  x = np.random.default_rng(seed).normal(size=(2, LENGTH, WIDTH))
  return jnp.asarray(scale * x, dtype)


def normal_states(count, seed=0, scale=1.0, dtype=jnp.float32):
  return tuple(normal_state(seed + n, scale, dtype) for n in range(count))


def layer_norm(x, scale=1.0, bias=0.0):
  x = np.asarray(x, np.float64)
  variance = x.var(-1, keepdims=True)
  return (x - x.mean(-1, keepdims=True)) / np.sqrt(
    variance + 1e-6
  ) * scale + bias


def assert_close(a, b, tolerance=1e-5):
  largest = np.max(np.abs(b), initial=1)
  np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * largest)


def agg_node(config):
  return AggNode(config, config.encoder.options)


def _node(module, inputs, context):
  return module(inputs, 0, context)


def _read_out(module, layers, context):
  return module(layers, context)


def stand_in_layer(number, x):
  """Stands for layer `number` of a stack."""
  return jnp.tanh(x) * number + 0.3 * jnp.roll(x, number, axis=-1)


def _stack(module, layers, context):
  """H[0..L] and the output, from H[0], as a stack runs a connection."""
  carried = ()
  for number in range(1, module.config.encoder_layers + 1):
    h, carried = module.layer_input(layers, carried, context)
    y = module.layer_output(layers, stand_in_layer(number, h))
    layers = (*layers, y)
  return layers, module.layer_input(layers, carried, context)[0]


METHODS = {AggNode: _node, Iterative: _read_out, Hierarchical: _stack}


def _init(module):
  method = METHODS[type(module)]
  return lambda *inputs: nn.unbox(
    module.init(jax.random.key(0), inputs, make_context(), method=method)
  ).get('params', {})


def initial_parameters(module, inputs):
  return jax.jit(_init(module))(*inputs)


def noise_parameters(module, inputs):
  """Parameters at a generic point."""
  rng = np.random.default_rng(9)

  def draw(path, leaf):
    mean = float(path[-1].key == 'scale')
    return jnp.asarray(rng.normal(mean, 0.3, leaf.shape), jnp.float32)

  shapes = jax.eval_shape(_init(module), *inputs)
  return jax.tree_util.tree_map_with_path(draw, shapes)


def apply_tree(module, params, inputs, mask=None):
  """Without dropout, compiled; and what was recorded."""
  method = METHODS[type(module)]

  @jax.jit
  def apply(params, inputs):
    return module.apply(
      {'params': params},
      inputs,
      make_context(mask),
      method=method,
      mutable=['telemetry'],
    )

  return apply(params, inputs)
