"""Multi-layer attention: self-attention that reads several layers below.

Dou et al. (EMNLP 2018), Eq. 8.
Axis letters: T positions, D model width; M is the rows of a pass.
"""

from jaxtyping import Array, Float

from fusion_jax.config import Side, SideConfig
from fusion_jax.config.fusion import MultiLayerOptions
from fusion_jax.fusion.inputs import per_layer_norms
from fusion_jax.fusion.scheme import BASE, PaperSize, extra_millions
from fusion_jax.fusion.starts import Opening
from fusion_jax.fusion.tree import AggNode
from fusion_jax.layers.attention import MultiHeadAttention
from fusion_jax.layers.context import Context
from fusion_jax.layers.layers import layer_norm


def layers_read(index: int, most: int, partial: bool) -> int:
  """How many layers the self-attention of layer `index` reads.

  The embedding H[0] is read by the first layer only: `most` layers below a
  layer are there from layer most + 1 on.

  Args:
    index: of the layer, counted from 1.
    most: k.
    partial: layers 2..k read the index - 1 layers they have, not just one.

  Returns:
    Between 1 and k.
  """
  if index > most:
    return most
  return max(index - 1, 1) if partial else 1


class MultiLayerAttention(MultiHeadAttention):
  """AGG(C_1..C_k), C_i = attention i from H[l-1] over H[l-i].

  Dou et al. (2018), Eq. 8. C_1 is the layer's usual attention, under its
  usual names; each other layer that is read has an attention of its own.
  Where one layer is read there is no AGG. With start='baseline' C_1 is what
  the sublayer gives at first, behind an opening.

  Attributes:
    config: of the model.
    side: whose options hold.
    index: of the layer, counted from 1.
  """

  side: Side
  index: int

  def setup(self):
    super().setup()
    config, numbers = self.config, self._numbers
    # Keys become the ends of names: source_2, source_norm_2, ...
    self.source = {str(i): MultiHeadAttention(config) for i in numbers}
    if per_layer_norms(config, self.side):
      self.source_norm = {str(i): layer_norm(config) for i in numbers}
    if numbers:
      self.agg = AggNode(config, self.side)
    if numbers and config.side(self.side).start == 'baseline':
      self.opening = Opening(config)
    else:
      self.opening = None

  @property
  def _numbers(self) -> range:
    """The i of the layers H[l-i] that are read beside H[l-1]."""
    options = self.config.side(self.side).multi_layer
    return range(
      2, layers_read(self.index, options.layers, options.partial) + 1
    )

  def attend(
    self,
    x: Float[Array, 'M T D'],
    h: Float[Array, 'M T D'],
    layers: tuple[Float[Array, 'M T D'], ...],
    context: Context,
  ) -> Float[Array, 'M T D']:
    """Self-attention over several layers, as `MultiHeadAttention.attend`."""
    outputs = [super().attend(x, h, layers, context)]
    for i in self._numbers:
      source, attention = layers[-i], self.source[str(i)]
      if per_layer_norms(self.config, self.side):
        source = self.source_norm[str(i)](source)
      seen = context.caches.extend(attention.keys_values(source))
      outputs.append(attention(h, seen, context.mask, context.deterministic))
    if len(outputs) == 1:
      return outputs[0]
    fused = self.agg(tuple(outputs), 0, context)
    return fused if self.opening is None else self.opening(outputs[0], fused)


SOURCE = 'Dou et al. 2018, Eq. 8'


def _size(layers: int, printed: float) -> PaperSize:
  side = SideConfig(multi_layer=MultiLayerOptions(layers=layers))
  name = f'multi_layer.layers={layers}'
  return PaperSize(name, side, side, extra_millions(printed), BASE)


SIZES = _size(2, 33.6), _size(3, 37.8)
