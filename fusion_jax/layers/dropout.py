"""Dropout masks, from a counter-based hash or from threefry.

Threefry bits take a fifth of a training step on a CPU. The hash costs a few
integer operations an element, fuses into its consumer on every backend, and
depends on (key, position) only, so that a mask is the same on any number of
devices.
"""

import math

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Key, UInt32

from fusion_jax.parallel.mesh import local_axes, shard_number


def row_major_positions(
  shape: tuple[int, ...], rows: bool = False
) -> UInt32[Array, '...']:
  """Return the row-major index of every element, modulo 2^32.

  With `rows` the first axis has the rows of a batch, of which each shard has
  its own; they are counted over all shards.
  """
  size = math.prod(shape)
  first = shard_number() * jnp.uint32(size % 2**32) if rows else jnp.uint32(0)
  position, stride = jnp.full(shape, first), 1
  for axis in reversed(range(len(shape))):
    index = jax.lax.broadcasted_iota(jnp.uint32, shape, axis)
    position += index * jnp.uint32(stride % 2**32)
    stride *= shape[axis]
  return position


def lowbias32(
  x: UInt32[Array, '...'], key: UInt32[Array, ''] | int = 0
) -> UInt32[Array, '...']:
  """Return a one-to-one map of words that mixes all their bits.

  It is lowbias32 of Wellons (2018, nullprogram.com/blog/2018/07/31), two rounds
  of multiply and xorshift, with a key between the rounds; 0 is none.
  """
  x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
  x = x ^ jnp.uint32(key)
  x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
  return x ^ (x >> 16)


def hash_bits(
  key: Key[Array, ''], shape: tuple[int, ...], rows: bool = True
) -> UInt32[Array, '...']:
  """Return 32 hashed bits for every element of `shape`.

  The hash is `lowbias32` of the element's index. Two words that threefry draws
  from the key enter before and between its rounds, so that two keys never give
  shifted copies. For `rows` see `row_major_positions`.
  """
  words = jax.random.bits(key, (2,), jnp.uint32)
  positions = row_major_positions(shape, rows)
  return lowbias32(positions * jnp.uint32(0x9E3779B9) ^ words[0], words[1])


def keep_mask(
  key: Key[Array, ''],
  rate: float,
  shape: tuple[int, ...],
  generator: str,
  rows: bool = True,
) -> Bool[Array, '...']:
  """Return True with probability 1 - rate, independently for every element.

  With generator='threefry' masks depend on the number of shards. For `rows` see
  `row_major_positions`.
  """
  if generator == 'threefry':
    if rows and local_axes():
      key = jax.random.fold_in(key, shard_number())
    return jax.random.bernoulli(key, 1.0 - rate, shape)
  return hash_bits(key, shape, rows) >= jnp.uint32(round(rate * 2**32))


class Dropout(nn.Module):
  """Dropout with a choice of the random generator.

  It sets elements to zero at `rate` and scales the others by 1 / (1 - rate).

  Attributes:
    rows: Whether the first axis has the rows of a batch.
  """

  rate: float
  generator: str = 'hash'
  rows: bool = True

  def __call__(
    self, x: Float[Array, '*shape'], deterministic: bool
  ) -> Float[Array, '*shape']:
    if deterministic or self.rate == 0:
      return x
    keep = keep_mask(
      self.make_rng('dropout'), self.rate, x.shape, self.generator, self.rows
    )
    return jnp.where(keep, x / (1.0 - self.rate), 0)
