"""Hyper-connections: a residual of several streams.

Zhu et al. (2024); with one mix for all, and manifold-constrained: Xie et al.
(2025).

Axis letters: B batch, T positions, D model width, N streams, O numbers that a
generator gives.
"""

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from fusion_jax.config import ModelConfig, Side, SideConfig
from fusion_jax.config.fusion import HyperOptions
from fusion_jax.fusion.scheme import (
  PRE_NORM,
  PaperSize,
  ResidualPlug,
  no_layers,
  on_both_sides,
)
from fusion_jax.layers.context import Context, token_mean
from fusion_jax.layers.dense import Dense
from fusion_jax.layers.parameter import parameter
from fusion_jax.layers.residual import (
  Residual,
  ResidualState,
  Streams,
  plain_norm,
)
from fusion_jax.layers.sow import sow

# Start of the factors of what a generator gives.
_SCALE = 0.01
# Deviation of the generators of gates; Xie et al. do not print theirs.
_DEVIATION = 0.02
# Logits of the gates of a sublayer at the start: of the stream that it reads,
# with the other sign of the others, and of a stream's weight on itself.
_READ, _KEEP = 2.0, 4.0
# Added to the gates where the streams are not mixed.
_FLOOR = 1e-6


def sinkhorn(
  logits: Float[Array, '*P N N'], rounds: int
) -> Float[Array, '*P N N']:
  """Return a doubly stochastic matrix; Sinkhorn and Knopp (1967).

  Rows and columns of exp(logits) are divided by their sums in turn.

  Args:
    logits: Logarithms of positive matrices.
    rounds: Number of times.

  Returns:
    Matrices whose columns sum to 1, and their rows nearly so.
  """

  def one(_, logits):
    logits = jax.nn.log_softmax(logits, -1)
    return jax.nn.log_softmax(logits, -2)

  return jnp.exp(jax.lax.fori_loop(0, rounds, one, logits))


def read_streams(
  streams: Float[Array, 'B T N D'], weights: Float[Array, '*#B N']
) -> Float[Array, 'B T D']:
  """Return sum_i p_i X_i, in the dtype of the streams.

  Args:
    streams: Streams X.
    weights: Weights p, float32.
  """
  read = (weights[..., None] * streams).sum(-2)
  return read.astype(streams.dtype)


def write_streams(
  streams: Float[Array, 'B T N D'],
  y: Float[Array, 'B T D'],
  mix: Float[Array, '*#B N N'] | None,
  weights: Float[Array, '*#B N'],
) -> Float[Array, 'B T N D']:
  """Return X'_j = sum_i R_ij X_i + o_j y, in the dtype of the streams.

  Args:
    streams: Streams X.
    y: Output of a sublayer.
    mix: Matrix R, float32; None: the identity.
    weights: Weights o, float32.
  """
  written = weights[..., None] * y[..., None, :]
  if mix is None:
    return (streams + written).astype(streams.dtype)
  count = streams.shape[-2]
  # N is small: products of N by N matrices would fill no unit of any chip.
  mixed = sum(
    mix[..., i, :, None] * streams[..., i, None, :] for i in range(count)
  )
  return (mixed + written).astype(streams.dtype)


class HyperResidual(Residual):
  """Residual of a sublayer f over N streams X; Zhu et al. (2024), Eq. 1-2.

    h = sum_i p_i X_i,  y = dropout(f(LN(h))),  X'_j = sum_i R_ij X_i + o_j y

  kind='static': p, o and R are parameters. At the start p is 1 for one stream,
  another one in each sublayer, o is 1 and R the identity.
  kind='dynamic': with n_i = LN(X_i), s_a = s_b = 0.01 and w = 0 at first,
    p_i + s_a tanh(n_i w_p),  o_j + s_b tanh(n_j w_o),  R_ij + s_a tanh(n_i w_j)
  kind='manifold': with z = rms(X_1..X_N) phi, all of which are sums of a static
  part and 0.01 z at first (Xie et al. 2025),
    p = sigmoid(z_p),  o = 2 sigmoid(z_o),  R = sinkhorn(z_R)
  kind='identity_mix': the same with R = 1.

  Telemetry: 'read' [N], 'write' [N] and 'mix' [N, N], means over the tokens.
  Views: the same with [B, T, ...], but for kind='static'.

  Attributes:
    config: Model configuration.
    side: Side of the stack.
    number: Number of the sublayer in its stack, from 0.
  """

  side: Side
  number: int

  def setup(self):
    super().setup()
    self.options = options = self.config.side(self.side).hyper
    count, kind = options.streams, options.kind
    self.norm_of_stream = plain_norm(self.config)
    own = jax.nn.one_hot(self.number % count, count)
    gated = kind in ('identity_mix', 'manifold')
    self.read = self._static('read', _READ * (2 * own - 1) if gated else own)
    self.write = self._static('write', jnp.full(count, float(not gated)))
    if kind != 'identity_mix':
      keep = jnp.eye(count) * (_KEEP if gated else 1)
      self.mix = self._static('mix', keep)
    if kind != 'static':
      self.generator = self._generator(gated)
      self.read_scale = self._static('read_scale', jnp.float32(_SCALE))
      self.write_scale = self._static('write_scale', jnp.float32(_SCALE))
    if kind == 'manifold':
      self.mix_scale = self._static('mix_scale', jnp.float32(_SCALE))

  def _static(self, name: str, start: Array) -> Float[Array, '...']:
    axes = (None,) * start.ndim
    return parameter(self, name, lambda key, shape: start, axes, start.shape)

  def _generator(self, gated: bool) -> Dense:
    count = self.options.streams
    mix = count**2 if self.options.kind == 'manifold' else 0
    start = nn.initializers.zeros_init()
    if gated and self.config.side(self.side).start == 'fresh':
      start = nn.initializers.normal(_DEVIATION)
    features = 2 * count + mix if gated else count + 2
    return Dense(self.config, features, ('embed', 'layers'), False, start)

  def before(
    self, x: Float[Array, 'B T N D'], context: Context
  ) -> Float[Array, 'B T D']:
    """Return the input of f."""
    weights = self._told('read', self._read_weights(x), context)
    return self.norm(read_streams(x, weights))

  def after(
    self,
    x: Float[Array, 'B T N D'],
    y: Float[Array, 'B T D'],
    context: Context,
    scale: Float[Array, ''] | None = None,
  ) -> Float[Array, 'B T N D']:
    """Return the streams after the sublayer; see `Residual.after`."""
    del scale
    y = self.dropout(y, context.deterministic)
    mix, weights = self._mix(x), self._write_weights(x)
    if mix is not None:
      mix = self._told('mix', mix, context)
    return write_streams(x, y, mix, self._told('write', weights, context))

  def _generated(self, x: Float[Array, 'B T N D']) -> Float[Array, 'B T *_ O']:
    """Return what the generator gives: of each stream, or of all at once."""
    if self.options.kind == 'dynamic':
      return self.generator(self.norm_of_stream(x)).astype(jnp.float32)
    wide = x.reshape(*x.shape[:-2], -1).astype(jnp.float32)
    square = jnp.square(wide).mean(-1, keepdims=True)
    unit = wide * jax.lax.rsqrt(square + self.config.norm_epsilon)
    return self.generator(unit.astype(x.dtype)).astype(jnp.float32)

  def _read_weights(self, x: Float[Array, 'B T N D']) -> Float[Array, '*#B N']:
    weights, kind, count = self.read, self.options.kind, self.options.streams
    if kind == 'dynamic':
      weights += self.read_scale * jnp.tanh(self._generated(x)[..., 0])
    elif kind != 'static':
      gates = self.read_scale * self._generated(x)[..., :count]
      weights = jax.nn.sigmoid(gates + weights) + self._floor
    return weights

  def _write_weights(self, x: Float[Array, 'B T N D']) -> Float[Array, '*#B N']:
    weights, kind, count = self.write, self.options.kind, self.options.streams
    if kind == 'dynamic':
      weights += self.write_scale * jnp.tanh(self._generated(x)[..., 1])
    elif kind != 'static':
      gates = self.write_scale * self._generated(x)[..., count : 2 * count]
      weights = 2 * jax.nn.sigmoid(gates + weights) + self._floor
    return weights

  def _mix(self, x: Float[Array, 'B T N D']) -> Float[Array, '*#B N N'] | None:
    kind, count = self.options.kind, self.options.streams
    if kind == 'identity_mix':
      return None
    mix = self.mix
    if kind == 'dynamic':
      mix += self.read_scale * jnp.tanh(self._generated(x)[..., 2:])
    elif kind == 'manifold':
      dynamic = self._generated(x)[..., 2 * count :]
      dynamic = dynamic.reshape(*dynamic.shape[:-1], count, count)
      mix = sinkhorn(self.mix_scale * dynamic + mix, self.options.rounds)
    return mix

  @property
  def _floor(self) -> float:
    return _FLOOR if self.options.kind == 'identity_mix' else 0.0

  def _told(
    self, name: str, value: Float[Array, '...'], context: Context
  ) -> Float[Array, '...']:
    of_positions = value.ndim > (2 if name == 'mix' else 1)
    if of_positions:
      sow(self, 'views', name, value)
    mean = token_mean(value, context.tokens) if of_positions else value
    sow(self, 'telemetry', name, mean)
    return value


class StreamsRead(nn.Module):
  """Learned reading of the streams after the last layer.

    sum_i sigmoid(0.01 z_i + b_i) X_i,  z = rms(X_1..X_N) phi

  phi and b start as 0, which gives a multiple of the sum.

  Views: 'read' [B, T, N].

  Attributes:
    config: Model configuration.
  """

  config: ModelConfig

  @nn.compact
  def __call__(
    self, x: Float[Array, 'B T N D'], context: Context
  ) -> Float[Array, 'B T D']:
    del context
    count, zeros = x.shape[-2], nn.initializers.zeros_init()
    wide = x.reshape(*x.shape[:-2], -1).astype(jnp.float32)
    square = jnp.square(wide).mean(-1, keepdims=True)
    unit = wide * jax.lax.rsqrt(square + self.config.norm_epsilon)
    generator = Dense(
      self.config, count, ('embed', 'layers'), False, zeros, name='generator'
    )
    z = generator(unit.astype(x.dtype)).astype(jnp.float32)
    bias = parameter(self, 'read', zeros, (None,), (count,))
    start = nn.initializers.constant(_SCALE)
    scale = parameter(self, 'read_scale', start, (), ())
    weights = jax.nn.sigmoid(scale * z + bias)
    sow(self, 'views', 'read', weights)
    return read_streams(x, weights)


def _state(config: ModelConfig, side: Side) -> ResidualState:
  return Streams(config.side(side).hyper.streams)


def _state_read(config: ModelConfig, side: Side) -> StreamsRead | None:
  learned = config.side(side).hyper.collapse == 'learned'
  return StreamsRead(config) if learned else None


def _identity(config: ModelConfig, side: Side) -> bool:
  return True


def _size(options: HyperOptions) -> PaperSize:
  side = SideConfig('hyper_connections', hyper=options)
  return PaperSize(f'hyper.kind={options.kind}', side, side, None, PRE_NORM)


SCHEME = on_both_sides(
  'hyper_connections',
  HyperResidual,
  'residual',
  'Zhu et al. 2024, Eq. 1-2',
  'hyper',
  layers_read=no_layers,
  starts_as_identity=_identity,
  residual=ResidualPlug(HyperResidual, _state, _state_read),
  sizes=(
    _size(HyperOptions(kind='static')),
    _size(HyperOptions(kind='dynamic')),
    _size(HyperOptions(kind='identity_mix')),
    _size(HyperOptions(kind='manifold')),
  ),
)
