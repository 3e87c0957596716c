"""Tiny attention with shortcuts, and its inputs."""

import jax
import jax.numpy as jnp
from cases import reading
from flax.core import meta

from fusion_jax.config import ModelConfig
from fusion_jax.fusion.shortcuts import ShortcutAttention
from fusion_jax.layers.attention import causal_mask
from fusion_jax.layers.context import Context

LENGTH = 5
CAUSAL = causal_mask(LENGTH)


def shortcut_config(
  norm='post', attention_bias=False, dtype='float32', **shortcut
):
  return ModelConfig(
    width=8,
    filter=12,
    heads=2,
    decoder_layers=4,
    dropout=0.0,
    norm=norm,
    attention_bias=attention_bias,
    compute_dtype=dtype,
    # Biases that differ from 0.
    initialization='mlrf',
    decoder=reading('shortcut', **shortcut),
  )


def shortcut_attention(**options):
  return ShortcutAttention(shortcut_config(**options), 'decoder')


def normal_states(count, dtype=jnp.float32):
  keys = jax.random.split(jax.random.key(7), count)
  return tuple(
    jax.random.normal(key, (2, LENGTH, 8)).astype(dtype) for key in keys
  )


def attend(module, params, layers, mask=CAUSAL, h=None):
  x, context = layers[-1], Context(mask, True)
  h = x if h is None else h
  variables = {'params': params}
  return module.apply(variables, x, h, layers, context, method='attend')


def initial_parameters(module, layers):
  x, context = layers[-1], Context(CAUSAL, True)
  boxed = module.init(jax.random.key(3), x, x, layers, context, method='attend')
  return meta.unbox(boxed['params'])


def memory_of(module, params, features, embedding):
  variables = {'params': params}
  return module.apply(variables, features, embedding, method='memory')
