"""Keys and values, and the caches of them that decoding keeps."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


class KeyValue(NamedTuple):
  """What attention reads; in decoding also the cache of one attention.

  Keys and values lie as the products of attention read them: with keys as
  [S, H] a step of a search on a CPU attends up to 5 times as long.
  """

  keys: Float[Array, '*B N H S']
  values: Float[Array, '*B N S H']


def append(
  cache: KeyValue, new: KeyValue, position: Int[Array, '']
) -> KeyValue:
  """Writes keys and values into a cache.

  Args:
    cache: of S positions.
    new: of a few of them.
    position: of the first of these.

  Returns:
    The cache with those positions replaced.
  """

  def write(old: Array, one: Array, axis: int) -> Array:
    return jax.lax.dynamic_update_slice_in_dim(
      old, one.astype(old.dtype), position, axis
    )

  return KeyValue(
    write(cache.keys, new.keys, cache.keys.ndim - 1),
    write(cache.values, new.values, cache.values.ndim - 2),
  )


def empty(like: KeyValue, size: int) -> KeyValue:
  """A cache of `size` positions for what has one position here."""
  return KeyValue(
    jnp.zeros((*like.keys.shape[:-1], size), like.keys.dtype),
    jnp.zeros(
      (*like.values.shape[:-2], size, like.values.shape[-1]),
      like.values.dtype,
    ),
  )


class CacheCursor:
  """Gives every self-attention of a pass its cache, in the order of use.

  A pass over all positions has no caches: attention reads what it has just
  projected. A pass over one position, of each hypothesis of a beam, takes the
  caches of the earlier ones.
  Either way `seen` lists what was read, which is the next step's caches.
  """

  def __init__(
    self,
    caches: tuple[KeyValue, ...] | None = None,
    position: Int[Array, ''] | None = None,
  ):
    """Starts a pass.

    Args:
      caches: of the earlier positions, in the order of use; None: this pass
        covers all positions.
      position: where in the caches the new keys begin.
    """
    self._left = None if caches is None else list(caches)
    self._position = position
    self.seen: list[KeyValue] = []

  def extend(self, new: KeyValue) -> KeyValue:
    """The keys and values to read, `new` among them."""
    if self._left is not None:
      new = append(self._left.pop(0), new, self._position)
    self.seen.append(new)
    return new

  @property
  def decoding(self) -> bool:
    """Whether this pass covers one position and has caches."""
    return self._left is not None

  def branch(self, caches: tuple[KeyValue, ...] | None) -> 'CacheCursor':
    """A cursor at the same position for a part of the pass.

    Args:
      caches: of that part; None: it covers all positions.

    Returns:
      The cursor of the part; give what it has seen to `join`.
    """
    return CacheCursor(caches, self._position)

  def take(self) -> KeyValue | None:
    """The next cache as it is, for a part that extends it itself."""
    return None if self._left is None else self._left.pop(0)

  def join(self, seen: tuple[KeyValue, ...]) -> None:
    """Adds what a part of the pass has seen."""
    self.seen.extend(seen)
