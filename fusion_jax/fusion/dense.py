"""Dense connection of layers; Dou et al. (EMNLP 2018), Eq. 4.

Axis letters: B batch, T positions, D model width.
"""

from jaxtyping import Array, Float

from fusion_jax.config import ModelConfig, Side
from fusion_jax.fusion.connection import LayerConnection
from fusion_jax.fusion.inputs import Layers
from fusion_jax.fusion.scheme import on_both_sides


class DenseConnection(LayerConnection):
  """Dense connection; Dou et al. (2018), Eq. 4.

  H[l] = Layer_l(H[l-1]) + sum_{i=1..l-1} H[i].
  """

  config: ModelConfig
  side: Side

  def layer_output(
    self, layers: Layers, y: Float[Array, 'B T D']
  ) -> Float[Array, 'B T D']:
    """Return H[l], given H[0..l-1] and y = Layer_l(H[l-1])."""
    return sum(layers[1:], y)


def _layers_read(config: ModelConfig, side: Side) -> tuple[int, ...]:
  return tuple(range(1, config.layers(side)))


SCHEME = on_both_sides(
  'dense',
  DenseConnection,
  'layer connection',
  'Dou et al. 2018, Eq. 4',
  layers_read=_layers_read,
  owns_layer_inputs=lambda options: True,
)
