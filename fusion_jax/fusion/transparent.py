"""Transparent attention; Bapna et al. (EMNLP 2018), Eq. 1-3.

Axis letters: B batch, T positions, D model width, K layers that are summed, J
layers of the decoder.
"""

from typing import Literal

import jax
from flax import linen as nn
from jaxtyping import Array, Float

from fusion_jax.bounds import Share
from fusion_jax.config.section import section
from fusion_jax.fusion.inputs import (
  FusionModule,
  Layers,
  per_layer_norms,
  weighted_sum,
)
from fusion_jax.fusion.scheme import Scheme, all_layers
from fusion_jax.layers.context import Context
from fusion_jax.layers.dense import parameter
from fusion_jax.layers.dropout import Dropout
from fusion_jax.layers.residual import layer_norm
from fusion_jax.layers.sow import sow


@section('model.*.options')
class TransparentOptions:
  """Transparent attention (Bapna et al. 2018)."""

  dropout: Share = 0.1
  """Dropout on the weights before their softmax."""

  dropout_place: Literal['logits', 'weights'] = 'logits'
  """Where dropout is; 'weights': after the softmax, as Liu et al. released."""

  memory_norm: bool = False
  """Whether the memories have a layer norm, the same for all, and dropout
  behind it, as Liu et al. released."""

  feature_wise: bool = False
  """Weights for every feature instead of one weight a layer (Liu et al. 2021,
  "fine-grained")."""


class TransparentAttention(FusionModule):
  """Memory of its own for each layer of the decoder; Bapna et al. (2018).

  memory_j = sum_{i=0..L} softmax_i(dropout(w)_ij) H[i], for j = 1..J, from the
  encoder's H[0..L]. H[0] has a norm of its own where `InputNorms` has no norms
  for the layers, but not with norm='rezero'.

  With dropout_place='weights' dropout is on the softmax, and with `memory_norm`
  a memory is dropout(LN(memory_j)): the released code of Liu et al. (2021).

  With `feature_wise`, w_ij has a number for every feature; Liu et al. (2021).

  Telemetry: 'weights' [L+1, J], the softmax without dropout, with
  `feature_wise` its mean over the features.
  """

  def setup(self):
    config, options = self.config, self.options
    layers = config.layers(self.side) + 1
    shape: tuple[int, ...] = (layers, config.decoder_layers)
    if options.feature_wise:
      shape = (*shape, config.width)
    axes = ('layers', None, 'norm')[: len(shape)]
    zeros = nn.initializers.zeros_init()
    self.weights = parameter(self, 'weights', zeros, axes, shape)
    self.dropout = Dropout(
      options.dropout, config.dropout_generator, rows=False
    )
    has_norm = per_layer_norms(config, self.side) or config.norm == 'rezero'
    self.embedding_norm = None if has_norm else layer_norm(config)
    if options.memory_norm:
      self.memory_norm = layer_norm(config)
      self.memory_dropout = Dropout(config.dropout, config.dropout_generator)

  def __call__(
    self, layers: Layers, context: Context
  ) -> Float[Array, 'J B T D']:
    """Return the memory of every layer of the decoder, lowest layer first."""
    if self.embedding_norm is not None:
      # An ablated H[0] must stay 0, and the norm of 0 is the norm's offset:
      # the mask is therefore applied after the norm.
      embedding = context.read_one(0, self.embedding_norm(layers[0]))
      layers = (embedding, *layers[1:])
    softmax = jax.nn.softmax(self.weights, axis=0)
    means = softmax.reshape(*softmax.shape[:2], -1).mean(-1)
    sow(self, 'telemetry', 'weights', means)
    options, weights = self.options, softmax
    if options.dropout_place == 'logits':
      weights = self.dropout(self.weights, context.deterministic)
      weights = jax.nn.softmax(weights, axis=0)
    else:
      weights = self.dropout(weights, context.deterministic)
    memories = jax.vmap(weighted_sum, (1, None))(weights, layers)
    if not options.memory_norm:
      return memories
    # Dropout takes the rows of a batch first.
    memories = self.memory_norm(memories).swapaxes(0, 1)
    memories = self.memory_dropout(memories, context.deterministic)
    return memories.swapaxes(0, 1)


SCHEME = Scheme(
  'transparent',
  'Bapna et al. 2018, Eq. 1-3',
  TransparentOptions,
  {'encoder': TransparentAttention},
  {'encoder': 'layer aggregation'},
  layers_read=all_layers,
)
