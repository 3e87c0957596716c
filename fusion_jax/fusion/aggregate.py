"""Read-outs of H[0..L]: average, linear, feed-forward, multi-hop attention.

The linear combination is that of Dou et al. (EMNLP 2018), the others those of
Wang et al. (COLING 2018). What they have in common: every position is fused by
itself.

Axis letters: B batch, T positions, D model width, L layers, n fused layers
(H[0] may be one of them), P hops, A scorer width, K weights of one layer (1 or
D), I and O any widths. Q is 1 where all hops share what P would tell apart.
"""

import functools
import types
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from fusion_jax.config import ModelConfig, Side
from fusion_jax.fusion.inputs import Layers
from fusion_jax.fusion.starts import identity_start
from fusion_jax.layers.context import Context, token_mean
from fusion_jax.layers.dropout import Dropout
from fusion_jax.layers.layers import (
  Dense,
  Initializer,
  bias_initializer,
  kernel_initializer,
  layer_norm,
  plain_norm,
)
from fusion_jax.layers.sow import sow

_ACTIVATIONS = types.MappingProxyType({'tanh': jnp.tanh, 'relu': jax.nn.relu})


def average(layers: Layers) -> Float[Array, 'B T D']:
  """1/n sum_l z[l]; Wang et al. (2018), section 3.2, pooling.

  Args:
    layers: z[1..n].

  Returns:
    The mean, taken in float32, in the layers' dtype.
  """
  total = sum(z.astype(jnp.float32) for z in layers)
  return (total / len(layers)).astype(layers[0].dtype)


def affine(
  x: Float[Array, '*batch I'],
  kernel: Float[Array, 'I O'],
  bias: Float[Array, ' O'] | None = None,
) -> Float[Array, '*batch O']:
  """x W + b on a matrix of all positions, in x's dtype; see `Dense`."""
  y = x.reshape(-1, x.shape[-1]) @ kernel.astype(x.dtype)
  if bias is not None:
    y = y + bias.astype(x.dtype)
  return y.reshape(*x.shape[:-1], -1)


def linear_combination(
  layers: Layers,
  kernel: Float[Array, 'L D D'],
  bias: Float[Array, ' D'] | None = None,
) -> Float[Array, 'B T D']:
  """sum_l H[l] W_l + b; Dou et al. (2018), Eq. 5.

  Args:
    layers: H[1..L].
    kernel: W_1..W_L, float32.
    bias: b, float32.

  Returns:
    The combination, in the layers' dtype.
  """
  rows = kernel.reshape(-1, kernel.shape[-1])
  return affine(jnp.concatenate(layers, -1), rows, bias)


def hop_scores(
  z: Float[Array, 'B T D'],
  first: Float[Array, 'Q D A'],
  second: Float[Array, 'A P K'],
  activation: Callable[[Array], Array],
) -> Float[Array, 'B T P K']:
  """e = act(z W1) W2 of one layer; Wang et al. (2018), Eq. 5.

  Args:
    z: the layer.
    first: W1, one for all hops or one each, float32.
    second: W2, float32.
    activation: act.

  Returns:
    float32 scores of the layer in every hop.
  """
  positions = z.reshape(-1, z.shape[-1])
  hidden = jnp.einsum('MD,QDA->MQA', positions, first.astype(z.dtype))
  hidden, second = activation(hidden), second.astype(z.dtype)
  product = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
  if first.shape[0] == 1:
    scores = product('MA,APK->MPK', hidden[:, 0], second)
  else:
    scores = product('MPA,APK->MPK', hidden, second)
  return scores.reshape(*z.shape[:-1], *second.shape[1:])


def hop_sums(
  attention: Float[Array, 'B T n P K'], layers: Layers
) -> Float[Array, 'B T PD']:
  """concat_p(s_p), s_p = sum_l a[l, p] z[l]; Wang et al. (2018), Eq. 7.

  Args:
    attention: a, float32, of sum 1 over the layers.
    layers: z[1..n].

  Returns:
    The sums of all hops, taken in float32, in the layers' dtype.
  """
  sums = sum(
    attention[:, :, index] * z[:, :, None].astype(jnp.float32)
    for index, z in enumerate(layers)
  )
  return sums.astype(layers[0].dtype).reshape(*layers[0].shape[:-1], -1)


class Linear(nn.Module):
  """Linear combination of H[1..L]; Dou et al. (2018), Eq. 5.

  Factored, concat(H[1..L]) A B + biases without an activation: the form that
  has the size of the paper's Table 1. Plain, sum_l H[l] W_l + b: the form of
  its text. start='baseline' gives H[L]: plain W_L = I and the other W_l = 0;
  factored [I, 0] in A's rows of H[L] and B = [I; 0], where the columns of A
  that B's zeros do not read start as usual, or both would stay 0.

  Attributes:
    config: of the model.
    side: whose layers these are.
  """

  config: ModelConfig
  side: Side

  def setup(self):
    config, options = self.config, self.config.side(self.side).linear
    if options.factored:
      features = options.hidden or config.filter
      self.hidden = self._dense(
        features, ('embed', 'mlp'), _top_identity(config)
      )
      self.out = self._dense(config.width, ('mlp', 'embed'), _identity)
    else:
      self.kernel = self._kernel()
      self.bias = self._bias() if options.bias else None
    self.norm = layer_norm(config)

  @property
  def _from_baseline(self) -> bool:
    return identity_start(self.config, self.side)

  def _dense(
    self, features: int, axes: tuple[str, str], start: Initializer
  ) -> Dense:
    config, options = self.config, self.config.side(self.side).linear
    if not self._from_baseline:
      return Dense(config, features, axes, options.bias)
    zeros = nn.initializers.zeros_init()
    return Dense(config, features, axes, options.bias, start, zeros)

  def _kernel(self) -> Float[Array, 'L D D']:
    config = self.config
    shape = (config.layers(self.side), config.width, config.width)
    init = _last_identity if self._from_baseline else _one_matrix(config)
    axes = ('layers', 'embed', 'mlp')
    return self.param('kernel', nn.with_logical_partitioning(init, axes), shape)

  def _bias(self) -> Float[Array, ' D']:
    config = self.config
    init = (
      nn.initializers.zeros_init()
      if self._from_baseline
      else bias_initializer(config, config.layers(self.side) * config.width)
    )
    return self.param(
      'bias', nn.with_logical_partitioning(init, ('norm',)), (config.width,)
    )

  def __call__(self, layers: Layers, context: Context) -> Float[Array, 'B T D']:
    """Fuses the layers.

    Args:
      layers: H[0..L]; H[0] is not used.
      context: of the pass.

    Returns:
      The combination, in the layers' dtype.
    """
    options = self.config.side(self.side).linear
    if options.factored:
      y = self.out(self.hidden(jnp.concatenate(layers[1:], -1)))
    else:
      y = linear_combination(layers[1:], self.kernel, self.bias)
    return self.norm(y) if options.output_norm else y


class Average(nn.Module):
  """norm(1/n sum_l z[l]); Wang et al. (2018), section 3.2, pooling.

  Attributes:
    config: of the model.
    side: whose layers these are.
  """

  config: ModelConfig
  side: Side

  def setup(self):
    self.norm = _fusion_norm(self.config, self.side)

  def __call__(self, layers: Layers, context: Context) -> Float[Array, 'B T D']:
    """Fuses the layers.

    Args:
      layers: H[0..L].
      context: of the pass.

    Returns:
      The normalised mean, in the layers' dtype.
    """
    options = self.config.side(self.side).mlrf
    chosen = layers if options.include_embedding else layers[1:]
    return self.norm(average(chosen))


class LayerEmbedding(nn.Module):
  """E, a vector for every layer of both stacks; Wang et al. (2018), Eq. 4."""

  config: ModelConfig

  @nn.compact
  def __call__(self) -> Float[Array, 'n D']:
    """The table; row l belongs to H[l] of either side."""
    config = self.config
    rows = max(config.encoder_layers, config.decoder_layers) + 1
    exact = any(identity_start(config, s) for s in ('encoder', 'decoder'))
    start = nn.initializers.zeros_init() if exact else _embedding_start
    return self.param(
      'embedding',
      nn.with_logical_partitioning(start, ('layers', 'embed')),
      (rows, config.width),
    )


class FeedForwardFusion(nn.Module):
  """norm(relu(concat(z + E) W1 + b1) W2 + b2); Wang et al. (2018), 3.2.

  start='baseline' gives the norm of H[L] + E[L], for the feed-forward fusion
  alone: [I, -I] in W1's rows of H[L], zeros in the others of these columns, and
  [I; -I] in W2, as x = relu(x) - relu(-x); E starts as 0. W1's other columns
  start as usual behind zeros of W2.

  Attributes:
    config: of the model.
    side: whose layers these are.
    embedding: E, shared by both sides; None: without.
  """

  config: ModelConfig
  side: Side
  embedding: LayerEmbedding | None = None

  def setup(self):
    config, options = self.config, self.config.side(self.side).mlrf
    starts = (None,) * 4
    if identity_start(config, self.side):
      zeros = nn.initializers.zeros_init()
      starts = _two_signs(config), zeros, _difference, zeros
    hidden, out = starts[:2], starts[2:]
    self.hidden = Dense(config, options.hidden, ('embed', 'mlp'), True, *hidden)
    self.out = Dense(config, config.width, ('mlp', 'embed'), True, *out)
    self.dropout = Dropout(config.activation_dropout, config.dropout_generator)
    self.norm = _fusion_norm(config, self.side)

  def fused_layers(self, layers: Layers) -> Layers:
    """z[l] + E[l] of the layers that take part."""
    options = self.config.side(self.side).mlrf
    if options.layer_embedding and self.embedding is not None:
      table = self.embedding().astype(layers[0].dtype)
      layers = tuple(z + table[index] for index, z in enumerate(layers))
    return layers if options.include_embedding else layers[1:]

  def network(
    self, z: Float[Array, 'B T I'], context: Context
  ) -> Float[Array, 'B T D']:
    """norm(relu(z W1 + b1) W2 + b2)."""
    hidden = jax.nn.relu(self.hidden(z))
    hidden = self.dropout(hidden, context.deterministic)
    return self.norm(self.out(hidden))

  def __call__(self, layers: Layers, context: Context) -> Float[Array, 'B T D']:
    """Fuses the layers.

    Args:
      layers: H[0..L].
      context: of the pass.

    Returns:
      The fusion, in the layers' dtype.
    """
    return self.network(jnp.concatenate(self.fused_layers(layers), -1), context)


class Hops(FeedForwardFusion):
  """Attention over the layers in several hops; Wang et al. (2018), Eq. 5-7.

  norm(FFN(concat_p(sum_l a[l, p] z[l]))), a = softmax_l(act(z W1) W2), where z
  has E added. The product of Eq. 7 is the weighted sum that its text speaks
  of. 'per_layer' is the paper's section 4.4; 'per_hop' fits the size of its
  decoder with six hops.

  Telemetry: 'hop_attention' [hops, n], the mean attention.
  Views: 'hop_attention' [B, T, n, hops], its mean over the features where
  each has its own.
  """

  def setup(self):
    super().setup()
    config, options = self.config, self.config.side(self.side).mlrf
    fused = config.layers(self.side) + options.include_embedding
    stack, names = {
      'none': ((), ()),
      'per_layer': ((fused,), ('layers',)),
      'per_hop': ((options.hops,), ('hops',)),
    }[options.independent]
    self.scorer_hidden = _Kernel(
      config,
      (*stack, config.width, options.scorer_width),
      (*names, 'embed', 'mlp'),
    )
    weights = config.width if options.feature_wise else 1
    self.scorer_out = _Kernel(
      config, (options.scorer_width, options.hops * weights), ('mlp', 'hops')
    )

  def attention(self, layers: Layers) -> Float[Array, 'B T n P K']:
    """a, float32: softmax over the layers of their scores; Eq. 5-6."""
    options = self.config.side(self.side).mlrf
    kernel = self.scorer_hidden()
    firsts = (
      kernel[:, None]
      if options.independent == 'per_layer'
      else [kernel.reshape(-1, *kernel.shape[-2:])] * len(layers)
    )
    second = self.scorer_out().reshape(options.scorer_width, options.hops, -1)
    activation = _ACTIVATIONS[options.scorer_activation]
    scores = [
      hop_scores(z, first, second, activation)
      for z, first in zip(layers, firsts, strict=True)
    ]
    return jax.nn.softmax(jnp.stack(scores, 2), axis=2)

  def __call__(self, layers: Layers, context: Context) -> Float[Array, 'B T D']:
    """Fuses the layers.

    Args:
      layers: H[0..L].
      context: of the pass.

    Returns:
      The fusion, in the layers' dtype.
    """
    fused = self.fused_layers(layers)
    attention = self.attention(fused)
    means = attention.mean(-1)
    sow(self, 'telemetry', 'hop_attention', token_mean(means, context.tokens).T)
    sow(self, 'views', 'hop_attention', means)
    return self.network(hop_sums(attention, fused), context)


class _Kernel(nn.Module):
  """A matrix, or a stack of independent ones."""

  config: ModelConfig
  shape: tuple[int, ...]
  axes: tuple[str, ...]

  @nn.compact
  def __call__(self) -> Float[Array, '*stack I O']:
    init = kernel_initializer(self.config)
    if len(self.shape) == 3:
      init = _each(init)
    return self.param(
      'kernel', nn.with_logical_partitioning(init, self.axes), self.shape
    )


def _fusion_norm(config: ModelConfig, side: Side) -> Callable[[Array], Array]:
  """The norm after fusion; 'plain' has neither scale nor offset."""
  kind = config.side(side).mlrf.norm
  if kind == 'affine':
    return layer_norm(config)
  if kind == 'none':
    return lambda x: x
  return plain_norm(config)


def _each(init: Initializer) -> Initializer:
  """Draws every matrix of a stack as if it were alone."""

  def start(key, shape):
    keys = jax.random.split(key, shape[0])
    return jax.vmap(lambda one: init(one, shape[1:]))(keys)

  return start


def _one_matrix(config: ModelConfig) -> Initializer:
  """Draws W_1..W_L as the one matrix that concat(H[1..L]) is multiplied by."""
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
  """[I, 0] in the last D rows, [0, fresh] above."""
  width, init = config.width, kernel_initializer(config)

  def start(key, shape):
    lower = init(key, shape)[:-width].at[:, :width].set(0)
    return jnp.concatenate([lower, jnp.eye(width, shape[1])])

  return start


def _two_signs(config: ModelConfig) -> Initializer:
  """[I, -I, fresh] in the last D rows, [0, 0, fresh] above."""
  width, init = config.width, kernel_initializer(config)

  def start(key, shape):
    kernel = init(key, shape).at[:, : 2 * width].set(0)
    signs = jnp.concatenate([jnp.eye(width), -jnp.eye(width)], axis=1)
    return kernel.at[-width:, : 2 * width].set(signs)

  return start


def _difference(key: Array, shape: tuple[int, int]) -> Float[Array, 'I O']:
  """[I; -I] in the first 2 D rows, 0 below."""
  del key
  width = shape[1]
  rows = jnp.concatenate([jnp.eye(width), -jnp.eye(width)])
  return jnp.zeros(shape).at[: 2 * width].set(rows)


def _embedding_start(key: Array, shape: tuple[int, int]) -> Float[Array, 'n D']:
  return jax.random.uniform(key, shape, minval=-0.1, maxval=0.1)
