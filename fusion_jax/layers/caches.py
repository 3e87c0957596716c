"""Keys and values of attention, and the caches of them in decoding."""

from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


class KeyValue(NamedTuple):
  """Keys and values that attention reads; in decoding, also its cache.

  They are laid out as the matrix products of attention read them: with keys as
  [S, H], a step of a search on a CPU takes up to 5 times as long to attend.
  """

  keys: Float[Array, '*B N H S']
  values: Float[Array, '*B N S H']


class Keys(NamedTuple):
  """Keys of an attention that reads the values of layer 1."""

  keys: Float[Array, '*B N H S']


# What a layer keeps of the positions that it attends to.
Cache: TypeAlias = KeyValue | Keys


def with_values(own: Cache, first: Cache) -> KeyValue:
  """Return keys with their values, or with those of layer 1.

  Args:
    own: What a layer keeps.
    first: What layer 1 keeps, of the same positions; it has values.
  """
  if isinstance(own, KeyValue):
    return own
  assert isinstance(first, KeyValue), 'layer 1 has values'
  return KeyValue(own.keys, first.values)


def append(cache: Cache, new: Cache, position: Int[Array, '']) -> Cache:
  """Write keys, and values if there are any, into a cache.

  Args:
    position: Position of the first of these.

  Returns:
    The cache with those positions replaced.
  """

  def write(old: Array, one: Array, axis: int) -> Array:
    return jax.lax.dynamic_update_slice_in_dim(
      old, one.astype(old.dtype), position, axis
    )

  keys = write(cache.keys, new.keys, cache.keys.ndim - 1)
  if isinstance(cache, Keys):
    return Keys(keys)
  assert isinstance(new, KeyValue), 'a cache of values needs values'
  return KeyValue(keys, write(cache.values, new.values, cache.values.ndim - 2))


def empty(like: Cache, size: int) -> Cache:
  """Return a cache of `size` positions, all zeros, in the form of `like`."""
  keys = jnp.zeros((*like.keys.shape[:-1], size), like.keys.dtype)
  if isinstance(like, Keys):
    return Keys(keys)
  shape = *like.values.shape[:-2], size, like.values.shape[-1]
  return KeyValue(keys, jnp.zeros(shape, like.values.dtype))


class CacheCursor:
  """Cursor that gives every self-attention of a pass its cache, in order.

  A pass over all positions has no caches: attention reads what it has just
  projected. A pass over one position of each hypothesis of a beam takes the
  caches of the earlier positions. Either way `seen` lists what was read; these
  are the caches of the next step. `first_values` are those that the first
  attention projects in this pass; None before it.
  """

  def __init__(
    self,
    caches: tuple[Cache, ...] | None = None,
    position: Int[Array, ''] | None = None,
  ):
    """Start a pass.

    Args:
      caches: Caches of the earlier positions, in the order of use; None: this
        pass covers all positions.
      position: Position in the caches where the new keys begin.
    """
    self._left = None if caches is None else list(caches)
    self._position = position
    self.seen: list[Cache] = []
    self.first_values: Float[Array, '*B N T H'] | None = None
    self._first_seen: Cache | None = None

  def extend(self, new: Cache) -> KeyValue:
    """Return the keys and values to read, with `new` among them.

    Keys alone are read with the values that the first attention reads.
    """
    if self.first_values is None:
      assert isinstance(new, KeyValue), 'the first attention has values'
      self.first_values = new.values
    if self._left is not None:
      assert self._position is not None, 'caches need a position'
      new = append(self._left.pop(0), new, self._position)
    self.seen.append(new)
    if self._first_seen is None:
      self._first_seen = new
    return with_values(new, self._first_seen)

  @property
  def decoding(self) -> bool:
    """Whether this pass covers one position and has caches."""
    return self._left is not None

  def branch(self, caches: tuple[Cache, ...] | None) -> 'CacheCursor':
    """Return a cursor at the same position for a part of the pass.

    Args:
      caches: Caches of that part; None: it covers all positions.

    Returns:
      The cursor of the part; give what it has seen to `join`.
    """
    return CacheCursor(caches, self._position)

  def take(self) -> Cache | None:
    """Return the next cache unchanged, for a part that extends it itself."""
    return None if self._left is None else self._left.pop(0)

  def part(self) -> 'CacheCursor':
    """Return a cursor for the next part of a pass over all positions."""
    cursor = CacheCursor()
    cursor.first_values = self.first_values
    cursor._first_seen = self._first_seen
    return cursor

  def join(self, seen: tuple[Cache, ...]) -> None:
    """Add what a part of the pass has seen."""
    if self.first_values is None and seen:
      assert isinstance(seen[0], KeyValue), 'the first attention has values'
      self.first_values, self._first_seen = seen[0].values, seen[0]
    self.seen.extend(seen)
