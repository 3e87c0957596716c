"""Parameters and projections: one matrix, and the feed-forward sublayer.

Every parameter carries logical axis names; `parallel` maps them to a mesh.

Axis letters: I inputs, O outputs, D model width.
"""

import math
from collections.abc import Callable
from typing import Any, ClassVar

import jax
from flax import linen as nn
from jaxtyping import Array, Float

from fusion_jax.config import ModelConfig
from fusion_jax.layers.dropout import Dropout
from fusion_jax.layers.narrow import product

Initializer = Callable[..., Array]


def parameter(
  module: nn.Module,
  name: str,
  start: Initializer,
  axes: tuple[str | None, ...],
  shape: tuple[int, ...],
) -> Any:
  """Return a parameter of a module, which is drawn at initialisation.

  Args:
    axes: Logical name of each axis, which `parallel` maps to the mesh; None:
      the axis is not sharded.

  Returns:
    The parameter, a float array without Flax's box; a matrix may be narrow.
  """
  # The stubs of Flax do not know that `param` takes the array out of the box.
  boxed: Callable[..., Any] = nn.with_logical_partitioning(start, axes)
  return module.param(name, boxed, shape)


_ACTIVATIONS = {'relu': jax.nn.relu, 'silu': jax.nn.silu}


def kernel_initializer(config: ModelConfig) -> Initializer:
  """Return the initialiser of weight matrices [fan_in, fan_out].

  It depends on `ModelConfig.initialization`.
  """
  if config.initialization == 'fan_in':
    return nn.initializers.variance_scaling(1 / 3, 'fan_in', 'uniform')
  return nn.initializers.glorot_uniform()


def bias_initializer(config: ModelConfig, fan_in: int) -> Initializer:
  """Return the initialiser of the bias of a projection with `fan_in` inputs."""
  if config.initialization == 'fan_in':
    limit = 1 / math.sqrt(fan_in)
    return lambda key, shape: jax.random.uniform(
      key, shape, minval=-limit, maxval=limit
    )
  return nn.initializers.zeros_init()


def stacked_initializer(config: ModelConfig) -> Initializer:
  """Return an initialiser that draws each matrix of a stack as if alone."""
  init = kernel_initializer(config)

  def start(key, shape):
    keys = jax.random.split(key, shape[0])
    return jax.vmap(lambda one: init(one, shape[1:]))(keys)

  return start


class Dense(nn.Module):
  """Projection y = x W + b.

  With `ModelConfig.flatten_positions` x is a matrix [positions, D]: XLA's CPU
  backend computes the gradient of W a quarter slower from [B, T, D]. XLA's TPU
  backend splits [B, T, D] into heads without a copy, but not that matrix.

  Attributes:
    config: Model configuration; it gives initialiser and dtype.
    kernel_start, bias_start: Initialisers; None: those of the model.
  """

  config: ModelConfig
  features: int
  axes: tuple[str, str]
  use_bias: bool
  kernel_start: Initializer | None = None
  bias_start: Initializer | None = None
  # Whether the kernel may be of int8 or bfloat16; see `runs.precision`.
  narrows: ClassVar[bool] = True

  @nn.compact
  def __call__(self, x: Float[Array, '*batch I']) -> Float[Array, '*batch O']:
    start = self.kernel_start or kernel_initializer(self.config)
    shape = x.shape[-1], self.features
    kernel = parameter(self, 'kernel', start, self.axes, shape)
    rows = x.reshape(-1, x.shape[-1]) if self.config.flatten_positions else x
    y = product(rows, kernel, bfloat16=self.config.product_dtype == 'bfloat16')
    if self.use_bias:
      start = self.bias_start or bias_initializer(self.config, x.shape[-1])
      bias = parameter(self, 'bias', start, self.axes[1:], (self.features,))
      y = y + bias.astype(x.dtype)
    return y.reshape(*x.shape[:-1], self.features)


class FeedForward(nn.Module):
  """Feed-forward sublayer of Vaswani et al. (2017), Eq. 2.

  It is relu(x W1 + b1) W2 + b2, or has `ModelConfig.activation` for relu.
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
      _ACTIVATIONS[config.activation](hidden), deterministic
    )
    return Dense(config, config.width, ('mlp', 'embed'), bias, name='out')(
      hidden
    )
