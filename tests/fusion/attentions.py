"""A self-attention that reads the layers below it, and states for it."""

import jax
from flax.core import meta

from fusion_jax.layers.attention import causal_mask
from fusion_jax.layers.context import Context

LENGTH = 5
CAUSAL = causal_mask(LENGTH)


def normal_states(count):
  keys = jax.random.split(jax.random.key(7), count)
  return tuple(jax.random.normal(key, (2, LENGTH, 8)) for key in keys)


def attend(module, params, layers, h=None):
  x, context = layers[-1], Context(CAUSAL, True)
  h = x if h is None else h
  variables = {'params': params}
  return module.apply(variables, x, h, layers, context, method='attend')


def fresh_parameters(module, layers):
  x, context = layers[-1], Context(CAUSAL, True)
  boxed = module.init(jax.random.key(3), x, x, layers, context, method='attend')
  return meta.unbox(boxed['params'])
