"""Layer aggregation by EM routing; Dou et al. (AAAI 2019), Eq. 10-16.

Axis letters: B batch, T positions, D model width, L layers, N output capsules,
C width of an output capsule.
"""

import functools

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from fusion_jax.bounds import PositiveFloat
from fusion_jax.config.section import section
from fusion_jax.fusion.capsules import Routing, RoutingOptions, check_routing
from fusion_jax.fusion.inputs import Layers
from fusion_jax.fusion.routing import em_routing
from fusion_jax.fusion.scheme import on_both_sides
from fusion_jax.layers.context import Context
from fusion_jax.layers.dense import Dense
from fusion_jax.layers.dropout import Dropout
from fusion_jax.layers.parameter import parameter


@section('model.*.options')
class EmRoutingOptions(RoutingOptions):
  """EM routing (Dou 2019, Algorithm 2)."""

  variance_floor: PositiveFloat = 0.1
  """What is added to the variances."""


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

  def __call__(self, layers: Layers, context: Context) -> Float[Array, 'B T D']:
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


SCHEME = on_both_sides(
  'em_routing',
  EmRouting,
  'layer aggregation',
  'Dou et al. 2019, Eq. 10-16',
  EmRoutingOptions,
  check=check_routing,
  routes=True,
)
