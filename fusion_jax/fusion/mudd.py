"""Multiway dynamic dense connections (MUDD); Xiao et al. (2025).

Axis letters: B batch, T positions, D model width, C ways, K layers that are
summed.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from fusion_jax.config import ModelConfig, Side, SideConfig
from fusion_jax.config.fusion import MuddOptions
from fusion_jax.fusion.connection import LayerConnection
from fusion_jax.fusion.inputs import Layers, weighted_sum
from fusion_jax.fusion.scheme import (
  PRE_NORM,
  PaperSize,
  all_layers,
  on_both_sides,
)
from fusion_jax.fusion.streams import WAYS, StreamAttention
from fusion_jax.layers.attention import LayerInput, MultiHeadAttention
from fusion_jax.layers.context import Context, token_mean
from fusion_jax.layers.dense import Dense
from fusion_jax.layers.parameter import parameter
from fusion_jax.layers.residual import layer_norm
from fusion_jax.layers.sow import sow

# Start of the scale of the norm before the residual, with norms='pre_post'.
_SUM_SCALE = 1e-3
# The hidden layer after the last layer is this much wider.
_LAST = 4


def ways_after(options: MuddOptions, layers: int, layer: int) -> int:
  """Return the sums after a layer: after the last, the stack's output alone."""
  return options.ways if layer < layers else 1


def hidden_width(options: MuddOptions, layers: int, layer: int) -> int:
  """Return the hidden width of the generator after a layer."""
  width = ways_after(options, layers, layer) * (layer + 1)
  width *= _LAST if layer == layers else 1
  multiple = options.hidden_multiple
  return (width // multiple + 1) * multiple if multiple else width


class Mudd(LayerConnection):
  """Sums of all layers below, with weights of each position; MUDD.

    W_l = GELU(rms(X[l]) U_l) V_l + a_l
    x_c[l+1] = sum_{k=0..l} W_l[c, k] X[k]  for each way c

  X[0] is H[0], X[l] the output of layer l, and rms divides by the root mean
  square. The ways are the residual, the query, the key and the value of the
  layer above; with ways=1 and after layer L there is one. V_l starts as 0 and
  a_l as 1 for X[l] and 0 for the others, so that x_c[l+1] = X[l].

  norms='pre_post' sums LN_k(X[k]), with a_l = 0 at first, and adds the sum to
  X[l]; that of the residual has one more norm, whose scale starts as 0.001.

  Telemetry: 'weights_l_c' [K], the mean weights of way c after layer l.
  Views: 'weights_l' [B, T, C, K].

  Attributes:
    config: Model configuration.
    side: Side of the stack.
  """

  config: ModelConfig
  side: Side

  def setup(self):
    self.options = options = self.config.side(self.side).mudd
    numbers = range(1, self.config.layers(self.side) + 1)
    self.hidden = {str(n): self._hidden(n) for n in numbers}
    self.out = {str(n): self._out(n) for n in numbers}
    self.static = {str(n): self._static(n) for n in numbers}
    if options.norms == 'pre_post':
      self.norm = {str(n): layer_norm(self.config) for n in (0, *numbers)}
      self.sum_norm = {
        str(n): layer_norm(self.config, scale=_SUM_SCALE) for n in numbers
      }

  def _ways(self, layer: int) -> int:
    return ways_after(self.options, self.config.layers(self.side), layer)

  def _hidden(self, layer: int) -> Dense:
    width = hidden_width(self.options, self.config.layers(self.side), layer)
    start = nn.initializers.variance_scaling(1.0, 'fan_in', 'normal')
    return Dense(self.config, width, ('embed', 'mlp'), False, start)

  def _out(self, layer: int) -> Dense:
    width, zeros = self._ways(layer) * (layer + 1), nn.initializers.zeros_init()
    return Dense(self.config, width, ('mlp', 'layers'), False, zeros)

  def _static(self, layer: int) -> Float[Array, 'C K']:
    plain = self.options.norms == 'none'
    return parameter(
      self,
      f'static_{layer}',
      lambda key, shape: jnp.zeros(shape).at[:, -1].set(float(plain)),
      (None, 'layers'),
      (self._ways(layer), layer + 1),
    )

  def _weights(
    self, x: Float[Array, 'B T D'], layer: int, context: Context
  ) -> Float[Array, 'B T C K']:
    """Return W_l for every position, float32."""
    wide = x.astype(jnp.float32)
    square = jnp.square(wide).mean(-1, keepdims=True)
    unit = wide * jax.lax.rsqrt(square + self.config.norm_epsilon)
    hidden = self.hidden[str(layer)](unit.astype(x.dtype))
    hidden = jax.nn.gelu(hidden, approximate=False)
    static = self.static[str(layer)]
    dynamic = self.out[str(layer)](hidden).astype(jnp.float32)
    weights = dynamic.reshape(*x.shape[:-1], *static.shape) + static
    sow(self, 'views', f'weights_{layer}', weights)
    means = token_mean(weights, context.tokens)
    for way, mean in zip(WAYS[len(means)], means, strict=True):
      sow(self, 'telemetry', f'weights_{layer}_{way}', mean)
    return weights

  def layer_input(
    self, layers: Layers, carried: tuple[Any, ...], context: Context
  ) -> tuple[Float[Array, 'B T D'] | LayerInput, tuple[Any, ...]]:
    """Return x[l]; `carried` is X[0..l-2] as the sums read them."""
    layer, x = len(layers) - 1, layers[-1]
    normed = self.options.norms == 'pre_post'
    own = self.norm[str(layer)](x) if normed else x
    carried = (*carried, context.read_one(layer, own))
    if layer == 0:
      return x, carried
    weights = jnp.moveaxis(self._weights(x, layer, context), -1, 0)
    sums = [
      weighted_sum(weights[..., way, None], carried)
      for way in range(weights.shape[-1])
    ]
    if normed:
      sums[0] = self.sum_norm[str(layer)](sums[0])
      sums = [x + each for each in sums]
    return (LayerInput(*sums) if len(sums) > 1 else sums[0]), carried


def _attention(
  config: ModelConfig, side: Side, index: int
) -> MultiHeadAttention:
  """Return the self-attention of a layer; layer 1 reads H[0] alone."""
  streams = config.side(side).mudd.ways > 1 and index > 1
  return StreamAttention(config) if streams else MultiHeadAttention(config)


def _identity(config: ModelConfig, side: Side) -> bool:
  return True


_FOUR = SideConfig('mudd')
_ONE = SideConfig('mudd', mudd=MuddOptions(ways=1))

SCHEME = on_both_sides(
  'mudd',
  Mudd,
  'layer connection',
  'Xiao et al. 2025',
  'mudd',
  layers_read=all_layers,
  starts_as_identity=_identity,
  self_attention=_attention,
  sizes=(
    PaperSize('mudd', _FOUR, _FOUR, None, PRE_NORM),
    PaperSize('mudd.ways=1', _ONE, _ONE, None, PRE_NORM),
  ),
)
