"""What every module of a stack shares during one pass."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from fusion_jax.models.keep import Keep


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


class CacheWalk:
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

  def branch(self, caches: tuple[KeyValue, ...] | None) -> 'CacheWalk':
    """A walk at the same position for a part of the pass.

    Args:
      caches: of that part; None: it covers all positions.

    Returns:
      The walk of the part; give what it has seen to `join`.
    """
    return CacheWalk(caches, self._position)

  def take(self) -> KeyValue | None:
    """The next cache as it is, for a part that extends it itself."""
    return None if self._left is None else self._left.pop(0)

  def join(self, seen: tuple[KeyValue, ...]) -> None:
    """Adds what a part of the pass has seen."""
    self.seen.extend(seen)


@dataclasses.dataclass(frozen=True)
class Context:
  """Of one pass through one stack.

  mask: of the self-attention, True keeps.
  deterministic: no dropout.
  tokens: True at positions that are no padding; None: all are.
  caches: of every self-attention.
  memory_mask: of the cross-attention, True keeps: at source tokens, of packed
    rows at those of the same segment; None in the encoder.
  keep: what takes part; None: all.
  """

  mask: Bool[Array, '#M #N #T U']
  deterministic: bool
  tokens: Bool[Array, 'M T'] | None = None
  caches: CacheWalk = dataclasses.field(default_factory=CacheWalk)
  memory_mask: Bool[Array, 'B 1 #T S'] | None = None
  keep: Keep | None = None

  def read_one(
    self, number: int, layer: Float[Array, 'M T D']
  ) -> Float[Array, 'M T D']:
    """What a fusion reads of H[number], after its norm if it has one."""
    return layer if self.keep is None else self.keep.read_one(number, layer)

  def read(
    self, layers: tuple[Float[Array, 'M T D'], ...]
  ) -> tuple[Float[Array, 'M T D'], ...]:
    """What a fusion reads of H[0], H[1] and so on."""
    return tuple(self.read_one(n, layer) for n, layer in enumerate(layers))


def record(module: nn.Module, name: str, value: Float[Array, '...']) -> None:
  """Hands a small array to whoever watches this pass.

  Without a mutable collection 'telemetry' nothing is kept, and XLA drops what
  was computed for it.

  Args:
    module: that has the value.
    name: within the module.
    value: a scalar or a short vector.
  """
  module.sow(
    'telemetry', name, value, init_fn=lambda: None, reduce_fn=lambda _, new: new
  )


def show(module: nn.Module, name: str, value: Float[Array, '...']) -> None:
  """Hands what a module computes for every position to whoever looks.

  Like `record`, into the collection 'views'.

  Args:
    module: that has the value.
    name: within the module.
    value: of any size.
  """
  module.sow(
    'views', name, value, init_fn=lambda: None, reduce_fn=lambda _, new: new
  )


def token_mean(
  values: Float[Array, 'B T *rest'], tokens: Bool[Array, 'B T'] | None
) -> Float[Array, '*rest']:
  """The float32 mean over the positions that are no padding; None: over all."""
  values = values.astype('float32')
  if tokens is None:
    return values.mean((0, 1))
  keep = tokens.reshape(*tokens.shape, *(1,) * (values.ndim - 2))
  return (values * keep).sum((0, 1)) / keep.sum((0, 1)).clip(1)
