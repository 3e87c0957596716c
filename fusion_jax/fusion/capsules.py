"""Capsules of layers: votes, and the base of the modules that route them.

Dou et al. (AAAI 2019), section 3.2. The input capsules are the layers of a
position; the output capsules, concatenated, are the fused vector. This file has
the parameters; the mathematics is in `routing`.

Axis letters: B batch, T positions, D model width, L layers, N output capsules,
C width of an output capsule, I and O any widths.
"""

import dataclasses
import functools
import types
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from fusion_jax.bounds import Depth, PositiveFloat, SizeOrZero
from fusion_jax.config import ModelConfig, Side
from fusion_jax.config.section import fields_of_section, section
from fusion_jax.errors import require
from fusion_jax.fusion.inputs import FusionModule
from fusion_jax.fusion.linear import affine
from fusion_jax.fusion.routing import (
  coupling_diversity,
  coupling_entropy,
  dynamic_routing,
  em_routing,
  unit_votes,
)
from fusion_jax.fusion.scheme import on_both_sides
from fusion_jax.fusion.tree import add_residual
from fusion_jax.layers.context import Context, Layers, States, token_mean
from fusion_jax.layers.dense import (
  Dense,
  bias_initializer,
  parameter,
  stacked_initializer,
)
from fusion_jax.layers.dropout import Dropout
from fusion_jax.layers.narrow import matrices_of
from fusion_jax.layers.residual import layer_norm
from fusion_jax.layers.sow import sow

# The options that form='paper' sets (Dou 2019, Algorithms 1 and 2).
LITERAL_ROUTING: Mapping[str, Any] = types.MappingProxyType(
  {
    'vote_norm': 'none',
    'agreement': 'product',
    'average': 'sum',
    'residual': 'none',
    'stop_gradient': False,
    'variance_floor': 1e-4,
  }
)


@section('model.*.options')
class RoutingOptions:
  """Capsules, dynamic routing and EM routing (Dou 2019, Eq. 5-16).

  The paper's literal form does not train: votes grow until every layer goes to
  one capsule and no gradient reaches the encoder. The defaults below keep the
  votes at unit size, their agreement bounded, and the top layer as residual.
  """

  form: Literal['stable', 'paper'] = 'stable'
  """'paper': the literal form, vote_norm='none', agreement='product',
  average='sum', residual='none', stop_gradient=False and variance_floor=1e-4,
  which the paper does not print; these options must then have their
  defaults."""

  vote_norm: Literal['rms', 'none'] = 'rms'
  """'rms': divide the votes of a layer by their root mean square."""

  capsules: SizeOrZero = 0
  """Output capsules; 0: 512, or model.width where that is less."""

  iterations: Depth = 3
  """Iterations of the routing."""

  vote_projection: Literal['dense', 'block'] = 'dense'
  """'dense': two matrices over all layers at once, which has the paper's size.
  'block': F_l and W_l for every layer, as in Eq. 7-8."""

  context: Literal['all', 'own'] = 'all'
  """What F_l reads in the block form: all layers, or its own."""

  stop_gradient: bool = True
  """Let no gradient through the couplings of all but the last iteration."""

  residual: Literal['top', 'none', 'all'] = 'top'
  """Layers that are added to the capsules before the norm."""

  def capsule_count(self, width: int) -> int:
    """Return N in a model of that width."""
    return self.capsules or min(512, width)

  @property
  def resolved(self) -> 'RoutingOptions':
    """The options with those of form='paper' filled in."""
    if self.form == 'stable':
      return self
    return dataclasses.replace(self, form='stable', **literal_options(self))


def literal_options(options: RoutingOptions) -> dict[str, Any]:
  """Return what form='paper' sets of the options of a routing."""
  fields = fields_of_section(type(options))
  return {
    name: LITERAL_ROUTING[name] for name in LITERAL_ROUTING if name in fields
  }


def check_routing(config: ModelConfig, side: Side) -> None:
  """Refuse options of a routing that make no sense in a model."""
  options, path = config.side(side).options, f'model.{side}.options'
  capsules = options.capsule_count(config.width)
  require(
    config.width % capsules == 0,
    f'{path}.capsules',
    f'must divide model.width {config.width}, got {capsules}',
  )
  if options.form == 'stable':
    return
  for name, literal in literal_options(options).items():
    value = getattr(options, name)
    require(
      value in (literal, fields_of_section(type(options))[name].default),
      f'{path}.{name}',
      f"form='paper' makes it {literal!r}, got {value!r}; leave it out, or use "
      "form='stable' and set each option",
    )


# A capsule shorter than this counts as dead.
_DEAD = 0.01
# A capsule longer than this has saturated the squash of dynamic routing.
_SATURATED = 0.99


class _PerLayer(nn.Module):
  """Projection of its own for every layer, y[l] = x[l] W_l + b_l."""

  config: ModelConfig
  features: int
  narrows: ClassVar[bool] = True

  @nn.compact
  def __call__(
    self, inputs: tuple[Float[Array, 'B T I'], ...]
  ) -> tuple[Float[Array, 'B T O'], ...]:
    config, features = self.config, self.features
    count, width = len(inputs), inputs[0].shape[-1]
    axes, shape = ('layers', 'embed', 'mlp'), (count, width, features)
    kernel = parameter(self, 'kernel', stacked_initializer(config), axes, shape)
    start = bias_initializer(config, width)
    bias = parameter(self, 'bias', start, axes[::2], (count, features))
    bfloat16 = config.product_dtype == 'bfloat16'
    maps = zip(inputs, matrices_of(kernel), jnp.split(bias, count), strict=True)
    return tuple(affine(x, w, b[0], bfloat16) for x, w, b in maps)


class Votes(FusionModule):
  """Votes V[l -> n] = W_{l -> n} F_l(H[1..L]); Dou et al. (2019), Eq. 7-8.

  The dense form, which has the size of the paper's Table 1, is one network over
  the concatenation: its first map is all F_l and its second is all W. The block
  form follows the paper's text and has F_l and W_l for every layer.
  """

  activation: Literal['none', 'relu']

  @nn.compact
  def __call__(
    self, layers: Layers, context: Context
  ) -> Float[Array, 'B T L N C']:
    """Return the votes V of H[1..L] for every capsule, in the layers' dtype."""
    config, options = self.config, self.options
    form = self._block if options.vote_projection == 'block' else self._dense
    capsules = options.capsule_count(config.width)
    return form(layers, context).reshape(
      *layers[0].shape[:2], len(layers), capsules, config.width // capsules
    )

  def _activate(
    self, x: Float[Array, 'B T I'], context: Context
  ) -> Float[Array, 'B T I']:
    if self.activation == 'relu':
      x = jax.nn.relu(x)
    config = self.config
    return Dropout(config.activation_dropout, config.dropout_generator)(
      x, context.deterministic
    )

  def _dense(
    self, layers: Layers, context: Context
  ) -> Float[Array, 'B T {len(layers)}*D']:
    config, z = self.config, jnp.concatenate(layers, axis=-1)
    width = z.shape[-1]
    hidden = Dense(config, width, ('embed', 'mlp'), True, name='hidden')(z)
    hidden = self._activate(hidden, context)
    return Dense(config, width, ('mlp', 'embed'), True, name='out')(hidden)

  def _block(
    self, layers: Layers, context: Context
  ) -> Float[Array, 'B T {len(layers)} D']:
    config, read = self.config, layers
    if self.options.context == 'all':
      read = (jnp.concatenate(layers, axis=-1),) * len(layers)
    capsules = _PerLayer(config, config.width, name='context')(read)
    capsules = tuple(self._activate(x, context) for x in capsules)
    votes = _PerLayer(config, config.width, name='transform')(capsules)
    return jnp.stack(votes, axis=-2)


class Routing(FusionModule):
  """Base of both routings: the votes, the residual, the norm, the telemetry.

  Telemetry: 'coupling_entropy' and 'coupling_diversity' of every iteration;
  'vote_size', the root mean square of the votes before `vote_norm`; the shares
  'dead_capsules' (shorter than 0.01) and 'saturated_capsules' (longer than
  0.99).
  Views: 'couplings' [B, T, iterations, L, N].
  """

  # Activation between the two maps of the votes.
  vote_activation: ClassVar[Literal['none', 'relu']] = 'none'

  @property
  def options(self) -> Any:
    return super().options.resolved

  def setup(self):
    self.votes = Votes(self.config, self.side, self.vote_activation)
    self.norm = layer_norm(self.config)

  def _votes(
    self, layers: Layers, context: Context
  ) -> Float[Array, 'B T L N C']:
    """Return the votes at the size at which they are routed."""
    votes = self.votes(layers, context)
    size = jnp.sqrt(jnp.square(votes.astype(jnp.float32)).mean((2, 3, 4)))
    sow(self, 'telemetry', 'vote_size', token_mean(size, context.tokens))
    return unit_votes(votes) if self.options.vote_norm == 'rms' else votes

  def _finish(self, output: Float[Array, 'B T N C'], layers: Layers) -> States:
    """Concatenate the capsules, then apply the residual and the norm."""
    fused = output.reshape(layers[0].shape)
    fused = add_residual(fused, layers, len(layers) - 1, self.options.residual)
    return self.norm(fused).astype(layers[0].dtype)

  def _record(
    self,
    couplings: tuple[Float[Array, 'B T L N'], ...],
    output: Float[Array, 'B T N C'],
    context: Context,
  ) -> None:
    couplings = jax.lax.stop_gradient(couplings)
    size = jnp.sqrt(jnp.square(jax.lax.stop_gradient(output)).sum(-1))
    for name, share in (
      ('dead_capsules', size < _DEAD),
      ('saturated_capsules', size > _SATURATED),
    ):
      mean = token_mean(share.astype(jnp.float32), context.tokens).mean()
      sow(self, 'telemetry', name, mean)
    sow(self, 'views', 'couplings', jnp.stack(couplings, axis=2))
    for name, measure in (
      ('coupling_entropy', coupling_entropy),
      ('coupling_diversity', coupling_diversity),
    ):
      values = jnp.stack([measure(c) for c in couplings], axis=-1)
      sow(self, 'telemetry', name, token_mean(values, context.tokens))


@section('model.*.options')
class DynamicRoutingOptions(RoutingOptions):
  """Dynamic routing (Dou 2019, Algorithm 1)."""

  agreement: Literal['cosine', 'product'] = 'cosine'
  """What is added to the logits: the cosine of capsule and vote, or their
  product."""

  average: Literal['mass', 'sum'] = 'mass'
  """Whether a capsule is the mean of its votes, weighted by the
  couplings ('mass'), or their weighted sum ('sum')."""


class DynamicRouting(Routing):
  """Dynamic routing of layers; Dou et al. (2019), Algorithm 1, Eq. 5-9.

  The backward pass recomputes everything between the votes and the capsules.
  """

  def __call__(self, layers: Layers, context: Context) -> States:
    """Return the concatenated capsules of H[1..L]."""
    layers, options = layers[1:], self.options
    route = functools.partial(
      dynamic_routing,
      iterations=options.iterations,
      average=options.average,
      stop_gradient=options.stop_gradient,
      agreement=options.agreement,
    )
    routed = jax.checkpoint(route)(self._votes(layers, context))
    self._record(routed.couplings, routed.output, context)
    return self._finish(routed.output, layers)


DYNAMIC_ROUTING = on_both_sides(
  'dynamic_routing',
  DynamicRouting,
  'layer aggregation',
  'Dou et al. 2019, Eq. 5-9',
  DynamicRoutingOptions,
  check=check_routing,
  routes=True,
)


@section('model.*.options')
class EmRoutingOptions(RoutingOptions):
  """EM routing (Dou 2019, Algorithm 2)."""

  variance_floor: PositiveFloat = 0.1
  """What is added to the variances."""


class EmRouting(Routing):
  """EM routing of layers; Dou et al. (2019), Algorithm 2, Eq. 10-16.

  The backward pass recomputes everything between the votes and the capsules.
  """

  vote_activation = 'relu'

  def setup(self):
    super().setup()
    config = self.config
    layers = config.layers(self.side)
    self.activation_hidden = Dense(
      config, layers * config.width, ('embed', 'mlp'), True
    )
    self.activation_out = Dense(config, layers, ('mlp', 'layers'), True)
    self.dropout = Dropout(config.activation_dropout, config.dropout_generator)
    self.beta_a, self.beta_u = self._beta('beta_a'), self._beta('beta_u')

  def _beta(self, name: str) -> Float[Array, ' N']:
    width = self.config.width
    start = nn.initializers.normal(width**-0.5)
    capsules = self.options.capsule_count(width)
    return parameter(self, name, start, ('capsules',), (capsules,))

  def _activation(
    self, layers: Layers, context: Context
  ) -> Float[Array, 'B T L']:
    """Return A_in of Eq. 10, one number for each layer."""
    x = jnp.concatenate(layers, axis=-1)
    hidden = jax.nn.relu(self.activation_hidden(x))
    logits = self.activation_out(self.dropout(hidden, context.deterministic))
    return jax.nn.sigmoid(logits.astype(jnp.float32))

  def __call__(self, layers: Layers, context: Context) -> States:
    """Return the concatenated capsules of H[1..L]."""
    layers, options = layers[1:], self.options
    route = functools.partial(
      em_routing,
      iterations=options.iterations,
      variance_floor=options.variance_floor,
      stop_gradient=options.stop_gradient,
    )
    routed = jax.checkpoint(route)(
      self._votes(layers, context),
      self._activation(layers, context),
      self.beta_a,
      self.beta_u,
    )
    self._record(routed.couplings, routed.output, context)
    return self._finish(routed.output, layers)


EM_ROUTING = on_both_sides(
  'em_routing',
  EmRouting,
  'layer aggregation',
  'Dou et al. 2019, Eq. 10-16',
  EmRoutingOptions,
  check=check_routing,
  routes=True,
)
