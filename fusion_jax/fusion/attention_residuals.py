"""Attention residuals: sublayers attend to the outputs of those below them.

Kimi Team (2026); with heads and with differences: Luo (2026).

Axis letters: B batch, T positions, D model width, K sources, G heads.
"""

from typing import ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from fusion_jax.bounds import Depth, Size
from fusion_jax.config import ModelConfig, Side
from fusion_jax.config.fusion import SUBLAYERS
from fusion_jax.config.section import section
from fusion_jax.errors import require
from fusion_jax.fusion.inputs import FusionModule
from fusion_jax.fusion.residuals import ResidualPlug
from fusion_jax.fusion.scheme import always, no_layers, on_both_sides
from fusion_jax.layers.context import Context, Layers, States, token_mean
from fusion_jax.layers.dense import parameter
from fusion_jax.layers.residual import Residual, ResidualState
from fusion_jax.layers.sow import sow


@section('model.*.options')
class AttentionResidualOptions:
  """Attention residuals (Kimi Team 2026; Luo 2026)."""

  kind: Literal['replace', 'delta'] = 'replace'
  """'replace': a sublayer reads a weighted mean of what is below it instead of
  the residual sum; 'delta': the sum, and g times the mean."""

  sources: Literal['sublayer', 'layer'] = 'sublayer'
  """Whether each sublayer attends to the outputs of sublayers, or each layer,
  once, to those of layers."""

  block: Depth = 1
  """Sublayers, or layers, whose outputs are summed into one source; 1: each is
  a source (full attention residuals)."""

  heads: Size = 1
  """Parts of the width with weights of their own."""

  embedding: bool = False
  """Of kind='delta': whether H[0] is a source too, from the second sublayer on,
  as in the released code. kind='replace' always has it."""


def source_scores(
  query: Float[Array, ' D'], sources: Layers, heads: int, epsilon: float
) -> Float[Array, 'K B T G']:
  """Return s_i = exp(q . rms(v_i) - m), float32, for each part of the width.

  rms(v) is v over the root of its mean square over the whole width, and m is
  the maximum over the sources: over their sum, scores are a softmax.
  """
  columns = query[:, None] * _indicator(len(query), heads)
  logits = []
  for source in sources:
    wide = source.astype(jnp.float32)
    unit = jax.lax.rsqrt(jnp.square(wide).mean(-1, keepdims=True) + epsilon)
    # The sum of one column is fused into the loop that reads the source.
    products = (
      (query * wide).sum(-1, keepdims=True) if heads == 1 else wide @ columns
    )
    logits.append(products * unit)
  stacked = jnp.stack(logits)
  return jnp.exp(stacked - jax.lax.stop_gradient(stacked.max(0)))


def weighted_sources(
  scores: Float[Array, 'K B T G'], sources: Layers
) -> States:
  """Return K sum_i a_i v_i, float32, with a_i = s_i / sum_j s_j.

  Each part of the width has its own a_i. The division comes last because XLA
  stores a quotient. A mere sum it computes again wherever it is used, and in
  the backward pass of a deep stack that puts all sums into one slow loop.

  With several parts the backward pass repeats the scores along the parts again:
  kept for every source of every reader, they would grow with the square of the
  depth. With one part XLA does so by itself.
  """
  divided = _divided if scores.shape[-1] == 1 else jax.checkpoint(_divided)
  return divided(scores, sources)


def _divided(scores: Float[Array, 'K B T G'], sources: Layers) -> States:
  total = jnp.zeros(sources[0].shape, jnp.float32)
  for score, source in zip(scores, sources, strict=True):
    total += spread(score, total.shape[-1]) * source
  return total / spread(scores.mean(0), total.shape[-1])


def spread(x: Float[Array, '*A G'], width: int) -> Float[Array, '*A D']:
  """Return x with each element repeated along its part of the width."""
  if x.shape[-1] == 1:
    return jnp.broadcast_to(x, (*x.shape[:-1], width))
  return jnp.matmul(x, _indicator(width, x.shape[-1]).T)


def _indicator(width: int, parts: int) -> Float[Array, 'D G']:
  """Return 1 where a feature is in a part, otherwise 0.

  A product with it runs on the matrix unit, and is rounded as all products of
  the model are. Indexing by part inside a fused loop keeps XLA from vectorising
  it; a product of higher precision is several products, which a TPU's compiler
  takes several times as long for.
  """
  return jnp.repeat(jnp.eye(parts), width // parts, axis=0)


class Sources(NamedTuple):
  """State of a stack whose sublayers attend to what is below them.

  Attributes:
    total: Sum of H[0] and all outputs, the plain residual.
    blocks: H[0], if it is a source, and sums of the outputs of the
      blocks that are complete.
    running: Sum of the outputs of the present block; None at its start.
    offset: With sources='layer', what the layer reads beyond the plain
      residual; None between layers, and otherwise.
  """

  total: States
  blocks: Layers
  running: States | None = None
  offset: States | None = None

  def readable(self) -> Layers:
    """Return what can be attended to."""
    return self.blocks if self.running is None else (*self.blocks, self.running)


class SourcesState(ResidualState):
  """State of a stack with attention residuals; H[l] is the plain residual.

  Attributes:
    with_embedding: Whether H[0] is a source.
  """

  is_layer: ClassVar[bool] = False

  def __init__(self, with_embedding: bool):
    self.with_embedding = with_embedding

  def open(self, x: States) -> Sources:
    """Return the state before the first layer."""
    return Sources(x, (x,) if self.with_embedding else ())

  def close(self, state: Sources) -> States:
    """Return the plain residual."""
    return state.total

  def skipped(self, before: Sources, after: Sources) -> Sources:
    """Return the state as if the outputs of the layer were 0."""
    none = jnp.zeros_like(before.total)
    running = none if before.running is None else before.running
    finished = len(after.blocks) - len(before.blocks)
    new = [running, *[none] * finished][:finished]
    left = None if after.running is None else none if finished else running
    return Sources(before.total, (*before.blocks, *new), left)


class SourceAttention(FusionModule):
  """Attention of one place of a stack to the sources below it.

  The query w * g, with w = 0 and g = 1 at the start, is a parameter, and the
  keys are the sources over their root mean square: a_i = softmax(w g rms(v_i)).

  Telemetry: 'weights' [K, G], the mean weights.
  Views: 'weights' [B, T, K, G].
  """

  def setup(self):
    shape = (self.config.width,)
    zeros, ones = nn.initializers.zeros_init(), nn.initializers.ones_init()
    self.query = parameter(self, 'query', zeros, ('norm',), shape)
    self.key_scale = parameter(self, 'key_scale', ones, ('norm',), shape)

  def __call__(self, sources: Layers, context: Context) -> States:
    """Return K sum_i a_i v_i, float32."""
    heads = self.options.heads
    query, epsilon = self.query * self.key_scale, self.config.norm_epsilon
    scores = source_scores(query, sources, heads, epsilon)
    weights = jnp.moveaxis(scores / scores.sum(0), 0, 2)
    sow(self, 'views', 'weights', weights)
    sow(self, 'telemetry', 'weights', token_mean(weights, context.tokens))
    return weighted_sources(scores, sources)


class AttentionResidual(Residual):
  """Residual of a sublayer f over the outputs below; Kimi Team (2026).

    h = K sum_i a_i v_i,  v_new = dropout(f(LN(h)))

  The sources v_1..v_K are H[0] and the outputs of all sublayers below, or of
  blocks of `block` of them their sums; where K = 1 there is no attention. The
  paper reads the mean, 1/K of this;
  the norm behind it does not see the factor (but for its epsilon), and with it
  w = 0 is exactly the plain residual sum.

  kind='delta' (Luo 2026): h = x + g sum_i a_i v_i with the plain residual x, a
  number g, which starts as 0, and the outputs below without H[0]; with
  `embedding` H[0] too, but not for the first sublayer. From g = 1 it trained
  0.14 nats worse than the plain model (docs/scheme_health.md).

  sources='layer': the sources are the sums of the outputs of each layer, which
  attends once and adds its outputs to what it has read.
  """

  side: Side
  number: int

  def setup(self):
    super().setup()
    self.options = options = self.config.side(self.side).options
    if self._attends and self._sources > 1:
      self.attention = SourceAttention(self.config, self.side)
    if self._attends and self._sources and options.kind == 'delta':
      zero = nn.initializers.zeros_init()
      self.gate = parameter(self, 'gate', zero, (), ())

  @property
  def _attends(self) -> bool:
    return self.options.sources == 'sublayer' or self._place == 0

  @property
  def _place(self) -> int:
    """Number of the sublayer in its layer."""
    return self.number % SUBLAYERS[self.side]

  @property
  def _is_last(self) -> bool:
    return self._place == SUBLAYERS[self.side] - 1

  @property
  def _block(self) -> int:
    """Number of sublayers in a block."""
    layers = self.options.sources == 'layer'
    return self.options.block * (SUBLAYERS[self.side] if layers else 1)

  @property
  def _sources(self) -> int:
    """Number of sources of the sublayer."""
    below = -(-self.number // self._block)
    if self.options.kind == 'replace':
      return 1 + below
    return below + (self.options.embedding and below > 0)

  def _read(self, x: Sources, context: Context) -> States:
    """Return h, float32, where the sublayer attends."""
    sources, total = x.readable(), x.total.astype(jnp.float32)
    delta = self.options.kind == 'delta'
    if not self._sources:
      return total
    if len(sources) == 1:
      read = sources[0].astype(jnp.float32)
    else:
      read = self.attention(sources, context)
    return total + self.gate * (read / len(sources)) if delta else read

  def before(
    self, x: Sources, context: Context
  ) -> tuple[States, States | None]:
    """Return the input of f, and with sources='layer' the offset of the layer.

    See `Residual.before`.
    """
    if x.offset is not None:
      return self.norm(x.total + x.offset), x.offset
    h = self._read(x, context)
    if self.options.sources == 'sublayer':
      return self.norm(h.astype(x.total.dtype)), None
    offset = (h - x.total).astype(x.total.dtype)
    return self.norm(x.total + offset), offset

  def after(
    self,
    x: Sources,
    y: States,
    context: Context,
    kept: States | None = None,
    scale: Float[Array, ''] | None = None,
  ) -> Sources:
    """Return the state after the sublayer; `kept` is the layer's offset."""
    y = self.dropout(y, context.deterministic)
    running = y if x.running is None else x.running + y
    offset = None if self._is_last else kept
    total = x.total + y
    if (self.number + 1) % self._block == 0:
      return Sources(total, (*x.blocks, running), None, offset)
    return Sources(total, x.blocks, running, offset)


class LastRead(FusionModule):
  """Attention to all sources after the last layer, K sum_i a_i v_i."""

  def setup(self):
    self.attention = SourceAttention(self.config, self.side)

  def __call__(self, x: Sources, context: Context) -> States:
    return self.attention(x.readable(), context).astype(x.total.dtype)


def _state(config: ModelConfig, side: Side) -> SourcesState:
  options = config.side(side).options
  return SourcesState(options.kind == 'replace' or options.embedding)


def _last_read(config: ModelConfig, side: Side) -> LastRead | None:
  replaces = config.side(side).options.kind == 'replace'
  return LastRead(config, side) if replaces else None


def _check(config: ModelConfig, side: Side) -> None:
  options, path = config.side(side).options, f'model.{side}.options'
  require(
    config.width % options.heads == 0,
    f'{path}.heads',
    f'must divide model.width {config.width}, got {options.heads}',
  )
  require(
    options.kind == 'delta' or not options.embedding,
    f'{path}.embedding',
    f'{options.embedding!r} has no effect with kind={options.kind!r}, whose '
    'sources always have it; leave it out',
  )
  of_layer = SUBLAYERS[side] if options.sources == 'sublayer' else 1
  most = config.layers(side) * of_layer
  require(
    options.block <= most,
    f'{path}.block',
    f'{options.block} is more than the {most} {options.sources}s of the stack; '
    f'at most {most}',
  )


SCHEME = on_both_sides(
  'attention_residuals',
  AttentionResidual,
  'residual',
  'Kimi Team 2026; Luo 2026',
  AttentionResidualOptions,
  norms=('pre',),
  check=_check,
  owns_layer_inputs=always,
  layers_read=no_layers,
  starts_as_identity=always,
  residual=ResidualPlug(AttentionResidual, _state, _last_read),
)
