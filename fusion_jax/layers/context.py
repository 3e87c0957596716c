"""The context of a pass, which all modules of a stack share."""

import dataclasses

from jaxtyping import Array, Bool, Float

from fusion_jax.layers.ablation_masks import AblationMasks
from fusion_jax.layers.caches import CacheCursor


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

  def read_one(
    self, number: int, layer: Float[Array, 'M T D']
  ) -> Float[Array, 'M T D']:
    """Return what a fusion reads of H[number], after any norm it has."""
    return layer if self.keep is None else self.keep.read_one(number, layer)

  def read(
    self, layers: tuple[Float[Array, 'M T D'], ...]
  ) -> tuple[Float[Array, 'M T D'], ...]:
    """Return what a fusion reads of H[0], H[1] and so on."""
    return tuple(self.read_one(n, layer) for n, layer in enumerate(layers))


def token_mean(
  values: Float[Array, 'B T *rest'], tokens: Bool[Array, 'B T'] | None
) -> Float[Array, '*rest']:
  """Return the float32 mean over the positions that are not padding.

  With tokens=None it is the mean over all positions.
  """
  values = values.astype('float32')
  if tokens is None:
    return values.mean((0, 1))
  keep = tokens.reshape(*tokens.shape, *(1,) * (values.ndim - 2))
  return (values * keep).sum((0, 1)) / keep.sum((0, 1)).clip(1)
