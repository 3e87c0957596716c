"""Layer aggregation by EM routing; Dou et al. (AAAI 2019), Eq. 10-16.

Axis letters: B batch, T positions, D model width, L layers, N output capsules,
C width of an output capsule.
"""

import functools
from typing import Literal

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from fusion_jax.bounds import PositiveFloat
from fusion_jax.config.section import section
from fusion_jax.fusion.capsules import Routing, RoutingOptions, check_routing
from fusion_jax.fusion.inputs import Layers
from fusion_jax.fusion.routing import (
  em_routing,
  inverse_temperatures,
)
from fusion_jax.fusion.scheme import (
  on_both_sides,
)
from fusion_jax.layers.context import Context
from fusion_jax.layers.dense import Dense
from fusion_jax.layers.dropout import Dropout
from fusion_jax.layers.parameter import parameter


@section('model.*.options')
class EmRoutingOptions(RoutingOptions):
  """EM routing (Dou 2019, Algorithm 2)."""

  activation: Literal['scalar', 'per_output', 'none'] = 'scalar'
  """Input activations, one a layer, one for each layer and capsule, or all
  1."""

  betas: Literal['learned', 'zero'] = 'learned'
  """Beta_u and beta_a, learned or 0."""

  temperature: Literal['linear', 'hinton'] = 'linear'
  """Inverse temperature of iteration t; 'linear': 1, 2, 3, then 3;
  'hinton': 0.01 (1 - 0.95^(t + 1))."""

  variance_floor: PositiveFloat = 0.1
  """What is added to the variances."""

  floor: Literal['absolute', 'relative'] = 'absolute'
  """'relative': the floor times the mean square of the votes."""

  cost_norm: bool = False
  """Standardise the cost over the output capsules."""

  log_density_scale: PositiveFloat = 1.0
  """Factor on the log-density of a vote."""

  emit: Literal['act_mean', 'mean'] = 'act_mean'
  """What a capsule emits: activation * mean, or the mean."""


class EmRouting(Routing):
  """EM routing of layers; Dou et al. (2019), Algorithm 2, Eq. 10-16.

  The backward pass recomputes everything between the votes and the capsules.

  Telemetry: 'coupling_entropy' and 'coupling_diversity' of every iteration;
  'vote_size', the root mean square of the votes before `vote_norm`; the shares
  'dead_capsules' (shorter than 0.01) and 'saturated_capsules' (longer than
  0.99).
  Views: 'couplings' [B, T, iterations, L, N].

  Attributes:
    config: Model configuration.
    side: Side of the stack.
  """

  vote_activation = 'relu'

  def setup(self):
    super().setup()
    config, options = self.config, self.options
    layers = config.layers(self.side)
    capsules = options.capsule_count(config.width)
    if options.activation == 'scalar':
      self.activation_hidden = Dense(
        config, layers * config.width, ('embed', 'mlp'), True
      )
      self.activation_out = Dense(config, layers, ('mlp', 'layers'), True)
      self.dropout = Dropout(
        config.activation_dropout, config.dropout_generator
      )
    if options.activation == 'per_output':
      self.activation_out = Dense(
        config, layers * capsules, ('embed', 'mlp'), True
      )
    if options.betas == 'learned':
      self.beta_a = self._beta('beta_a', capsules)
      self.beta_u = self._beta('beta_u', capsules)
    else:
      self.beta_a = self.beta_u = jnp.zeros(capsules)

  def _beta(self, name: str, capsules: int) -> Float[Array, ' N']:
    start = nn.initializers.normal(self.config.width**-0.5)
    return parameter(self, name, start, ('capsules',), (capsules,))

  def _activation(
    self, layers: Layers, context: Context
  ) -> Float[Array, 'B T L X'] | None:
    """Return A_in of Eq. 10, where X is 1, or N for a value per capsule."""
    if self.options.activation == 'none':
      return None
    x = jnp.concatenate(layers, axis=-1)
    if self.options.activation == 'scalar':
      hidden = jax.nn.relu(self.activation_hidden(x))
      x = self.dropout(hidden, context.deterministic)
    logits = self.activation_out(x).astype(jnp.float32)
    return jax.nn.sigmoid(logits).reshape(*x.shape[:2], len(layers), -1)

  def __call__(self, layers: Layers, context: Context) -> Float[Array, 'B T D']:
    """Return the concatenated capsules of H[1..L]."""
    layers, options = layers[1:], self.options
    route = functools.partial(
      em_routing,
      temperatures=inverse_temperatures(
        options.temperature, options.iterations
      ),
      variance_floor=options.variance_floor,
      cost_norm=options.cost_norm,
      log_density_scale=options.log_density_scale,
      emit=options.emit,
      stop_gradient=options.stop_gradient,
      relative_floor=options.floor == 'relative',
    )
    routed = jax.checkpoint(route)(
      self._votes(layers, context),
      self._activation(layers, context),
      self.beta_a,
      self.beta_u,
    )
    self._record(routed.couplings, routed.output, 'output', context)
    return self._finish(routed.output, layers)


SCHEME = on_both_sides(
  'em_routing',
  EmRouting,
  'layer aggregation',
  'Dou et al. 2019, Eq. 10-16',
  EmRoutingOptions,
  check=check_routing,
)
