"""Value residual: attention that also sees the values of layer 1.

Zhou et al. (2024), ResFormer.

Axis letters: M rows of a pass, B batch, S source, T positions, D model width,
N heads, H head width.
"""

from typing import Annotated, Literal

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from fusion_jax.config import ModelConfig, Side
from fusion_jax.config.fusion import Only
from fusion_jax.config.section import section
from fusion_jax.errors import require
from fusion_jax.fusion.scheme import AttentionSource
from fusion_jax.layers.attention import MultiHeadAttention, split_heads
from fusion_jax.layers.context import Context, Keys, KeyValue, Layers, States
from fusion_jax.layers.dense import parameter
from fusion_jax.layers.sow import sow


@section('model.*.attention_options')
class ValueResidualOptions:
  """Value residual (Zhou et al. 2024): each layer reads values of layer 1."""

  kind: Literal['identity', 'learnable', 'constant', 'sparse', 'shared'] = (
    'learnable'
  )
  """Weights of the values of layer 1 and of the layer's own. 'identity': 1/2
  and 1/2; 'learnable': the same at first; 'constant': 2 and 1; 'sparse': 5 and
  1 in the last third of the layers, 0 and 1 in the others. 'shared': the other
  layers have no values of their own (SVFormer)."""

  where: Annotated[Literal['self', 'cross', 'both'], Only('decoder')] = 'self'
  """Decoder: attentions that have it."""


# Weights (a, b) of the values of layer 1 and of the layer's own.
_FIXED = {'identity': (0.5, 0.5), 'constant': (2.0, 1.0)}
_SPARSE, _OWN = (5.0, 1.0), (0.0, 1.0)


def value_weights(
  options: ValueResidualOptions, index: int, layers: int
) -> tuple[float, float]:
  """Return the weights (a, b) of a layer above the first, or their start.

  Args:
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
  """

  side: Side
  index: int

  def setup(self):
    super().setup()
    config, side = self.config, self.config.side(self.side)
    options = side.attention_options
    start = value_weights(options, self.index, config.layers(self.side))
    if side.start == 'baseline':
      start = _OWN
    if options.kind == 'learnable' and self.index > 1:
      self.value_weights = parameter(
        self, 'value_weights', lambda *_: jnp.array(start), (None,), (2,)
      )
    else:
      self.value_weights = jnp.array(start)

  def mixed(
    self, new: KeyValue, first: Float[Array, 'M N T H'] | None
  ) -> KeyValue:
    """Return this layer's keys and values, mixed with the values of layer 1.

    `first` are those at the same positions; None in layer 1.
    """
    if self.index == 1:
      return new
    assert first is not None, 'layer 1 comes first'
    sow(self, 'telemetry', 'value_weights', self.value_weights)
    a, b = self.value_weights
    values = a * first + b * new.values
    return KeyValue(new.keys, values.astype(new.values.dtype))

  def attend(
    self, x: States, h: States, layers: Layers, context: Context
  ) -> States:
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
    self, x: States, h: States, layers: Layers, context: Context
  ) -> States:
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
  if config.side(side).attention_options.kind != 'shared':
    return ValueResidualAttention(config, side, index)
  return (SharedValueAttention if index > 1 else MultiHeadAttention)(config)


def _self_attention(
  config: ModelConfig, side: Side, index: int
) -> MultiHeadAttention | None:
  where = config.side(side).attention_options.where
  return None if where == 'cross' else value_attention(config, side, index)


def _cross_attention(
  config: ModelConfig, index: int
) -> MultiHeadAttention | None:
  where = config.decoder.attention_options.where
  return None if where == 'self' else value_attention(config, 'decoder', index)


def _mixes_memory(config: ModelConfig) -> bool:
  options = config.decoder.attention_options
  return options.where != 'self' and options.kind != 'shared'


def _check(config: ModelConfig, side: Side) -> None:
  chosen = config.side(side)
  kind = chosen.attention_options.kind
  require(
    chosen.ways <= 1,
    f'model.{side}.attention',
    f"'value_residual' and fusion={chosen.fusion!r} with options.ways="
    f'{chosen.ways} both replace the values of attention; choose one',
  )
  why = 'layers have no values' if kind == 'shared' else 'weights are fixed'
  require(
    chosen.start == 'fresh' or kind == 'learnable',
    f'model.{side}.start',
    f"'baseline' cannot be exact with attention_options.kind={kind!r}, whose "
    f"{why}; use 'learnable', or start='fresh'",
  )


SOURCE = AttentionSource(
  'value_residual',
  'Zhou et al. 2024',
  ValueResidualOptions,
  _self_attention,
  _cross_attention,
  _check,
  mixes_memory=_mixes_memory,
)
