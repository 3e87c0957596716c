"""Combinations of all layers: linear, and with weights of each position.

Dou et al. (EMNLP 2018), Eq. 5; dynamic combination, Dou et al. (AAAI 2019),
Eq. 4.

Axis letters: B batch, T positions, D model width, L layers, I and O any widths.
"""

import functools
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from fusion_jax.bounds import SizeOrZero
from fusion_jax.config import ModelConfig, Side
from fusion_jax.config.section import section
from fusion_jax.fusion.inputs import (
  FusionModule,
  reads_plain_layers,
  weighted_sum,
)
from fusion_jax.fusion.scheme import on_both_sides, starts_as_identity
from fusion_jax.layers.context import Context, Layers, States, token_mean
from fusion_jax.layers.dense import (
  Dense,
  Initializer,
  bias_initializer,
  kernel_initializer,
  parameter,
)
from fusion_jax.layers.dropout import Dropout
from fusion_jax.layers.narrow import Matrix, matrices_of, product
from fusion_jax.layers.sow import sow, wants


@section('model.*.options')
class LinearOptions:
  """Linear combination (Dou 2018, Eq. 5)."""

  factored: bool = True
  """True: concat(H[1..L]) A B, the form that has the paper's size. False:
  sum_l W_l H[l], the form of the paper's text."""

  hidden: SizeOrZero = 0
  """Columns of A; 0: model.filter."""


def affine(
  x: Float[Array, '*batch I'],
  kernel: Matrix,
  bias: Float[Array, ' O'],
  bfloat16: bool = False,
) -> Float[Array, '*batch O']:
  """Return x W + b, one product of all positions, in x's dtype; see `Dense`."""
  y = product(x.reshape(-1, x.shape[-1]), kernel, bfloat16=bfloat16)
  return (y + bias.astype(x.dtype)).reshape(*x.shape[:-1], -1)


def linear_combination(
  layers: Layers,
  kernel: Matrix,
  bias: Float[Array, ' D'],
  bfloat16: bool = False,
) -> States:
  """Return sum_l H[l] W_l + b, in the layers' dtype; Dou (2018), Eq. 5.

  Args:
    kernel: W [L, D, D].
    bfloat16: Whether float32 layers and W are rounded to it.
  """
  if isinstance(kernel, Mapping):
    # Each W_l has scales of its own.
    terms = map(product, layers, matrices_of(kernel))
    return functools.reduce(jnp.add, terms) + bias.astype(layers[0].dtype)
  rows = kernel.reshape(-1, kernel.shape[-1])
  return affine(jnp.concatenate(layers, -1), rows, bias, bfloat16)


def block_norms(
  parameters: Mapping[str, Any], layers: int
) -> Float[Array, ' L']:
  """Return Frobenius norms |W_l|; in the factored form, W_l = A_l B."""
  if 'kernel' in parameters:
    blocks = parameters['kernel']
  else:
    first = jnp.asarray(parameters['hidden']['kernel'])
    rows = first.reshape(layers, -1, first.shape[-1])
    blocks = rows @ parameters['out']['kernel']
  return jnp.linalg.norm(blocks, axis=(1, 2))


class Linear(FusionModule):
  """Linear combination of H[1..L]; Dou et al. (2018), Eq. 5.

  The factored form, concat(H[1..L]) A B + biases without an activation, has the
  size of the paper's Table 1. The plain form, sum_l H[l] W_l + b, is that of
  its text. start='baseline' gives H[L]. Plain: W_L = I and the other W_l = 0.
  Factored: B = [I; 0], and A has [I, 0] in its rows of H[L]; elsewhere the
  columns of A that meet the zeros of B start as usual, or both would stay 0.
  """

  narrows: ClassVar[bool] = True

  def setup(self):
    config, options = self.config, self.options
    identity = starts_as_identity(config, self.side)
    if options.factored:
      columns = options.hidden or config.filter
      starts = (_top_identity(config), _identity) if identity else (None, None)
      zeros = nn.initializers.zeros_init() if identity else None
      self.hidden = Dense(
        config, columns, ('embed', 'mlp'), True, starts[0], zeros
      )
      self.out = Dense(
        config, config.width, ('mlp', 'embed'), True, starts[1], zeros
      )
      return
    width, layers = config.width, config.layers(self.side)
    kernel, bias = _one_matrix(config), bias_initializer(config, layers * width)
    if identity:
      kernel, bias = _last_identity, nn.initializers.zeros_init()
    axes, shape = ('layers', 'embed', 'mlp'), (layers, width, width)
    self.kernel = parameter(self, 'kernel', kernel, axes, shape)
    self.bias = parameter(self, 'bias', bias, ('norm',), (width,))

  def __call__(self, layers: Layers, context: Context) -> States:
    """Return the combination of H[1..L]."""
    if wants(self, 'telemetry'):
      norms = block_norms(nn.unbox(self.variables['params']), len(layers) - 1)
      sow(self, 'telemetry', 'layer_norms', norms)
    if self.options.factored:
      return self.out(self.hidden(jnp.concatenate(layers[1:], -1)))
    bfloat16 = self.config.product_dtype == 'bfloat16'
    return linear_combination(layers[1:], self.kernel, self.bias, bfloat16)


def _one_matrix(config: ModelConfig) -> Initializer:
  """Draw W_1..W_L as one matrix, by which concat(H[1..L]) is multiplied."""
  init = kernel_initializer(config)

  def start(key, shape):
    layers, width, features = shape
    return init(key, (layers * width, features)).reshape(shape)

  return start


def _last_identity(key: Array, shape: tuple[int, ...]) -> Float[Array, 'L D D']:
  del key
  return jnp.zeros(shape).at[-1].set(jnp.eye(shape[-1]))


def _identity(key: Array, shape: tuple[int, int]) -> Float[Array, 'I O']:
  del key
  return jnp.eye(*shape)


def _top_identity(config: ModelConfig) -> Initializer:
  """Draw [I, 0] in the last D rows and [0, fresh] above."""
  width, init = config.width, kernel_initializer(config)

  def start(key, shape):
    lower = init(key, shape)[:-width].at[:, :width].set(0)
    return jnp.concatenate([lower, jnp.eye(width, shape[1])])

  return start


def _starts_as_identity(config: ModelConfig, side: Side) -> bool:
  options = config.side(side).options
  wide = (options.hidden or config.filter) >= config.width
  return reads_plain_layers(config, side) and (wide or not options.factored)


LINEAR = on_both_sides(
  'linear',
  Linear,
  'layer aggregation',
  'Dou et al. 2018, Eq. 5',
  LinearOptions,
  rate=0.1,
  starts_as_identity=_starts_as_identity,
)


@section('model.*.options')
class DynamicOptions:
  """Dynamic combination (Dou 2019, Eq. 4)."""

  hidden: SizeOrZero = 0
  """Hidden width; 0: model.filter."""


class DynamicCombination(FusionModule):
  """Fusion sum_l W[l] * H[l]; Dou et al. (2019), Eq. 4.

  W = FFN(concat(H[1..L])), and FFN(z) = relu(z W1 + b1) W2 + b2 gives the
  weights of all layers at once: W1 is shared, and W2 has a block for every
  layer. The paper speaks of a network for each layer; both forms have the size
  of its Table 1. start='baseline' gives H[L]: W2 = 0, b2 = 1 on the block of
  H[L] and 0 elsewhere.

  Telemetry: 'layer_weights' [L], the mean weight of every layer.
  Views: 'layer_weights' [B, T, L, D].
  """

  def setup(self):
    config, options = self.config, self.options
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

  def __call__(self, layers: Layers, context: Context) -> States:
    """Return the combination of H[1..L]."""
    weights = self.weights(layers[1:], context)
    means = weights.mean(-1, dtype=jnp.float32)
    sow(self, 'telemetry', 'layer_weights', token_mean(means, context.tokens))
    sow(self, 'views', 'layer_weights', weights)
    by_layer = jnp.moveaxis(weights.astype(jnp.float32), 2, 0)
    return weighted_sum(by_layer, layers[1:])


DYNAMIC_COMBINATION = on_both_sides(
  'dynamic_combination',
  DynamicCombination,
  'layer aggregation',
  'Dou et al. 2019, Eq. 4',
  DynamicOptions,
  starts_as_identity=reads_plain_layers,
)
