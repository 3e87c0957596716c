"""Multiway dynamic dense connections (MUDD); Xiao et al. (2025).

Axis letters: B batch, S source, T positions, D model width, C sums, J layers of
the decoder, K layers that are summed, W one memory for keys and one for values.
"""

from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from fusion_jax.bounds import SizeOrZero
from fusion_jax.config import ModelConfig, Side
from fusion_jax.config.fusion import Only
from fusion_jax.config.section import section
from fusion_jax.errors import require
from fusion_jax.fusion.inputs import (
  WAYS,
  LayerConnection,
  StreamAttention,
  weighted_sum,
)
from fusion_jax.fusion.scheme import (
  all_layers,
  always,
  on_both_sides,
  source_of,
)
from fusion_jax.fusion.shortcuts import ShortcutAttention
from fusion_jax.layers.attention import LayerInput
from fusion_jax.layers.context import Context, Layers, States, token_mean
from fusion_jax.layers.dense import Dense, parameter
from fusion_jax.layers.residual import layer_norm
from fusion_jax.layers.sow import sow


@section('model.*.options')
class MuddOptions:
  """Multiway dynamic dense connections (Xiao et al. 2025)."""

  ways: Literal[0, 1, 4] = 4
  """Sums after each layer: one for the residual, the query, the key and the
  value of the layer above, or one for all of them. 0: none; layers read the
  layer below, and memory_ways alone has sums."""

  memory_ways: Annotated[Literal[0, 1, 2], Only('encoder')] = 0
  """Encoder: sums of all layers for each layer of the decoder, in place of the
  output: one for the keys and one for the values of its cross-attention, or one
  for both. 0: none; all read the output."""

  norms: Literal['none', 'pre_post'] = 'none'
  """'pre_post': norms of the layers that are summed and of the sum for the
  residual, as in the paper's deep models."""

  hidden_multiple: SizeOrZero = 0
  """Round the hidden widths K of the generators up to (K // m + 1) m; 0: not.
  The released code has 64."""


# Start of the scale of the norm before the residual, with norms='pre_post'.
_SUM_SCALE = 1e-3
# The hidden layer after the last layer is this much wider.
_LAST = 4


def sum_names(config: ModelConfig, side: Side, layer: int) -> tuple[str, ...]:
  """Return the names of the sums after a layer, in the order of their weights.

  Returns:
    The ways of the layer above. After the last layer they are those of the
    memories of the decoder's layers, or one, the output of the stack.
  """
  options = config.side(side).options
  if layer < config.layers(side):
    return WAYS[options.ways] if options.ways else ()
  if not options.memory_ways:
    return WAYS[1]
  ways = ('memory',) if options.memory_ways == 1 else ('key', 'value')
  readers = range(1, config.decoder_layers + 1)
  return tuple(f'{way}_{reader}' for reader in readers for way in ways)


def hidden_width(config: ModelConfig, side: Side, layer: int) -> int:
  """Return the hidden width of the generator after a layer."""
  width = len(sum_names(config, side, layer)) * (layer + 1)
  options = config.side(side).options
  is_output = layer == config.layers(side) and not options.memory_ways
  width *= _LAST if is_output else 1
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

  With memory_ways of the encoder the sums after layer L are memories of the
  decoder's layers, one for the keys and values of a cross-attention or one for
  each: transparent attention (Bapna et al. 2018) with weights of each source
  position. With ways=0 the layers read the layer below.

  Telemetry: 'weights_l_c' [K], the mean weights of sum c after layer l.
  Views: 'weights_l' [B, T, C, K].
  """

  def setup(self):
    options = self.options
    count = self.config.layers(self.side)
    numbers = [n for n in range(1, count + 1) if self._names(n)]
    self.hidden = {str(n): self._hidden(n) for n in numbers}
    self.out = {str(n): self._out(n) for n in numbers}
    self.static = {str(n): self._static(n) for n in numbers}
    if options.norms == 'pre_post':
      self.norm = {str(n): layer_norm(self.config) for n in range(count + 1)}
      self.sum_norm = {
        str(n): layer_norm(self.config, scale=_SUM_SCALE)
        for n in numbers
        if self._names(n)[0] == LayerInput._fields[0]
      }

  def _names(self, layer: int) -> tuple[str, ...]:
    return sum_names(self.config, self.side, layer)

  def _hidden(self, layer: int) -> Dense:
    width = hidden_width(self.config, self.side, layer)
    start = nn.initializers.variance_scaling(1.0, 'fan_in', 'normal')
    return Dense(self.config, width, ('embed', 'mlp'), False, start)

  def _out(self, layer: int) -> Dense:
    zeros = nn.initializers.zeros_init()
    width = len(self._names(layer)) * (layer + 1)
    return Dense(self.config, width, ('mlp', 'layers'), False, zeros)

  def _static(self, layer: int) -> Float[Array, 'C K']:
    plain = self.options.norms == 'none'
    return parameter(
      self,
      f'static_{layer}',
      lambda key, shape: jnp.zeros(shape).at[:, -1].set(float(plain)),
      (None, 'layers'),
      (len(self._names(layer)), layer + 1),
    )

  def _weights(
    self, x: States, layer: int, context: Context
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
    for name, mean in zip(self._names(layer), means, strict=True):
      sow(self, 'telemetry', f'weights_{layer}_{name}', mean)
    return weights

  def layer_input(
    self, layers: Layers, carried: tuple[Any, ...], context: Context
  ) -> tuple[Float[Array, '*J B T D'] | LayerInput, tuple[Any, ...]]:
    """Return x[l]; `carried` is X[0..l-2] as the sums read them.

    After layer L of an encoder with memory_ways it is the memory of each layer
    of the decoder, [J, B, S, D] or [J, 2, B, S, D].
    """
    layer, x = len(layers) - 1, layers[-1]
    for number in range(len(carried), len(layers)):
      carried = (*carried, self._source(number, layers[number], context))
    if layer == 0 or not self._names(layer):
      return x, carried
    weights = jnp.moveaxis(self._weights(x, layer, context), -1, 0)
    sums = [
      weighted_sum(weights[..., way, None], carried)
      for way in range(weights.shape[-1])
    ]
    if self.options.norms == 'pre_post':
      sums = self._added(sums, x, layer)
    if layer == self.config.layers(self.side) and self.options.memory_ways:
      return self._memories(sums), carried
    return (LayerInput(*sums) if len(sums) > 1 else sums[0]), carried

  def _source(self, number: int, layer: States, context: Context) -> States:
    """Return X[number] as the sums read it."""
    normed = self.options.norms == 'pre_post'
    layer = self.norm[str(number)](layer) if normed else layer
    return context.read_one(number, layer)

  def _added(self, sums: list[States], x: States, layer: int) -> list[States]:
    """Return the sums with X[l], that of the residual after its norm."""
    if str(layer) in self.sum_norm:
      sums = [self.sum_norm[str(layer)](sums[0]), *sums[1:]]
    return [x + total for total in sums]

  def _memories(
    self, sums: list[Float[Array, 'B S D']]
  ) -> Float[Array, 'J *W B S D']:
    """Return the sums by decoder layer, those of keys and values apart."""
    stacked, ways = jnp.stack(sums), self.options.memory_ways
    if ways == 1:
      return stacked
    return stacked.reshape(-1, ways, *stacked.shape[1:])


def _attention(
  config: ModelConfig, side: Side, index: int
) -> StreamAttention | None:
  """Return the self-attention of a layer; layer 1 reads H[0] alone."""
  streams = config.side(side).ways > 1 and index > 1
  return StreamAttention(config) if streams else None


def _check(config: ModelConfig, side: Side) -> None:
  options, path = config.side(side).options, f'model.{side}.options'
  others = ', or give memory_ways' if side == 'encoder' else ''
  require(
    options.ways > 0 or options.memory_ways > 0,
    f'{path}.ways',
    f'0 leaves nothing to sum; use 1 or 4{others}',
  )
  source = source_of(config, 'decoder')
  attention = source.cross_attention(config, config.decoder_layers)
  require(
    options.memory_ways < 2 or not isinstance(attention, ShortcutAttention),
    f'{path}.memory_ways',
    f'{options.memory_ways} and shortcuts into the cross-attention of the '
    'decoder both replace its keys and values; choose one, or 1',
  )


SCHEME = on_both_sides(
  'mudd',
  Mudd,
  'layer connection',
  'Xiao et al. 2025',
  MuddOptions,
  norms=('pre',),
  check=_check,
  owns_layer_inputs=lambda options: options.ways > 0,
  hides_layer_below=lambda options: options.ways > 0,
  layers_read=all_layers,
  starts_as_identity=always,
  self_attention=_attention,
)
