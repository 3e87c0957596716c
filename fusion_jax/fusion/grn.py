"""Generalised residual networks (GRN) and DeepCrossAttention.

Heddes et al. (2025), section 3.

Axis letters: B batch, T positions, D model width, C ways, K outputs that are
summed.
"""

from typing import Any, Literal

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from fusion_jax.bounds import SizeOrZero
from fusion_jax.config import ModelConfig, Side
from fusion_jax.config.section import section
from fusion_jax.errors import require
from fusion_jax.fusion.inputs import WAYS, LayerConnection, StreamAttention
from fusion_jax.fusion.scheme import all_layers, always, on_both_sides
from fusion_jax.layers.attention import LayerInput, residual_of
from fusion_jax.layers.context import Context, Layers, States, token_mean
from fusion_jax.layers.dense import parameter
from fusion_jax.layers.sow import sow


@section('model.*.options')
class GrnOptions:
  """Generalised residual networks and DeepCrossAttention (Heddes et al. 2025).

  ways=3 with kind='dynamic' is DeepCrossAttention.
  """

  kind: Literal['scalar', 'vector', 'dynamic'] = 'dynamic'
  """Weights of the outputs below; 'scalar': a number each (v1); 'vector': one
  for every feature (v2); 'dynamic': these and a number that the output itself
  gives at every position (v3)."""

  ways: Literal[1, 3, 4] = 1
  """Sums that a layer reads: one; or one each for the query, which is its
  residual too, the key and the value; or these and one for the residual."""

  last: SizeOrZero = 0
  """Read H[0], the last outputs, as many as this, and the sum of those
  between; 0: all outputs (k-DCA is ways=3 with last=k)."""


def position_weights(
  directions: Float[Array, 'C D'], outputs: Layers
) -> Float[Array, 'B T C K']:
  """Return relu(<w_c, y_k>), float32; Heddes et al. (2025), GRN-v3.

  The slope at 0, where a relu has none, is 1 here: with 0, directions that
  start as 0 would stay there.
  """
  products = [
    jnp.einsum(
      'BTD,CD->BTC',
      y,
      directions.astype(y.dtype),
      preferred_element_type=jnp.float32,
    )
    for y in outputs
  ]
  weights = jnp.stack(products, axis=-1)
  return jnp.where(weights >= 0, weights, 0)


def weighted_outputs(
  static: Float[Array, 'K *D'],
  dynamic: Float[Array, 'B T K'] | None,
  outputs: Layers,
) -> States:
  """Return sum_k (b_k + d_k) y_k, computed in float32, in the outputs' dtype.

  Args:
    static: Weights b_k, numbers or vectors, float32.
    dynamic: Weights d_k of every position, float32; None: 0.
  """
  total = jnp.zeros(outputs[0].shape, jnp.float32)
  for k, y in enumerate(outputs):
    weight = static[k] if dynamic is None else static[k] + dynamic[..., k, None]
    total += weight * y
  return total.astype(outputs[0].dtype)


def recent(outputs: Layers, last: int) -> Layers:
  """Return y_0, the sum of the outputs between, and the `last` ones.

  Of at most last + 2 others than y_0 the first may be a sum; with last=0 all
  stay apart.
  """
  if not last or len(outputs) <= last + 2:
    return outputs
  first, middle, new, *others = outputs
  return first, middle + new, *others


def apart(
  weights: Float[Array, '*rest K'], outputs: int
) -> Float[Array, '*rest {outputs}']:
  """Return the weight of every output, of those between all the same."""
  between = outputs - weights.shape[-1] + 1
  if between == 1:
    return weights
  first, middle, last = jnp.split(weights, (1, 2), axis=-1)
  repeated = jnp.repeat(middle, between, axis=-1)
  return jnp.concatenate([first, repeated, last], axis=-1)


class Grn(LayerConnection):
  """Weighted sums of the outputs of all layers below; Heddes et al. (2025).

    g_c[l] = sum_{k<l} (b_c[l, k] + relu(<w_c[l], y[k]>)) y[k]  for each way c
    y[0] = H[0],  y[l] = H[l] - x[l]

  x[l] is the residual of layer l, so that y[l] is what the layer adds to it,
  and g[L+1] is the output of the stack. b is a number ('scalar', v1) or a
  vector ('vector', v2); w is only in 'dynamic' (v3). All b start as 1 and all w
  as 0: the plain residual sum.

  With three ways, the query's sum is the residual too. In layer 1, which has
  one output to read, the norm of what only attends does not see a factor on it:
  w and, in 'scalar', b change nothing there.

  Telemetry: 'weights_l_c' [K], the mean weights of way c after layer l.
  Views: with kind='dynamic', 'weights_l' [B, T, C, K]; b as the mean of its
  features.
  """

  def setup(self):
    numbers = range(self.config.layers(self.side) + 1)
    self.static = {str(n): self._static(n) for n in numbers}
    if self.options.kind == 'dynamic':
      self.directions = {str(n): self._directions(n) for n in numbers}

  def _ways(self, layer: int) -> int:
    """Return the sums after a layer: after the last, the output alone."""
    above = layer < self.config.layers(self.side)
    return self.options.ways if above else 1

  def _static(self, layer: int) -> Float[Array, 'C K *D']:
    most = self.options.last + 2 if self.options.last else layer + 1
    shape = self._ways(layer), min(layer + 1, most), self.config.width
    axes = None, 'layers', 'norm'
    ranks = 2 if self.options.kind == 'scalar' else 3
    ones = nn.initializers.ones_init()
    return parameter(self, f'static_{layer}', ones, axes[:ranks], shape[:ranks])

  def _directions(self, layer: int) -> Float[Array, 'C D']:
    zeros = nn.initializers.zeros_init()
    shape = self._ways(layer), self.config.width
    return parameter(self, f'direction_{layer}', zeros, (None, 'norm'), shape)

  def _sums(
    self, layer: int, outputs: Layers, context: Context
  ) -> list[States]:
    """Return g_c[l+1] of every way."""
    static, dynamic = self.static[str(layer)], None
    means = static.reshape(*static.shape[:2], -1).mean(-1)
    if self.options.kind == 'dynamic':
      dynamic = position_weights(self.directions[str(layer)], outputs)
      weights = means + dynamic
      sow(self, 'views', f'weights_{layer}', weights)
      means = token_mean(weights, context.tokens)
    for way, mean in zip(WAYS[len(means)], means, strict=True):
      sow(self, 'telemetry', f'weights_{layer}_{way}', mean)
    return [
      weighted_outputs(
        static[way], None if dynamic is None else dynamic[..., way, :], outputs
      )
      for way in range(len(static))
    ]

  def layer_input(
    self, layers: Layers, carried: tuple[Any, ...], context: Context
  ) -> tuple[States | LayerInput, tuple[Any, ...]]:
    """Return g[l]; `carried` is x[l-1] and y[0..l-2] as the sums read them."""
    layer, y = len(layers) - 1, layers[-1]
    residual, *outputs = carried or (None,)
    if residual is not None:
      y = y - residual
    read = (*outputs, context.read_one(layer, y))
    read = recent(read, self.options.last)
    # What layer 1 reads is no sum, so that it is never ablated.
    x = _layer_input(self._sums(layer, read if layer else (y,), context))
    return x, (residual_of(x), *read)


def _layer_input(sums: list[States]) -> States | LayerInput:
  """Return the input of a layer; of three sums, the query's is its residual."""
  if len(sums) == 1:
    return sums[0]
  return LayerInput(sums[0], *sums[-3:])


def _attention(
  config: ModelConfig, side: Side, index: int
) -> StreamAttention | None:
  return StreamAttention(config) if config.side(side).ways > 1 else None


def _check(config: ModelConfig, side: Side) -> None:
  last, layers = config.side(side).options.last, config.layers(side)
  most = max(layers - 2, 0)
  require(
    last <= most,
    f'model.{side}.options.last',
    f'{last} leaves nothing to sum in {layers} layers; at most {most}, where 0 '
    'reads all outputs',
  )


SCHEME = on_both_sides(
  'grn',
  Grn,
  'layer connection',
  'Heddes et al. 2025, section 3',
  GrnOptions,
  norms=('pre',),
  check=_check,
  owns_layer_inputs=always,
  hides_layer_below=always,
  layers_read=all_layers,
  starts_as_identity=always,
  self_attention=_attention,
)
