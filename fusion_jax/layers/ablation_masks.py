"""Ablation masks, which say what parts of a stack take part in a pass.

They stand beside the parameters of a stack. Parameters are an input of every
compiled program, also of the search, and the masks come in with them: one
program serves whatever is left out. A stack whose parameters have no masks is
compiled without any.

Axis letters: B batch, T positions, D model width, L layers, G groups.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from fusion_jax.config import Side

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

  def read_one(
    self, number: int, layer: Float[Array, 'B T D']
  ) -> Float[Array, 'B T D']:
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
  """Return parameters with masks beside them.

  Args:
    masks: Masks for 'encoder' and 'decoder'; a side that is missing has none.

  Returns:
    The same arrays, and the masks.
  """
  stacks: dict[str, Any] = {
    side: {**parameters[side], _NAME: keep} for side, keep in masks.items()
  }
  return {**parameters, **stacks}
