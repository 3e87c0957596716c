"""Segments: the sentences of a packed row, their masks and positions.

The segments of a row are numbered from 1 on, side by side; 0 is padding.

Axis letters: B batch, T queries or positions, S keys.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int


def segment_mask(
  queries: Int[Array, 'B T'], keys: Int[Array, 'B S']
) -> Bool[Array, 'B 1 T S']:
  """Return where query and key belong to the same segment.

  Args:
    queries: Segments of the queries, int32.
    keys: Segments of the keys, int32.

  Returns:
    The mask of an attention; a query that is padding has no key.
  """
  same = queries[:, :, None] == keys[:, None, :]
  return (same & (keys > 0)[:, None, :])[:, None]


def segment_positions(segments: Int[Array, 'B T']) -> Int[Array, 'B T']:
  """Return the position of every token in its own segment.

  Args:
    segments: Segments, int32.

  Returns:
    Positions, int32, counted from 0 at the start of each segment; 0 at padding.
  """
  place = jnp.arange(segments.shape[1], dtype=jnp.int32)
  before = jnp.pad(segments, ((0, 0), (1, 0)))[:, :-1]
  starts = jnp.where(segments != before, place, 0)
  position = place - jax.lax.cummax(starts, axis=1)
  return jnp.where(segments > 0, position, 0)
