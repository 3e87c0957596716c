"""Votes [..., L, N, C] to be routed, and the ways to route them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from fusion_jax.fusion.routing import dynamic_routing, em_routing

FEW = settings(max_examples=12)
# L, N, C: one of each, odd ones, more inputs than capsules and the reverse.
SHAPES = st.sampled_from([(6, 8, 1), (1, 4, 1), (3, 1, 4), (5, 2, 3)])
SEEDS = st.integers(0, 99)
SCALES = st.sampled_from([1e-6, 0.3, 1.0, 10.0])
ROUTES = {
  'output': jax.jit(functools.partial(dynamic_routing, gain=2.0)),
  'input': jax.jit(functools.partial(dynamic_routing, axis='input')),
  'cosine': jax.jit(
    functools.partial(
      dynamic_routing, gain=None, agreement='cosine', agreement_scale=3.0
    )
  ),
  'scaled': jax.jit(
    functools.partial(dynamic_routing, gain=None, agreement='scaled')
  ),
  'em': jax.jit(em_routing),
  'em-relative': jax.jit(functools.partial(em_routing, relative_floor=True)),
  'em-cost-norm': jax.jit(functools.partial(em_routing, cost_norm=True)),
}


def normal_votes(shape, seed, scale=1.0, positions=(2,)):
  key = jax.random.key(seed)
  return scale * jax.random.normal(key, (*positions, *shape))


def one_position(*rows):
  """The votes of one position with C = 1: a row an input capsule."""
  return jnp.array(rows, jnp.float32)[..., None]


def assert_close(ours, theirs, tolerance=1e-5):
  largest = np.max(np.abs(theirs), initial=1)
  np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance * largest)
