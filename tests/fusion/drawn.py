"""Arrays and parameters from normal distributions, where no 0 hides a term."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from fusion_jax.layers.attention import causal_mask
from fusion_jax.layers.context import Context

PASS = Context(causal_mask(1), deterministic=True)


def normal(*shape, seed=0, scale=1.0):
  return jnp.float32(np.random.default_rng(seed).normal(0, scale, shape))


def drawn(init, *arguments, mean=0.0, scale=0.5, seed=7):
  """Parameters of the shapes that `init` would give."""
  shapes = nn.unbox(jax.eval_shape(init, jax.random.key(0), *arguments))
  random = np.random.default_rng(seed)
  return jax.tree.map(
    lambda leaf: jnp.float32(random.normal(mean, scale, leaf.shape)),
    shapes['params'],
  )
