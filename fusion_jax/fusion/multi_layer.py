"""Multi-layer attention: self-attention that reads several layers below.

Dou et al. (EMNLP 2018), Eq. 8.

Axis letters: M rows of a pass, T positions, D model width.
"""

from typing import Annotated

from pydantic import Field

from fusion_jax.config import ModelConfig, Side
from fusion_jax.config.section import section
from fusion_jax.errors import require
from fusion_jax.fusion.inputs import Opening, per_layer_norms
from fusion_jax.fusion.scheme import AttentionSource, scheme_of
from fusion_jax.fusion.tree import AggNode, AggOptions
from fusion_jax.layers.attention import MultiHeadAttention
from fusion_jax.layers.context import Context, Layers, States
from fusion_jax.layers.residual import layer_norm


@section('model.*.attention_options')
class MultiLayerOptions(AggOptions):
  """Multi-layer attention (Dou 2018, Eq. 8), and its aggregation node."""

  layers: Annotated[int, Field(ge=2, le=1_000)] = 2
  """Layers that a self-attention reads."""


def layers_read(index: int, most: int) -> int:
  """Return how many layers the self-attention of layer `index`, from 1, reads.

  It is `most`, or 1 where there are fewer layers below: only the first layer
  reads the embedding H[0], so that layer k + 1 is the first with k to read.
  """
  return most if index > most else 1


class MultiLayerAttention(MultiHeadAttention):
  """Self-attention over several layers; Dou et al. (2018), Eq. 8.

  AGG(C_1..C_k), where C_i is attention i from H[l-1] over H[l-i]. C_1 is the
  layer's usual attention, and its parameters keep their usual names; each other
  layer that is read has its own attention. A layer that reads one layer has no
  AGG. With start='baseline' an opening makes the sublayer start as C_1.
  """

  side: Side
  index: int

  def setup(self):
    super().setup()
    config, numbers = self.config, self._numbers
    # The keys become the ends of parameter names: source_2, source_norm_2, ...
    self.source = {str(i): MultiHeadAttention(config) for i in numbers}
    if per_layer_norms(config, self.side):
      self.source_norm = {str(i): layer_norm(config) for i in numbers}
    if numbers:
      self.agg = AggNode(config, config.side(self.side).attention_options)
    opens = numbers and config.side(self.side).start == 'baseline'
    self.opening = Opening(config) if opens else None

  @property
  def _numbers(self) -> range:
    """The numbers i of the layers H[l-i] that are read beside H[l-1]."""
    options = self.config.side(self.side).attention_options
    return range(2, layers_read(self.index, options.layers) + 1)

  def attend(
    self, x: States, h: States, layers: Layers, context: Context
  ) -> States:
    """Attend to several layers; see `MultiHeadAttention.attend`."""
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


def _check(config: ModelConfig, side: Side) -> None:
  chosen, path = config.side(side), f'model.{side}'
  read, layers = chosen.attention_options.layers, config.layers(side)
  require(
    not scheme_of(config, side).hides_layer_below(chosen.options),
    f'{path}.attention',
    "'multi_layer' reads the layers below, whose place "
    f'fusion={chosen.fusion!r} takes; choose one',
  )
  require(
    read < layers,
    f'{path}.attention_options.layers',
    f'{read} is more than any of {layers} layers has below it; at most '
    f'{layers - 1}',
  )


SOURCE = AttentionSource(
  'multi_layer',
  'Dou et al. 2018, Eq. 8',
  MultiLayerOptions,
  self_attention=MultiLayerAttention,
  check=_check,
)
