"""Largest elements of long rows.

Axis letters: R rows, V columns.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float32, Int32

# Number of columns of a chunk; measured to be the fastest for 8,000 and for
# 32,000 columns on a CPU.
_CHUNK = 64


def top_k(
  scores: Float32[Array, 'R V'], k: int
) -> tuple[Float32[Array, 'R {k}'], Int32[Array, 'R {k}']]:
  """Find the k largest elements of every row, faster than `jax.lax.top_k`.

  The search has two levels: the k chunks with the largest maxima, then the k
  largest elements inside them. It is exact: k elements, one in each of those
  chunks, come before any element outside them. Equal elements come in the
  order of their columns, because the chosen chunks are searched in the order
  of their columns.

  Returns:
    The elements in descending order, and their columns.
  """
  rows, columns = scores.shape
  chunks = -(-columns // _CHUNK)
  if chunks <= 2 * k:
    largest, places = jax.lax.top_k(scores, k)
    return largest, places
  padding = ((0, 0), (0, chunks * _CHUNK - columns))
  padded = jnp.pad(scores, padding, constant_values=-jnp.inf)
  # As fast as the maxima of [R, chunks, _CHUNK] on a CPU; a TPU would turn that
  # array first.
  maxima = jax.lax.reduce_window(
    padded, -jnp.inf, jax.lax.max, (1, _CHUNK), (1, _CHUNK), 'VALID'
  )
  chosen = jnp.sort(jax.lax.top_k(maxima, k)[1], axis=-1)
  # [R, k] -> [R, k * _CHUNK]
  places = chosen[:, :, None] * _CHUNK + jnp.arange(_CHUNK)
  places = places.reshape(rows, k * _CHUNK)
  inside = jnp.take_along_axis(scores, jnp.minimum(places, columns - 1), axis=1)
  inside = jnp.where(places < columns, inside, -jnp.inf)
  largest, order = jax.lax.top_k(inside, k)
  return largest, jnp.take_along_axis(places, order, axis=1)
