"""Dropout masks, from a counter-based hash or from threefry.

Threefry bits take a fifth of a training step on a CPU. The hash costs a few
integer operations an element, fuses into its consumer on every backend, and
depends on (key, position) only: a mask is the same on any number of devices.
"""

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Key, UInt32


def _positions(shape: tuple[int, ...]) -> UInt32[Array, '...']:
  """The row-major index of every element, modulo 2^32."""
  position, stride = jnp.zeros(shape, jnp.uint32), 1
  for axis in reversed(range(len(shape))):
    index = jax.lax.broadcasted_iota(jnp.uint32, shape, axis)
    position += index * jnp.uint32(stride % 2**32)
    stride *= shape[axis]
  return position


def hash_bits(
  key: Key[Array, ''], shape: tuple[int, ...]
) -> UInt32[Array, '...']:
  """32 hashed bits for every element of `shape`.

  Two multiply-xorshift rounds (the constants are those of Wellons' lowbias32)
  over the element's index. Two words that threefry draws from the key enter
  before and between the rounds, so that two keys never give shifted copies.

  Args:
    key: a typed key of `jax.random.key`.
    shape: of the result.

  Returns:
    uint32 array of `shape`.
  """
  words = jax.random.bits(key, (2,), jnp.uint32)
  x = (_positions(shape) * jnp.uint32(0x9E3779B9)) ^ words[0]
  x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
  x = x ^ words[1]
  x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
  return x ^ (x >> 16)


def keep_mask(
  key: Key[Array, ''], rate: float, shape: tuple[int, ...], generator: str
) -> Bool[Array, '...']:
  """True with probability 1 - rate, independently for every element.

  Args:
    key: a typed key of `jax.random.key`.
    rate: the probability of False, in [0, 1).
    shape: of the result.
    generator: 'hash' or 'threefry'.

  Returns:
    bool array of `shape`.
  """
  if generator == 'threefry':
    return jax.random.bernoulli(key, 1.0 - rate, shape)
  return hash_bits(key, shape) >= jnp.uint32(round(rate * 2**32))


class Dropout(nn.Module):
  """Zeroes elements at `rate` and scales the others by 1 / (1 - rate)."""

  rate: float
  generator: str = 'hash'

  def __call__(
    self, x: Float[Array, '*shape'], deterministic: bool
  ) -> Float[Array, '*shape']:
    if deterministic or self.rate == 0:
      return x
    keep = keep_mask(
      self.make_rng('dropout'), self.rate, x.shape, self.generator
    )
    return jnp.where(keep, x / (1.0 - self.rate), 0)
