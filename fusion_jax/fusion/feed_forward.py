"""Feed-forward network over all layers; Wang et al. (COLING 2018), Eq. 4.

Axis letters: B batch, T positions, D model width, n fused layers (H[0] may be
one of them), I and O any widths.
"""

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from fusion_jax.bounds import Size
from fusion_jax.config import ModelConfig, Side
from fusion_jax.config.fusion import SIDES
from fusion_jax.config.section import section
from fusion_jax.fusion.average import AverageOptions, mlrf_layers, mlrf_norm
from fusion_jax.fusion.inputs import FusionModule, reads_plain_layers
from fusion_jax.fusion.scheme import on_both_sides, starts_as_identity
from fusion_jax.layers.context import Context, Layers, States
from fusion_jax.layers.dense import (
  Dense,
  Initializer,
  kernel_initializer,
  parameter,
)
from fusion_jax.layers.dropout import Dropout


@section('model.*.options')
class FeedForwardOptions(AverageOptions):
  """Feed-forward fusion (Wang 2018, Eq. 4)."""

  layer_embedding: bool = True
  """Add a learned vector to every layer, shared by both sides (Eq. 4)."""

  hidden: Size = 512
  """Hidden width of the feed-forward network."""


class LayerEmbedding(nn.Module):
  """Table E of a vector for each layer number; Wang et al. (2018), Eq. 4."""

  config: ModelConfig

  @nn.compact
  def __call__(self) -> Float[Array, 'n D']:
    """Return the table; row l belongs to H[l] of either side."""
    config = self.config
    rows = max(config.encoder_layers, config.decoder_layers) + 1
    exact = any(
      config.side(side).fusion == 'feed_forward'
      and starts_as_identity(config, side)
      for side in SIDES
    )
    start = nn.initializers.zeros_init() if exact else _embedding_start
    return parameter(
      self, 'embedding', start, ('layers', 'embed'), (rows, config.width)
    )


class FeedForwardFusion(FusionModule):
  """Fusion by a feed-forward network; Wang et al. (2018), section 3.2.

  norm(relu(concat(z + E) W1 + b1) W2 + b2). With start='baseline' it gives the
  norm of H[L] + E[L], because x = relu(x) - relu(-x): W1 has [I, -I] in the
  rows of H[L] and zeros in the other rows of these columns, W2 has [I; -I], and
  E starts as 0. The other columns of W1 start as usual.
  """

  embedding: LayerEmbedding | None = None

  def setup(self):
    config, options = self.config, self.options
    first: tuple[Initializer | None, ...] = None, None
    second: tuple[Initializer | None, ...] = None, None
    if starts_as_identity(config, self.side):
      zeros = nn.initializers.zeros_init()
      first, second = (_two_signs(config), zeros), (_difference, zeros)
    self.hidden = Dense(config, options.hidden, ('embed', 'mlp'), True, *first)
    self.out = Dense(config, config.width, ('mlp', 'embed'), True, *second)
    self.dropout = Dropout(config.activation_dropout, config.dropout_generator)
    self.norm = mlrf_norm(config, self.side)

  def fused_layers(self, layers: Layers) -> Layers:
    """Return z[l] + E[l] of the layers that are fused."""
    options = self.options
    if options.layer_embedding and self.embedding is not None:
      table = self.embedding().astype(layers[0].dtype)
      layers = tuple(z + table[index] for index, z in enumerate(layers))
    return layers if options.include_embedding else layers[1:]

  def network(self, z: Float[Array, 'B T I'], context: Context) -> States:
    """Return norm(relu(z W1 + b1) W2 + b2)."""
    hidden = jax.nn.relu(self.hidden(z))
    hidden = self.dropout(hidden, context.deterministic)
    return self.norm(self.out(hidden))

  def __call__(self, layers: Layers, context: Context) -> States:
    """Return the fusion of the layers."""
    return self.network(jnp.concatenate(self.fused_layers(layers), -1), context)


def _two_signs(config: ModelConfig) -> Initializer:
  """Draw [I, -I, fresh] in the last D rows and [0, 0, fresh] above."""
  width, init = config.width, kernel_initializer(config)

  def start(key, shape):
    kernel = init(key, shape).at[:, : 2 * width].set(0)
    signs = jnp.concatenate([jnp.eye(width), -jnp.eye(width)], axis=1)
    return kernel.at[-width:, : 2 * width].set(signs)

  return start


def _difference(key: Array, shape: tuple[int, int]) -> Float[Array, 'I O']:
  """Return [I; -I] in the first 2 D rows and 0 below."""
  del key
  width = shape[1]
  rows = jnp.concatenate([jnp.eye(width), -jnp.eye(width)])
  return jnp.zeros(shape).at[: 2 * width].set(rows)


def _embedding_start(key: Array, shape: tuple[int, int]) -> Float[Array, 'n D']:
  return jax.random.uniform(key, shape, minval=-0.1, maxval=0.1)


def reads_layer_embedding(config: ModelConfig, side: Side) -> bool:
  """Return whether the fusion of a side adds the layer embedding E."""
  return config.side(side).options.layer_embedding


def _starts_as_identity(config: ModelConfig, side: Side) -> bool:
  options = config.side(side).options
  return (
    reads_plain_layers(config, side)
    and options.hidden >= 2 * config.width
    and (config.norm == 'pre' or options.norm == 'none')
  )


SCHEME = on_both_sides(
  'feed_forward',
  FeedForwardFusion,
  'layer aggregation',
  'Wang et al. 2018, Eq. 4',
  FeedForwardOptions,
  rate=0.3,
  layers_read=mlrf_layers,
  reads_layer_embedding=reads_layer_embedding,
  starts_as_identity=_starts_as_identity,
)
