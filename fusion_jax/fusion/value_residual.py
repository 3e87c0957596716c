"""Value residual: attention that also sees the values of layer 1.

Zhou et al. (2024), ResFormer.

Axis letters: M rows of a pass, B batch, S source, T positions, D model width,
N heads, H head width.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from fusion_jax.config import ModelConfig, Side
from fusion_jax.config.fusion import ValueResidualOptions
from fusion_jax.layers.attention import MultiHeadAttention, split_heads
from fusion_jax.layers.caches import Keys, KeyValue
from fusion_jax.layers.context import Context
from fusion_jax.layers.parameter import parameter
from fusion_jax.layers.sow import sow

# Weights (a, b) of the values of layer 1 and of the layer's own.
_FIXED = {'identity': (0.5, 0.5), 'constant': (2.0, 1.0)}
_SPARSE, _OWN = (5.0, 1.0), (0.0, 1.0)


def value_weights(
  options: ValueResidualOptions, index: int, layers: int
) -> tuple[float, float]:
  """Return the weights (a, b) of a layer above the first, or their start.

  Args:
    options: Options of the value residual.
    index: Number of the layer, counted from 1.
    layers: Number of layers L. 'sparse' mixes above layer L - L // 3.
  """
  if options.kind == 'sparse':
    return _SPARSE if index > layers - layers // 3 else _OWN
  return _FIXED.get(options.kind, _FIXED['identity'])


class ValueResidualAttention(MultiHeadAttention):
  """Attention over a V_1 + b V_l; Zhou et al. (2024), section 3.

  V_l are the values of layer l at the same positions, of its own projection.
  Layer 1 is plain. Caches hold the mixed values.

  Telemetry: 'value_weights' [2], (a, b).

  Attributes:
    config: Model configuration.
    side: Side whose options hold.
    index: Number of the layer, counted from 1.
  """

  side: Side
  index: int

  def setup(self):
    super().setup()
    config, side = self.config, self.config.side(self.side)
    start = value_weights(
      side.value_residual, self.index, config.layers(self.side)
    )
    if side.start == 'baseline':
      start = _OWN
    if side.value_residual.kind == 'learnable' and self.index > 1:
      self.value_weights = parameter(
        self,
        'value_weights',
        lambda key, shape: jnp.array(start),
        (None,),
        (2,),
      )
    else:
      self.value_weights = jnp.array(start)

  def mixed(
    self, own: KeyValue, first: Float[Array, 'M N T H'] | None
  ) -> KeyValue:
    """Return keys and values of this layer with those values of layer 1.

    Args:
      own: Keys and values of this layer.
      first: Values of layer 1 at the same positions; None in layer 1.
    """
    if self.index == 1:
      return own
    assert first is not None, 'layer 1 comes first'
    sow(self, 'telemetry', 'value_weights', self.value_weights)
    a, b = self.value_weights
    values = a * first + b * own.values
    return KeyValue(own.keys, values.astype(own.values.dtype))

  def attend(
    self,
    x: Float[Array, 'M T D'],
    h: Float[Array, 'M T D'],
    layers: tuple[Float[Array, 'M T D'], ...],
    context: Context,
  ) -> Float[Array, 'M T D']:
    """Self-attend; see `MultiHeadAttention.attend`."""
    del x, layers
    new = self.mixed(self.keys_values(h), context.caches.first_values)
    seen = context.caches.extend(new)
    return self(h, seen, context.mask, context.deterministic)


class SharedValueAttention(MultiHeadAttention):
  """Attention of a layer above the first over V_1 alone; SVFormer.

  Zhou et al. (2024). It has no projection of values, and its caches hold keys
  alone.
  """

  def keys_alone(self, source: Float[Array, 'B S D']) -> Keys:
    """Project the keys of what is attended to."""
    keys = split_heads(self.key(source), self.config.heads)
    return Keys(keys.swapaxes(-1, -2))

  def attend(
    self,
    x: Float[Array, 'M T D'],
    h: Float[Array, 'M T D'],
    layers: tuple[Float[Array, 'M T D'], ...],
    context: Context,
  ) -> Float[Array, 'M T D']:
    """Self-attend; see `MultiHeadAttention.attend`."""
    del x, layers
    seen = context.caches.extend(self.keys_alone(h))
    return self(h, seen, context.mask, context.deterministic)

  def memory(
    self,
    features: Float[Array, '*W B S D'],
    embedding: Float[Array, 'B S D'],
    tokens: Bool[Array, 'B S'] | None = None,
  ) -> Keys:
    """Return the keys; see `MultiHeadAttention.memory`."""
    del embedding, tokens
    return self.keys_alone(features if features.ndim == 3 else features[0])


def value_attention(
  config: ModelConfig, side: Side, index: int
) -> MultiHeadAttention:
  """Return an attention with a value residual, of layer `index`, from 1."""
  if config.side(side).value_residual.kind != 'shared':
    return ValueResidualAttention(config, side, index)
  return (SharedValueAttention if index > 1 else MultiHeadAttention)(config)


def in_cross_attention(config: ModelConfig) -> bool:
  """Return whether cross-attention has value residuals."""
  options = config.decoder.value_residual
  return options.kind != 'none' and options.where != 'self'
