"""SurfaceFusion: a second prediction, from the embeddings of the source.

Liu et al. (ICLR 2021), "Understanding and Improving Encoder Layer Fusion in
Sequence-to-Sequence Learning", and the code they released.

Axis letters: M rows of a pass, B batch, S source, T positions, D model width,
G = 2 predictions: the decoder's own, and that from the source.
"""

import dataclasses
import math
from typing import Annotated, Literal

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float
from pydantic import Field

from fusion_jax.bounds import PositiveFloat
from fusion_jax.config import ModelConfig, Side
from fusion_jax.config.section import section
from fusion_jax.errors import require
from fusion_jax.fusion.inputs import FusionModule
from fusion_jax.fusion.scheme import Predictions, Scheme, no_layers
from fusion_jax.layers.attention import MultiHeadAttention, key_value
from fusion_jax.layers.context import Context, KeyValue, States, token_mean
from fusion_jax.layers.dense import Dense, FeedForward
from fusion_jax.layers.sow import sow


@section('model.*.options')
class SurfaceOptions:
  """SurfaceFusion (Liu 2021): the source's embeddings predict too."""

  kind: Literal['hard', 'soft', 'learned'] = 'hard'
  """How both predictions become one. 'hard': with weights g and 1 - g of their
  log-probabilities; 'learned': with a g that every position computes; 'soft':
  the scores are added before the softmax."""

  weight: Annotated[float, Field(gt=0, lt=1)] = 0.8
  """Hard: weight g of the decoder's own prediction; learned: g at the
  start."""

  least: Annotated[float, Field(ge=0, lt=0.5)] = 0.1
  """Learned: least weight of either prediction. With 0, as released, the one
  that learns faster takes all weight, and the other never learns."""

  combine: Literal['arithmetic', 'geometric'] = 'geometric'
  """Hard and learned: log(g P + (1 - g) P_s), or g log P + (1 - g) log P_s, as
  released."""

  temperature: PositiveFloat = 1.0
  """Soft: what the scores from the embeddings are divided by."""

  network: bool = False
  """Whether a feed-forward network with a residual sum, which both predictions
  share, stands before the output layer, as in the released command."""


def fixed_log_weights(weight: float) -> Float[Array, ' 2']:
  """Return log psi, psi = (g, 1 - g), float32."""
  return jnp.log(jnp.array([weight, 1 - weight]))


def gated_log_weights(
  gate: Float[Array, 'M T'], least: float
) -> Float[Array, '2 M T']:
  """Return log psi, psi = (g, 1 - g), g = m + (1 - 2 m) sigmoid(z), float32.

  The loss is linear in psi. With m = 0 the prediction that is better at first
  takes all weight, and the other has no gradient any more.
  """
  gate = gate.astype(jnp.float32)
  both = jax.nn.log_sigmoid(jnp.stack([gate, -gate]))
  if not least:
    return both
  return jnp.logaddexp(math.log(least), math.log(1 - 2 * least) + both)


class SurfaceAttention(MultiHeadAttention):
  """Attention with one head over the embeddings of the source.

  Queries and keys are projections of what decoder and encoder compute, without
  a gradient to either; values are projections of the embeddings.
  """

  def memory(
    self,
    features: Float[Array, 'B S D'],
    embedding: Float[Array, 'B S D'],
    tokens: Bool[Array, 'B S'] | None = None,
  ) -> KeyValue:
    """Return keys of the features and values of the embeddings."""
    del tokens
    keys = self.key(jax.lax.stop_gradient(features))
    return key_value(keys, self.value(embedding), self.config.heads)


class SurfacePrediction(FusionModule):
  """What predicts beside the features x of the decoder; Liu et al. (2021).

  r = Attention(Q = x, K = features of the encoder, V = embeddings E) goes
  through the same output layer as x, which gives the predictions P and P_s.

  'hard':     log p = g log P + (1 - g) log P_s, with g = `surface.weight`
  'learned':  the same with g of every position from z = [x; r] w + b, see
              `gated_log_weights`, which starts as 'hard'
  'soft':     p = softmax(scores of x + scores of r / `surface.temperature`)

  combine='arithmetic' has p = g P + (1 - g) P_s instead. The scores of the
  source have no bias of the output layer of their own with 'soft', so that it
  is one prediction, from x + r / temperature.

  With `network` z + relu(z W1 + b1) W2 + b2 takes the place of x and of r
  before the output layer.

  Telemetry: 'group_weights' [2], the mean psi, where it is learned.
  """

  def setup(self):
    config, options = self.config, self.options
    one_head = dataclasses.replace(
      config, heads=1, attention_implementation='plain'
    )
    self.attention = SurfaceAttention(one_head)
    if options.network:
      self.network = FeedForward(config)
    if options.kind == 'learned':
      above = options.weight - options.least
      start = math.log(above / (1 - 2 * options.least - above))
      self.gate = Dense(
        config,
        1,
        ('embed', 'groups'),
        True,
        nn.initializers.zeros_init(),
        nn.initializers.constant(start),
      )

  def memory(
    self, features: Float[Array, 'B S D'], embedding: Float[Array, 'B S D']
  ) -> KeyValue:
    """Return what the attention reads, computed once per sentence."""
    return self.attention.memory(features, embedding)

  def __call__(
    self, x: States, surface: KeyValue, context: Context
  ) -> tuple[
    Float[Array, '*G M T D'], Float[Array, ' 2'] | Float[Array, '2 M T'] | None
  ]:
    """Return the features that predict, and the log weights of both.

    x are the features of the decoder, after any final norm, and `surface` comes
    from `memory`. With 'soft' the features are those of one, without weights.
    """
    assert context.memory_mask is not None, 'a decoder reads a memory'
    options = self.options
    read = self.attention(
      jax.lax.stop_gradient(x),
      surface,
      context.memory_mask,
      context.deterministic,
    )
    both = jnp.stack([x, read])
    if options.network:
      both = both + self.network(both, context.deterministic)
    if options.kind == 'soft':
      return both[0] + both[1] / options.temperature, None
    if options.kind == 'hard':
      return both, fixed_log_weights(options.weight)
    gate = self.gate(jnp.concatenate([x, read], axis=-1))[..., 0]
    log_weights = gated_log_weights(gate, options.least)
    psi = jnp.moveaxis(jnp.exp(log_weights), 0, -1)
    sow(self, 'telemetry', 'group_weights', token_mean(psi, context.tokens))
    return both, log_weights


_UNREAD = {
  'hard': ('temperature', 'least'),
  'soft': ('weight', 'combine', 'least'),
  'learned': ('temperature',),
}


def _predictions(config: ModelConfig) -> Predictions | None:
  soft = config.decoder.options.kind == 'soft'
  return None if soft else Predictions(2, (0, 2), config.decoder_layers)


def _check(config: ModelConfig, side: Side) -> None:
  options, path = config.side(side).options, f'model.{side}.options'
  for field in _UNREAD[options.kind]:
    value = getattr(options, field)
    require(
      value == getattr(SurfaceOptions, field),
      f'{path}.{field}',
      f'{value!r} has no effect with kind={options.kind!r}; leave it out',
    )
  least, most = options.least, 1 - options.least
  require(
    options.kind != 'learned' or least < options.weight < most,
    f'{path}.weight',
    f'{options.weight} is not between least={least} and 1 - {least}',
  )


SCHEME = Scheme(
  'surface_fusion',
  'Liu et al. 2021',
  SurfaceOptions,
  {'decoder': SurfacePrediction},
  {'decoder': 'prediction'},
  layers_read=no_layers,
  reads_embeddings=True,
  check=_check,
  predictions=_predictions,
)
