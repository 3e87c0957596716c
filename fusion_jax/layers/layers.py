"""The parts of a layer: projections, norms, positions, feed-forward, residual.

Axis letters: B batch, T positions, D model width, F filter width. Every
parameter carries logical axis names; `parallel` maps them to a mesh.
"""

import math

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int

from fusion_jax.config import ModelConfig
from fusion_jax.layers.dropout import Dropout
from fusion_jax.layers.parameter import Initializer, parameter


def kernel_initializer(config: ModelConfig) -> Initializer:
  """Return the initialiser of weight matrices [fan_in, fan_out].

  It depends on `ModelConfig.initialization`.
  """
  if config.initialization == 'mlrf':
    return nn.initializers.variance_scaling(1 / 3, 'fan_in', 'uniform')
  return nn.initializers.glorot_uniform()


def bias_initializer(config: ModelConfig, fan_in: int) -> Initializer:
  """Return the initialiser of the bias of a projection with `fan_in` inputs."""
  if config.initialization == 'mlrf':
    limit = 1 / math.sqrt(fan_in)
    return lambda key, shape: jax.random.uniform(
      key, shape, minval=-limit, maxval=limit
    )
  return nn.initializers.zeros_init()


class Dense(nn.Module):
  """Projection y = x W + b, computed on a matrix of all positions.

  The weight gradient of [positions, D] x [D, F] is one matrix product; XLA's
  CPU backend is a quarter slower on the batched [B, T, D] form.

  Attributes:
    config: Model configuration; it gives initialiser and dtype.
    features: Size of the last axis of the result.
    axes: Logical names of the kernel's two axes.
    use_bias: Whether there is a bias b.
    kernel_start, bias_start: Initialisers; None: those of the model.
  """

  config: ModelConfig
  features: int
  axes: tuple[str, str]
  use_bias: bool
  kernel_start: Initializer | None = None
  bias_start: Initializer | None = None

  @nn.compact
  def __call__(self, x: Float[Array, '*batch I']) -> Float[Array, '*batch O']:
    start = self.kernel_start or kernel_initializer(self.config)
    shape = x.shape[-1], self.features
    kernel = parameter(self, 'kernel', start, self.axes, shape)
    y = x.reshape(-1, x.shape[-1]) @ kernel.astype(x.dtype)
    if self.use_bias:
      start = self.bias_start or bias_initializer(self.config, x.shape[-1])
      bias = parameter(self, 'bias', start, self.axes[1:], (self.features,))
      y = y + bias.astype(x.dtype)
    return y.reshape(*x.shape[:-1], self.features)


def layer_norm(config: ModelConfig) -> nn.LayerNorm:
  """Return layer normalisation with scale and offset, statistics in float32."""
  return nn.LayerNorm(
    epsilon=config.norm_epsilon,
    dtype=jnp.dtype(config.compute_dtype),
    use_fast_variance=False,
    scale_init=nn.with_logical_partitioning(
      nn.initializers.ones_init(), ('norm',)
    ),
    bias_init=nn.with_logical_partitioning(
      nn.initializers.zeros_init(), ('norm',)
    ),
  )


def plain_norm(config: ModelConfig) -> nn.LayerNorm:
  """Return layer normalisation without scale and offset."""
  return nn.LayerNorm(
    epsilon=config.norm_epsilon,
    dtype=jnp.dtype(config.compute_dtype),
    use_fast_variance=False,
    use_scale=False,
    use_bias=False,
  )


def sinusoids(
  positions: Int[Array, '*T'], width: int
) -> Float[Array, '*T {width}']:
  """Return the position encodings of Vaswani et al. (2017), section 3.5.

  PE(p, 2i) = sin(p / 10000^(2i / D)), PE(p, 2i + 1) = cos(the same), so that
  sines and cosines are interleaved.

  Args:
    positions: Positions, int32, counted from 0.
    width: Width D, even.

  Returns:
    The encodings, float32.
  """
  exponent = jnp.arange(0, width, 2, dtype=jnp.float32) / width
  angle = positions[..., None] * jnp.float32(10_000) ** -exponent
  pairs = jnp.stack([jnp.sin(angle), jnp.cos(angle)], axis=-1)
  return pairs.reshape(*positions.shape, width)


class FeedForward(nn.Module):
  """Feed-forward sublayer of Vaswani et al. (2017), Eq. 2.

  It is relu(x W1 + b1) W2 + b2.
  """

  config: ModelConfig

  @nn.compact
  def __call__(
    self, x: Float[Array, '*batch D'], deterministic: bool
  ) -> Float[Array, '*batch D']:
    config = self.config
    bias = config.feedforward_bias
    hidden = Dense(
      config, config.filter, ('embed', 'mlp'), bias, name='hidden'
    )(x)
    hidden = Dropout(config.activation_dropout, config.dropout_generator)(
      jax.nn.relu(hidden), deterministic
    )
    return Dense(config, config.width, ('mlp', 'embed'), bias, name='out')(
      hidden
    )


class Residual(nn.Module):
  """Norm, dropout and residual sum around a sublayer f.

  norm='post': LN(x + dropout(f(x))). norm='pre': x + dropout(f(LN(x))).
  norm='rezero': x + a dropout(f(x)); Bachlechner et al. (2020), Eq. 1.
  """

  config: ModelConfig

  def setup(self):
    if self.config.norm != 'rezero':
      self.norm = layer_norm(self.config)
    self.dropout = Dropout(self.config.dropout, self.config.dropout_generator)

  def before(self, x: Float[Array, '*batch D']) -> Float[Array, '*batch D']:
    """Return the input of f."""
    return self.norm(x) if self.config.norm == 'pre' else x

  def after(
    self,
    x: Float[Array, '*batch D'],
    y: Float[Array, '*batch D'],
    deterministic: bool,
    scale: Float[Array, ''] | None = None,
  ) -> Float[Array, '*batch D']:
    """Return the output, from the input x and y = f(before(x)).

    Args:
      x: Input of the sublayer.
      y: Output of f.
      deterministic: Whether dropout is off.
      scale: Scale a of norm='rezero', float32.

    Returns:
      The sum; with norm='post' it is normalised.
    """
    y = self.dropout(y, deterministic)
    if scale is not None:
      y = scale.astype(y.dtype) * y
    x = x + y
    return self.norm(x) if self.config.norm == 'post' else x
