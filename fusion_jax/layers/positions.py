"""Encodings of positions by sines and cosines.

Axis letters: T positions, D model width, P pairs of a sine and a cosine.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fusion_jax.config.model import Positions

# The position that fairseq gives the first token: one more than its padding id.
_FIRST_OF_FAIRSEQ = 2


def sinusoids(
  positions: Int[Array, '*T'], width: int, kind: Positions = 'sinusoidal'
) -> Float[Array, '*T {width}']:
  """Return the position encodings of Vaswani et al. (2017), section 3.5.

  'sinusoidal': PE(p, 2i) = sin(p / 10000^(2i / D)), PE(p, 2i + 1) = cos(the
  same), so that sines and cosines are interleaved. 'marian': the same sines,
  then the same cosines. 'fairseq': the sines of (p + 2) / 10000^(i / (D/2 -
  1)), then the cosines.

  Args:
    positions: Positions, int32, counted from 0.
    width: Width D, even.
    kind: Value of `ModelConfig.positions`, but 'learned'.

  Returns:
    The encodings, float32.
  """
  pair = jnp.arange(width // 2, dtype=jnp.float32)
  last = width / 2
  if kind == 'fairseq':
    last = max(last - 1, 1)
    positions = positions + _FIRST_OF_FAIRSEQ
  angle = positions[..., None] * jnp.float32(10_000) ** -(pair / last)
  waves = jnp.sin(angle), jnp.cos(angle)
  if kind == 'sinusoidal':
    return jnp.stack(waves, axis=-1).reshape(*positions.shape, width)
  return jnp.concatenate(waves, axis=-1)
