"""What a layer reads: the layer below, unless a scheme decides otherwise.

Axis letters: B batch, T positions, D model width.
"""

from typing import Any

from flax import linen as nn
from jaxtyping import Array, Float

from fusion_jax.fusion.inputs import Layers
from fusion_jax.layers.context import Context


class LayerConnection(nn.Module):
  """Every layer reads the layer below, and the stack's output is H[L]."""

  def layer_input(
    self, layers: Layers, carried: tuple[Any, ...], context: Context
  ) -> tuple[Float[Array, 'B T D'], tuple[Any, ...]]:
    """What the next layer reads; after the last layer, the stack's output.

    Args:
      layers: H[0..l-1], what is there before layer l.
      carried: what the call for layer l - 1 returned; () at first.
      context: of the pass.

    Returns:
      The input of layer l, and what the next call needs.
    """
    del context
    return layers[-1], carried

  def layer_output(
    self, layers: Layers, y: Float[Array, 'B T D']
  ) -> Float[Array, 'B T D']:
    """H[l].

    Args:
      layers: H[0..l-1].
      y: what layer l made of its input.

    Returns:
      What `layers` gets next.
    """
    del layers
    return y
