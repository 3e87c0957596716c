"""Attention over the layers in several hops; Wang et al. (2018), Eq. 5-7.

Axis letters: B batch, T positions, D model width, n fused layers (H[0] may be
one of them), P hops, A scorer width.
"""

import functools
from collections.abc import Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from fusion_jax.bounds import Depth, Size
from fusion_jax.config import ModelConfig
from fusion_jax.config.section import section
from fusion_jax.fusion.average import mlrf_layers
from fusion_jax.fusion.feed_forward import (
  FeedForwardFusion,
  FeedForwardOptions,
  reads_layer_embedding,
)
from fusion_jax.fusion.scheme import on_both_sides
from fusion_jax.layers.context import Context, Layers, States, token_mean
from fusion_jax.layers.dense import (
  kernel_initializer,
  parameter,
  stacked_initializer,
)
from fusion_jax.layers.narrow import Matrix, matrices_of, product
from fusion_jax.layers.sow import sow


@section('model.*.options')
class HopsOptions(FeedForwardOptions):
  """Multi-hop fusion (Wang 2018, Eq. 5-7)."""

  hops: Depth = 4
  """Number of hops."""

  scorer_width: Size = 1_024
  """Hidden width of the scorer."""

  independent: Literal['none', 'per_layer', 'per_hop'] = 'none'
  """Whether every layer, or every hop, has a W1 of its own."""


def hop_scores(
  z: States,
  firsts: Sequence[Matrix],
  second: Float[Array, 'A P'],
  bfloat16: bool = False,
) -> Float[Array, 'B T P']:
  """Return e = tanh(z W1) W2 of one layer, float32; Wang (2018), Eq. 5.

  Args:
    firsts: W1 [D, A], one for all hops or one for each.
    second: W2.
    bfloat16: Whether z and W1 are rounded to it for their product.
  """
  positions = z.reshape(-1, z.shape[-1])
  second = second.astype(z.dtype)
  # The columns of W2 that belong to each W1.
  columns = jnp.split(second, len(firsts), 1)
  scores = [
    jnp.matmul(
      jnp.tanh(product(positions, first, bfloat16=bfloat16)),
      column,
      preferred_element_type=jnp.float32,
    )
    for first, column in zip(firsts, columns, strict=True)
  ]
  return jnp.concatenate(scores, -1).reshape(*z.shape[:-1], -1)


def hop_sums(
  attention: Float[Array, 'B T n P'], layers: Layers
) -> Float[Array, 'B T PD']:
  """Return concat_p(sum_l a[l, p] z[l]); Wang et al. (2018), Eq. 7.

  It is summed in float32 and returned in the layers' dtype.
  """
  terms = (
    attention[:, :, index, :, None] * z[:, :, None].astype(jnp.float32)
    for index, z in enumerate(layers)
  )
  sums = functools.reduce(jnp.add, terms)
  return sums.astype(layers[0].dtype).reshape(*layers[0].shape[:-1], -1)


class Hops(FeedForwardFusion):
  """Attention over the layers in several hops; Wang et al. (2018), Eq. 5-7.

  norm(FFN(concat_p(sum_l a[l, p] z[l]))), a = softmax_l(tanh(z W1) W2), where z
  includes E. The paper does not name the activation. The product of Eq. 7 is
  the weighted sum that its text describes. independent='per_layer' is its
  section 4.4; 'per_hop' has the size of its decoder with six hops.

  Telemetry: 'hop_attention' [hops, n], the mean attention.
  Views: 'hop_attention' [B, T, n, hops], the attention.
  """

  def setup(self):
    super().setup()
    config, options = self.config, self.options
    fused = config.layers(self.side) + options.include_embedding
    stack, names = {
      'none': ((), ()),
      'per_layer': ((fused,), ('layers',)),
      'per_hop': ((options.hops,), ('hops',)),
    }[options.independent]
    shape, axes = (config.width, options.scorer_width), ('embed', 'mlp')
    self.scorer_hidden = _Kernel(
      config, (*stack, *shape), (*names, *axes), narrows=True
    )
    shape = options.scorer_width, options.hops
    self.scorer_out = _Kernel(config, shape, ('mlp', 'hops'))

  def attention(self, layers: Layers) -> Float[Array, 'B T n P']:
    """Return a, the float32 softmax of the scores over the layers; Eq. 5-6."""
    kernel, second = self.scorer_hidden(), self.scorer_out()
    options, of_layers = self.options, [[kernel]] * len(layers)
    if options.independent == 'per_layer':
      of_layers = [[matrix] for matrix in matrices_of(kernel)]
    elif options.independent == 'per_hop':
      of_layers = [matrices_of(kernel)] * len(layers)
    bfloat16 = self.config.product_dtype == 'bfloat16'
    scores = [
      hop_scores(z, firsts, second, bfloat16)
      for z, firsts in zip(layers, of_layers, strict=True)
    ]
    return jax.nn.softmax(jnp.stack(scores, 2), axis=2)

  def __call__(self, layers: Layers, context: Context) -> States:
    """Return the fusion of the layers."""
    fused = self.fused_layers(layers)
    attention = self.attention(fused)
    means = token_mean(attention, context.tokens).T
    sow(self, 'telemetry', 'hop_attention', means)
    sow(self, 'views', 'hop_attention', attention)
    return self.network(hop_sums(attention, fused), context)


class _Kernel(nn.Module):
  """Matrix, or a stack of independent matrices."""

  config: ModelConfig
  shape: tuple[int, ...]
  axes: tuple[str, ...]
  narrows: bool = False

  @nn.compact
  def __call__(self) -> Any:
    stacked = len(self.shape) == 3
    start = stacked_initializer if stacked else kernel_initializer
    return parameter(self, 'kernel', start(self.config), self.axes, self.shape)


SCHEME = on_both_sides(
  'hops',
  Hops,
  'layer aggregation',
  'Wang et al. 2018, Eq. 5-7',
  HopsOptions,
  rate=0.3,
  layers_read=mlrf_layers,
  reads_layer_embedding=reads_layer_embedding,
)
