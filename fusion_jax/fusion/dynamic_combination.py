"""Dynamic combination: every position computes weights for its layers.

Axis letters: B batch, T positions, D model width, L layers, O = L D.
"""

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from fusion_jax.bounds import SizeOrZero
from fusion_jax.config import ModelConfig, Side
from fusion_jax.config.section import section
from fusion_jax.fusion.inputs import Layers, weighted_sum
from fusion_jax.fusion.scheme import on_both_sides, starts_as_identity
from fusion_jax.fusion.starts import reads_plain_layers
from fusion_jax.layers.context import Context, token_mean
from fusion_jax.layers.dense import Dense, Initializer
from fusion_jax.layers.dropout import Dropout
from fusion_jax.layers.sow import sow


@section('model.*.options')
class DynamicOptions:
  """Dynamic combination (Dou 2019, Eq. 4)."""

  hidden: SizeOrZero = 0
  """Hidden width; 0: model.filter."""


class DynamicCombination(nn.Module):
  """Fusion sum_l W[l] * H[l]; Dou et al. (2019), Eq. 4.

  W = FFN(concat(H[1..L])), and FFN(z) = relu(z W1 + b1) W2 + b2 gives the
  weights of all layers at once: W1 is shared, and W2 has a block for every
  layer. The paper speaks of a network for each layer; both forms have the size
  of its Table 1. start='baseline' gives H[L]: W2 = 0, b2 = 1 on the block of
  H[L] and 0 elsewhere.

  Telemetry: 'layer_weights' [L], the mean weight of every layer.
  Views: 'layer_weights' [B, T, L, D].
  """

  config: ModelConfig
  side: Side

  def setup(self):
    config, options = self.config, self.config.side(self.side).options
    self.hidden = Dense(
      config, options.hidden or config.filter, ('embed', 'mlp'), True
    )
    starts: tuple[Initializer | None, ...] = None, None
    if starts_as_identity(config, self.side):
      starts = nn.initializers.zeros_init(), self._last_ones
    features = config.layers(self.side) * config.width
    self.out = Dense(config, features, ('mlp', 'embed'), True, *starts)
    self.dropout = Dropout(config.activation_dropout, config.dropout_generator)

  def _last_ones(self, key: Array, shape: tuple[int]) -> Float[Array, ' O']:
    return jnp.zeros(shape).at[-self.config.width :].set(1)

  def weights(
    self, layers: Layers, context: Context
  ) -> Float[Array, 'B T L D']:
    """Return W, weights of any sign."""
    hidden = jax.nn.relu(self.hidden(jnp.concatenate(layers, -1)))
    weights = self.out(self.dropout(hidden, context.deterministic))
    return weights.reshape(*layers[0].shape[:-1], len(layers), -1)

  def __call__(self, layers: Layers, context: Context) -> Float[Array, 'B T D']:
    """Return the combination of H[1..L]."""
    weights = self.weights(layers[1:], context)
    means = weights.mean(-1, dtype=jnp.float32)
    sow(self, 'telemetry', 'layer_weights', token_mean(means, context.tokens))
    sow(self, 'views', 'layer_weights', weights)
    by_layer = jnp.moveaxis(weights.astype(jnp.float32), 2, 0)
    return weighted_sum(by_layer, layers[1:])


SCHEME = on_both_sides(
  'dynamic_combination',
  DynamicCombination,
  'layer aggregation',
  'Dou et al. 2019, Eq. 4',
  DynamicOptions,
  starts_as_identity=reads_plain_layers,
)
