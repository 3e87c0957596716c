"""Positions and segments: encodings by sines and cosines, packed rows.

The segments of a packed row, its sentences, are numbered from 1 on, side by
side; 0 is padding.

Axis letters: B batch, T positions or queries, S keys, D model width, P pairs
of a sine and a cosine.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

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


def segment_mask(
  queries: Int[Array, 'B T'], keys: Int[Array, 'B S']
) -> Bool[Array, 'B 1 T S']:
  """Return where query and key belong to the same segment.

  A query that is padding has no key.
  """
  same = queries[:, :, None] == keys[:, None, :]
  return (same & (keys > 0)[:, None, :])[:, None]


def segment_positions(segments: Int[Array, 'B T']) -> Int[Array, 'B T']:
  """Return the position of every token in its own segment; 0 at padding."""
  place = jnp.arange(segments.shape[1], dtype=jnp.int32)
  before = jnp.pad(segments, ((0, 0), (1, 0)))[:, :-1]
  starts = jnp.where(segments != before, place, 0)
  position = place - jax.lax.cummax(starts, axis=1)
  return jnp.where(segments > 0, position, 0)
