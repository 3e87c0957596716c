"""What every module of a stack shares during one pass."""

import dataclasses

from jaxtyping import Array, Bool, Float

from fusion_jax.layers.ablation_masks import AblationMasks
from fusion_jax.layers.caches import CacheCursor


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
  caches: CacheCursor = dataclasses.field(default_factory=CacheCursor)
  memory_mask: Bool[Array, 'B 1 #T S'] | None = None
  keep: AblationMasks | None = None

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


def token_mean(
  values: Float[Array, 'B T *rest'], tokens: Bool[Array, 'B T'] | None
) -> Float[Array, '*rest']:
  """The float32 mean over the positions that are no padding; None: over all."""
  values = values.astype('float32')
  if tokens is None:
    return values.mean((0, 1))
  keep = tokens.reshape(*tokens.shape, *(1,) * (values.ndim - 2))
  return (values * keep).sum((0, 1)) / keep.sum((0, 1)).clip(1)
