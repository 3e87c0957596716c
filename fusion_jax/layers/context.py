"""The context of a pass, which all modules of a stack share.

It has masks, the caches of attention in decoding, and ablation masks, which say
what parts of a stack take part. These stand beside the parameters of a stack:
parameters are an input of every compiled program, so that one program serves
whatever is left out. A stack whose parameters have none is compiled without.

Axis letters: B batch, M rows of a pass, T positions, S keys, D model width, N
heads, H head width, L layers, G groups.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from fusion_jax.config import Side

# Vectors at the positions of a batch, and those of several layers.
States: TypeAlias = Float[Array, 'B T D']
Layers: TypeAlias = tuple[States, ...]

_NAME = 'keep'


class AblationMasks(NamedTuple):
  """Masks of a stack, True at what takes part.

  Attributes:
    layers: Mask of layers 1..L. A layer that is left out returns its input:
      H[l] = H[l-1], also without its norms; what a layer connection adds to it
      stays.
    inputs: Mask of H[0..L], as layer aggregations, nodes, groups and sums of
      layers read them: 0 where left out. What a scheme adds itself, such as
      embeddings of layers, stays.
    groups: Mask of the predictions that a decoder mixes, groups of layers or
      its own and that of the source's embeddings; psi sums to 1 over those that
      are kept.
  """

  layers: Bool[Array | np.ndarray, ' L']
  inputs: Bool[Array | np.ndarray, ' L+1']
  groups: Bool[Array | np.ndarray, ' G']

  def layer(self, index: int | Int[Array, '']) -> Bool[Array, '']:
    """Return whether layer `index`, counted from 0, takes part."""
    return jnp.asarray(self.layers)[index]

  def read_one(self, number: int, layer: States) -> States:
    """Return what a fusion reads of H[number], after any norm it has."""
    return jnp.where(self.inputs[number], layer, 0)

  def log_weights(
    self, log_weights: Float[Array, 'K *positions']
  ) -> Float[Array, 'K *positions']:
    """Return log psi of the first K groups, -inf at those left out."""
    kept = self.groups[: len(log_weights)]
    ones = (1,) * (log_weights.ndim - 1)
    return jnp.where(kept.reshape(-1, *ones), log_weights, -jnp.inf)


def masks_of(stack: nn.Module) -> AblationMasks | None:
  """Return the masks beside the parameters of a bound stack, if any."""
  if not stack.has_variable('params', _NAME):
    return None
  return stack.get_variable('params', _NAME)


def with_masks(
  parameters: Mapping[str, Any], masks: Mapping[Side, AblationMasks]
) -> dict[str, Any]:
  """Return parameters with masks beside them; a side without masks has none."""
  stacks: dict[str, Any] = {
    side: {**parameters[side], _NAME: keep} for side, keep in masks.items()
  }
  return {**parameters, **stacks}


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
  """Return keys with their values, or with those that layer 1 keeps."""
  if isinstance(own, KeyValue):
    return own
  assert isinstance(first, KeyValue), 'layer 1 has values'
  return KeyValue(own.keys, first.values)


def append(cache: Cache, new: Cache, position: Int[Array, '']) -> Cache:
  """Write keys, and any values, into a cache from a position on."""

  def write(old: Array, one: Array, axis: int) -> Array:
    # XLA's CPU backend would write a cache with a leading axis of 1 twice.
    if len(old) == 1:
      return write(old[0], one[0], axis)[None]
    axis += old.ndim
    return jax.lax.dynamic_update_slice_in_dim(
      old, one.astype(old.dtype), position, axis
    )

  keys = write(cache.keys, new.keys, -1)
  if isinstance(cache, Keys):
    return Keys(keys)
  assert isinstance(new, KeyValue), 'a cache of values needs values'
  return KeyValue(keys, write(cache.values, new.values, -2))


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
    """Return a cursor at this position for a part; `join` takes what it saw."""
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


@dataclasses.dataclass(frozen=True)
class Context:
  """Context of one pass through one stack.

  Attributes:
    mask: Mask of the self-attention, True where a key may be attended to.
    tokens: Mask, True at positions that are not padding; None: all are tokens.
    caches: Caches of every self-attention.
    memory_mask: Mask of the cross-attention, True at source tokens, in packed
      rows at those of the same segment; None in the encoder.
    keep: Ablation masks of what takes part; None: everything does.
  """

  mask: Bool[Array, '#M #N #T U']
  deterministic: bool
  tokens: Bool[Array, 'M T'] | None = None
  caches: CacheCursor = dataclasses.field(default_factory=CacheCursor)
  memory_mask: Bool[Array, 'B 1 #T S'] | None = None
  keep: AblationMasks | None = None

  def read_one(self, number: int, layer: States) -> States:
    """Return what a fusion reads of H[number], after any norm it has."""
    return layer if self.keep is None else self.keep.read_one(number, layer)

  def read(self, layers: Layers) -> Layers:
    """Return what a fusion reads of H[0], H[1] and so on."""
    return tuple(self.read_one(n, layer) for n, layer in enumerate(layers))


def token_mean(
  values: Float[Array, 'B T *rest'], tokens: Bool[Array, 'B T'] | None
) -> Float[Array, '*rest']:
  """Return the float32 mean over all positions, or those of tokens."""
  values = values.astype('float32')
  if tokens is None:
    return values.mean((0, 1))
  keep = tokens.reshape(*tokens.shape, *(1,) * (values.ndim - 2))
  return (values * keep).sum((0, 1)) / keep.sum((0, 1)).clip(1)
