"""Base of layer connections, in which every layer reads the layer below.

Axis letters: B batch, T positions, D model width, J layers of the decoder.
"""

from typing import Any

from flax import linen as nn
from jaxtyping import Array, Float

from fusion_jax.fusion.inputs import Layers
from fusion_jax.layers.attention import LayerInput
from fusion_jax.layers.context import Context


class LayerConnection(nn.Module):
  """Plain connection: layers read the layer below, and the output is H[L]."""

  def layer_input(
    self, layers: Layers, carried: tuple[Any, ...], context: Context
  ) -> tuple[Float[Array, '*J B T D'] | LayerInput, tuple[Any, ...]]:
    """Return the next layer's input, or after the last the stack's output.

    Args:
      layers: States H[0..l-1] below layer l.
      carried: Second result of the call for layer l - 1; () at first.

    Returns:
      The input of layer l, and the `carried` of the next call. The output of an
      encoder may be one for each decoder layer, [J, B, T, D], or two, one for
      keys and one for values, [J, 2, B, T, D].
    """
    del context
    return layers[-1], carried

  def layer_output(
    self, layers: Layers, y: Float[Array, 'B T D']
  ) -> Float[Array, 'B T D']:
    """Return H[l], the next entry of `layers`."""
    del layers
    return y
