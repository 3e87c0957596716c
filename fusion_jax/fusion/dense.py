"""Dense connection of layers; Dou et al. (EMNLP 2018), Eq. 4.

Axis letters: B batch, T positions, D model width.
"""

from jaxtyping import Array, Float

from fusion_jax.config import ModelConfig, Side
from fusion_jax.config.section import section
from fusion_jax.fusion.connection import LayerConnection
from fusion_jax.fusion.inputs import Layers
from fusion_jax.fusion.scheme import (
  on_both_sides,
)
from fusion_jax.layers.residual import layer_norm


@section('model.*.options')
class DenseOptions:
  """Dense connection (Dou 2018, Eq. 4)."""

  include_embedding: bool = False
  """Whether H[0] is a term of the sums too."""

  post_sum_norm: bool = False
  """Whether a norm follows every sum."""


class DenseConnection(LayerConnection):
  """Dense connection; Dou et al. (2018), Eq. 4.

  H[l] = Layer_l(H[l-1]) + sum_{i=1..l-1} H[i]. `post_sum_norm` puts a norm
  after each sum, but not where there is nothing to add, as in layer 1.

  Attributes:
    config: Model configuration.
    side: Side of the stack.
  """

  config: ModelConfig
  side: Side

  def setup(self):
    options = self.config.side(self.side).options
    self._start = 0 if options.include_embedding else 1
    numbers = range(self._start + 1, self.config.layers(self.side) + 1)
    if options.post_sum_norm:
      self.sum_norm = {str(n): layer_norm(self.config) for n in numbers}

  def layer_output(
    self, layers: Layers, y: Float[Array, 'B T D']
  ) -> Float[Array, 'B T D']:
    """Return H[l], given H[0..l-1] and y = Layer_l(H[l-1])."""
    below = layers[self._start :]
    total = sum(below, y)
    if not below or not self.config.side(self.side).options.post_sum_norm:
      return total
    return self.sum_norm[str(len(layers))](total)


def _layers_read(config: ModelConfig, side: Side) -> tuple[int, ...]:
  first = 0 if config.side(side).options.include_embedding else 1
  return tuple(range(first, config.layers(side)))


SCHEME = on_both_sides(
  'dense',
  DenseConnection,
  'layer connection',
  'Dou et al. 2018, Eq. 4',
  DenseOptions,
  layers_read=_layers_read,
  owns_layer_inputs=lambda options: True,
)
