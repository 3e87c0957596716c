"""Tiny fusions of Dou (2018) and Wang (2018) and their inputs."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from fusion_jax.config import ModelConfig
from fusion_jax.config.fusion import SideConfig
from fusion_jax.layers.context import Context

WIDTH = 8
KEY = jax.random.key(0)
_MASK = jnp.ones((1, 1, 1, 5), bool)
CONTEXT = Context(_MASK, True)


_SMALL = {
  'feed_forward': {'hidden': 12},
  'hops': {'hidden': 12, 'scorer_width': 6, 'hops': 2},
}


def tiny_config(fusion, layers=3, options=None, start='fresh', **changes):
  options = _SMALL.get(fusion, {}) | (options or {})
  side = SideConfig(fusion, options, start=start)
  values = {'width': WIDTH, 'filter': 20, 'heads': 2}
  values['initialization'] = 'glorot'
  return ModelConfig(
    encoder=side,
    decoder=side,
    encoder_layers=layers,
    decoder_layers=layers,
    **(values | changes),
  )


def normal_layers(count, width=WIDTH, dtype='float32', seed=1):
  states = np.random.default_rng(seed).normal(size=(count, 2, 5, width))
  return tuple(jnp.asarray(state, dtype) for state in states)


def initial_parameters(module, layers):
  """As they start."""
  start = jax.jit(lambda: module.init(KEY, layers, CONTEXT))
  return nn.unbox(start().get('params', {}))


def noise_parameters(module, layers, scale=1.0):
  """Where nothing is 0 or 1 because it starts so."""
  random = np.random.default_rng(2)
  shapes = jax.eval_shape(lambda: module.init(KEY, layers, CONTEXT))
  return jax.tree.map(
    lambda x: jnp.asarray(scale * random.normal(size=x.shape), jnp.float32),
    nn.unbox(shapes.get('params', {})),
  )


@functools.partial(jax.jit, static_argnums=0, static_argnames='deterministic')
def run_fusion(module, params, layers, tokens=None, deterministic=True):
  """The fusion and its telemetry."""
  return module.apply(
    {'params': params},
    layers,
    Context(_MASK, deterministic, tokens),
    rngs={'dropout': KEY},
    mutable=['telemetry'],
  )


def apply_fusion(module, params, layers, **options):
  return run_fusion(module, params, layers, **options)[0]
