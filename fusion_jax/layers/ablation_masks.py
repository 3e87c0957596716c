"""What of a stack takes part in a pass, as masks beside its parameters.

Parameters are an input of every compiled program, of the search too, and the
masks come in with them: one program serves whatever is left out. A stack whose
parameters have no masks is compiled as if there were none.

Axis letters: B batch, T positions, D model width, L layers, G groups.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

_NAME = 'keep'

Layers = tuple[Float[Array, 'B T D'], ...]


class AblationMasks(NamedTuple):
  """The masks of a stack, True at what takes part.

  layers: 1..L. One that is left out gives its input: H[l] = H[l-1], and
    without its norms; what a connection of layers adds to it stays.
  inputs: H[0..L], as read-outs, nodes, groups and sums of layers read them: 0
    where left out. What a scheme adds itself, as embeddings of layers, stays.
  groups: of the decoder with fusion='gtrans', whose psi sums to 1 over those
    that are kept.
  """

  layers: Bool[Array | np.ndarray, ' L']
  inputs: Bool[Array | np.ndarray, ' L+1']
  groups: Bool[Array | np.ndarray, ' G']

  def layer(
    self,
    index: int | Int[Array, ''],
    x: Float[Array, 'B T D'],
    y: Float[Array, 'B T D'],
  ) -> Float[Array, 'B T D']:
    """What layer `index`, from 0, gives: y, or its input x if left out."""
    return jnp.where(self.layers[index], y, x)

  def read_one(
    self, number: int, layer: Float[Array, 'B T D']
  ) -> Float[Array, 'B T D']:
    """What a fusion reads of H[number], after its norm if it has one."""
    return jnp.where(self.inputs[number], layer, 0)

  def log_weights(self, log_weights: Float[Array, ' K']) -> Float[Array, ' K']:
    """log psi of the first K groups, -inf at those left out."""
    return jnp.where(self.groups[: len(log_weights)], log_weights, -jnp.inf)


def masks_of(stack: nn.Module) -> AblationMasks | None:
  """The masks beside the parameters of a bound stack, if any."""
  if not stack.has_variable('params', _NAME):
    return None
  return stack.get_variable('params', _NAME)


def with_masks(
  parameters: Mapping[str, Any], masks: Mapping[str, AblationMasks]
) -> dict[str, Any]:
  """Parameters with masks beside them.

  Args:
    parameters: of the Transformer.
    masks: for 'encoder' and 'decoder'; a side that is not named has none.

  Returns:
    The same arrays, and the masks.
  """
  stacks = {
    side: {**parameters[side], _NAME: keep} for side, keep in masks.items()
  }
  return {**parameters, **stacks}
