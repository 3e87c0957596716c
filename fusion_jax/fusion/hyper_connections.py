"""Hyper-connections: a residual of several streams.

Zhu et al. (2024); with one mix for all, and manifold-constrained: Xie et al.
(2025).

Axis letters: B batch, T positions, D model width, N streams, O numbers that a
generator gives.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float
from pydantic import Field

from fusion_jax.bounds import Depth
from fusion_jax.config import ModelConfig, Side
from fusion_jax.config.fusion import SUBLAYERS
from fusion_jax.config.section import section
from fusion_jax.errors import require
from fusion_jax.fusion.residuals import PLAIN
from fusion_jax.fusion.scheme import always, no_layers, on_both_sides
from fusion_jax.layers.context import Context, States, token_mean
from fusion_jax.layers.dense import Initializer, parameter
from fusion_jax.layers.residual import Residual, ResidualState
from fusion_jax.layers.sow import sow


@section('model.*.options')
class HyperOptions:
  """Hyper-connections (Zhu et al. 2024; Xie et al. 2025)."""

  kind: Literal['static', 'dynamic', 'identity_mix', 'manifold'] = 'dynamic'
  """How a sublayer reads, mixes and writes the streams. 'static': by
  parameters; 'dynamic': by parameters and what each stream says; 'manifold':
  by sigmoids and a doubly stochastic mix of what all streams say (mHC);
  'identity_mix': the same without a mix."""

  streams: Annotated[int, Field(ge=2, le=64)] = 4
  """Number of residual streams."""

  rounds: Depth = 20
  """Manifold: rounds of Sinkhorn's algorithm."""


# Start of the factors of what a generator gives.
_SCALE = 0.01
# Deviation of the generators of gates; Xie et al. do not print theirs.
_DEVIATION = 0.02
# Logits of the gates of a sublayer at the start: of the stream that it reads,
# with the other sign of the others, and of a stream's weight on itself.
_READ, _KEEP = 2.0, 4.0
# Added to the gates where the streams are not mixed.
_FLOOR = 1e-6


@dataclasses.dataclass(frozen=True)
class Streams(ResidualState):
  """Several streams, [B, N, T, D]; H[l] is their mean.

  The paper's sum over their number: the norm behind it does not see the factor.
  Positions come after streams, so that the two last axes are long: TPUs pad
  them to multiples of 8 and 128.
  """

  is_layer: ClassVar[bool] = False

  count: int

  def open(self, x: States) -> Float[Array, 'B N T D']:
    """Return H[0] in every stream."""
    shape = x.shape[0], self.count, *x.shape[1:]
    return jnp.broadcast_to(x[:, None], shape)

  def close(self, state: Float[Array, 'B N T D']) -> States:
    """Return the mean of the streams."""
    return state.mean(1, dtype=jnp.float32).astype(state.dtype)


def sinkhorn(
  logits: Float[Array, '*P N N T'], rounds: int
) -> Float[Array, '*P N N T']:
  """Return a doubly stochastic matrix of each position; Sinkhorn, Knopp (1967).

  Rows and columns of exp(logits) are divided by their sums in turn. After a
  first round in logarithms every sum is between 1/N and N, and the others
  change factors of the rows and of the columns. For the backward pass a round
  keeps N of these, not a matrix of N by N, and computes the rest again.

  Returns:
    Matrices whose columns sum to 1, and their rows nearly so.
  """
  matrix = jnp.exp(jax.nn.log_softmax(jax.nn.log_softmax(logits, -2), -3))

  @jax.checkpoint
  def one(_, factors):
    columns = factors[1]
    rows = 1 / (matrix * columns[..., None, :, :]).sum(-2)
    return rows, 1 / (matrix * rows[..., None, :]).sum(-3)

  ones = jnp.ones_like(matrix[..., 0, :])
  rows, columns = jax.lax.fori_loop(1, rounds, one, (ones, ones))
  return rows[..., None, :] * matrix * columns[..., None, :, :]


class StreamWeights(NamedTuple):
  """Weights of one sublayer, float32; T is 1 where all positions share them.

  Attributes:
    read: Weights p.
    write: Weights o.
    mix: Matrix R; None: the identity.
  """

  read: Float[Array, '*#B N #T']
  write: Float[Array, '*#B N #T']
  mix: Float[Array, '*#B N N #T'] | None


def read_streams(
  streams: Float[Array, 'B N T D'], weights: Float[Array, '*#B N #T']
) -> States:
  """Return sum_i p_i X_i, in the dtype of the streams."""
  read = (weights[..., None] * streams).sum(-3)
  return read.astype(streams.dtype)


def write_streams(
  streams: Float[Array, 'B N T D'],
  y: States,
  mix: Float[Array, '*#B N N #T'] | None,
  weights: Float[Array, '*#B N #T'],
) -> Float[Array, 'B N T D']:
  """Return X'_j = sum_i R_ij X_i + o_j y, in the dtype of the streams.

  Args:
    mix: Matrix R, float32; None: the identity.
  """
  written = weights[..., None] * y[:, None]
  if mix is None:
    return (streams + written).astype(streams.dtype)
  return (_mixed(streams, mix) + written).astype(streams.dtype)


@jax.custom_vjp
def _mixed(
  streams: Float[Array, 'B N T D'], mix: Float[Array, '*#B N N #T']
) -> Float[Array, 'B N T D']:
  """Return sum_i R_ij X_i, float32.

  N is small: products of N by N matrices would fill no unit of any chip. The
  gradient of X is the same sum with R transposed. JAX would sum over an axis of
  N elements for it, which is slower on a CPU. That of R takes slices of what
  comes from above: those of X, which the forward pass has, XLA would copy
  early on a CPU and hold until then.
  """
  parts = (
    mix[..., i, :, :, None] * x[:, None]
    for i, x in enumerate(jnp.unstack(streams, axis=1))
  )
  return functools.reduce(jnp.add, parts)


def _mixed_gradients(
  kept: tuple[Float[Array, 'B N T D'], Float[Array, '*#B N N #T']],
  gradient: Float[Array, 'B N T D'],
) -> tuple[Float[Array, 'B N T D'], Float[Array, '*#B N N #T']]:
  streams, mix = kept
  of_streams = _mixed(gradient, jnp.swapaxes(mix, -3, -2))
  of_mix = jnp.stack(
    [(streams * x[:, None]).sum(-1) for x in jnp.unstack(gradient, axis=1)], 2
  )
  if mix.ndim == 3:
    of_mix = of_mix.sum((0, -1))[..., None]
  return of_streams.astype(streams.dtype), of_mix


_mixed.defvjp(lambda *args: (_mixed(*args), args), _mixed_gradients)


class Generator(nn.Module):
  """O numbers that positions compute from their streams, without a bias.

  They come before positions, as streams do. With `of_each` each stream has its
  own; otherwise they are of all streams side by side.
  """

  config: ModelConfig
  features: int
  of_each: bool
  start: Initializer

  @nn.compact
  def __call__(self, x: Float[Array, 'B N T D']) -> Float[Array, 'B O *N T']:
    """Return the numbers, float32.

    They are LN(X_i) W for each stream, W of [D, O], or rms(X_1..X_N) W for all,
    W of [N D, O]. No normalised stream is made: LN(X_i) W is X_i (W - w) over
    the deviation of X_i, where w is the mean of the rows of W.
    """
    _, count, _, width = x.shape
    inputs = width if self.of_each else count * width
    axes, shape = ('embed', 'layers'), (inputs, self.features)
    kernel = parameter(self, 'kernel', self.start, axes, shape)
    square = jnp.square(x.astype(jnp.float32))
    if self.of_each:
      kernel = kernel - kernel.mean(0)
      mean = x.mean(-1, dtype=jnp.float32)
      square = (square.mean(-1) - jnp.square(mean)).clip(0)
      numbers = _product('do,bntd->bont', kernel, x)
    else:
      kernel = kernel.reshape(count, width, -1)
      square = square.mean((1, 3))
      numbers = _product('ndo,bntd->bot', kernel, x)
    return numbers * jax.lax.rsqrt(square + self.config.norm_epsilon)[:, None]


def _product(
  axes: str, kernel: Float[Array, '...'], x: Float[Array, '...']
) -> Float[Array, '...']:
  """The kernel is first: XLA on a CPU cannot turn x W in bfloat16 around."""
  kernel = kernel.astype(x.dtype)
  return jnp.einsum(axes, kernel, x, preferred_element_type=jnp.float32)


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

  The backward pass keeps the streams, the weights and y, and computes the rest
  again.

  Telemetry: 'read' [N], 'write' [N] and 'mix' [N, N], means over the tokens.
  Views: the same with [B, T, ...], but for kind='static'.
  """

  side: Side
  number: int

  def setup(self):
    super().setup()
    self.options = options = self.config.side(self.side).options
    count, kind = options.streams, options.kind
    one = jax.nn.one_hot(self.number % count, count)
    gated = kind in ('identity_mix', 'manifold')
    self.read = self._static('read', _READ * (2 * one - 1) if gated else one)
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

  def _generator(self, gated: bool) -> Generator:
    count = self.options.streams
    mix = count**2 if self.options.kind == 'manifold' else 0
    start = nn.initializers.zeros_init()
    if gated and self.config.side(self.side).start == 'fresh':
      start = nn.initializers.normal(_DEVIATION)
    features = 2 * count + mix if gated else count + 2
    return Generator(self.config, features, not gated, start)

  def before(
    self, x: Float[Array, 'B N T D'], context: Context
  ) -> tuple[States, StreamWeights]:
    """Return the input of f, and the weights of the sublayer."""
    weights = self._recomputed(HyperResidual._weights)(self, x)
    self._record(weights, context)

    def read(self, x, weights):
      return self.norm(read_streams(x, weights))

    return self._recomputed(read)(self, x, weights.read), weights

  def after(
    self,
    x: Float[Array, 'B N T D'],
    y: States,
    context: Context,
    kept: StreamWeights | None = None,
    scale: Float[Array, ''] | None = None,
  ) -> Float[Array, 'B N T D']:
    """Return the streams after the sublayer; `kept` are its weights."""
    assert kept is not None, 'the weights that `before` gave'
    y = self.dropout(y, context.deterministic)
    write = self._recomputed(lambda self, *args: write_streams(*args))
    return write(self, x, y, kept.mix, kept.write)

  def _recomputed(self, body: Callable[..., Any]) -> Callable[..., Any]:
    """Return body, of which the backward pass keeps the arguments alone."""
    return body if self.config.remat else nn.remat(body)

  def _weights(self, x: Float[Array, 'B N T D']) -> StreamWeights:
    """Return the weights of all positions, or those that they share."""
    kind = self.options.kind
    if kind == 'static':
      shared = self.read[:, None], self.write[:, None], self.mix[..., None]
      return StreamWeights(*shared)
    numbers = self.generator(x)
    return self._sums(numbers) if kind == 'dynamic' else self._gates(numbers)

  def _sums(self, numbers: Float[Array, 'B O N T']) -> StreamWeights:
    """Return the weights of kind='dynamic' from what each stream says."""
    numbers = jnp.tanh(numbers)
    # Number 2 + j of stream i is R_ij.
    mix = jnp.swapaxes(numbers[:, 2:], 1, 2)
    return StreamWeights(
      self.read_scale * numbers[:, 0] + self.read[:, None],
      self.write_scale * numbers[:, 1] + self.write[:, None],
      self.read_scale * mix + self.mix[..., None],
    )

  def _gates(self, numbers: Float[Array, 'B O T']) -> StreamWeights:
    """Return the weights of the other kinds from what all streams say."""
    options, count = self.options, self.options.streams
    read, write, mix = jnp.split(numbers, (count, 2 * count), axis=1)
    read = jax.nn.sigmoid(self.read_scale * read + self.read[:, None])
    write = 2 * jax.nn.sigmoid(self.write_scale * write + self.write[:, None])
    if options.kind == 'identity_mix':
      return StreamWeights(read + _FLOOR, write + _FLOOR, None)
    mix = mix.reshape(mix.shape[0], count, count, -1)
    mix = self.mix_scale * mix + self.mix[..., None]
    return StreamWeights(read, write, sinkhorn(mix, options.rounds))

  def _record(self, weights: StreamWeights, context: Context) -> None:
    """Keep weights as views, with positions after the batch; and their means.

    Weights that all positions share are only telemetry.
    """
    for name, value in weights._asdict().items():
      if value is None:
        continue
      if self.options.kind == 'static':
        sow(self, 'telemetry', name, value[..., 0])
        continue
      value = jnp.moveaxis(value, -1, 1)
      sow(self, 'views', name, value)
      sow(self, 'telemetry', name, token_mean(value, context.tokens))


def streams_in_turn(config: ModelConfig, side: Side, stack: Any) -> Any:
  """Return fresh parameters whose sublayers read another stream each at first.

  With `scan_layers` all layers are made as the first one is; here each gets its
  own start.
  """
  if not config.scan_layers:
    return stack

  def turned(path: tuple[Any, ...], leaf: Array) -> Array:
    if 'read' not in [getattr(part, 'key', None) for part in path]:
      return leaf
    turns = SUBLAYERS[side] * jnp.arange(leaf.shape[0])
    return jax.vmap(jnp.roll)(leaf, turns)

  layers = jax.tree_util.tree_map_with_path(turned, stack['layers'])
  return {**stack, 'layers': layers}


def _state(config: ModelConfig, side: Side) -> Streams:
  return Streams(config.side(side).options.streams)


def _check(config: ModelConfig, side: Side) -> None:
  options = config.side(side).options
  require(
    options.kind == 'manifold' or options.rounds == HyperOptions.rounds,
    f'model.{side}.options.rounds',
    f'{options.rounds} has no effect with kind={options.kind!r}; leave it out',
  )


SCHEME = on_both_sides(
  'hyper_connections',
  HyperResidual,
  'residual',
  'Zhu et al. 2024, Eq. 1-2',
  HyperOptions,
  norms=('pre',),
  check=_check,
  layers_read=no_layers,
  starts_as_identity=always,
  residual=PLAIN._replace(module=HyperResidual, state=_state),
  initial=streams_in_turn,
)
