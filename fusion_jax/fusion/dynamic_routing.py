"""Layer aggregation by dynamic routing; Dou et al. (AAAI 2019), Eq. 5-9.

Axis letters: B batch, T positions, D model width, L layers, N output capsules,
C width of an output capsule.
"""

import functools

import jax
from jaxtyping import Array, Float

from fusion_jax.fusion.capsules import Routing
from fusion_jax.fusion.inputs import Layers
from fusion_jax.fusion.routing import (
  dynamic_routing,
)
from fusion_jax.fusion.scheme import (
  on_both_sides,
)
from fusion_jax.layers.context import Context


class DynamicRouting(Routing):
  """Dynamic routing of layers; Dou et al. (2019), Algorithm 1, Eq. 5-9.

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

  def __call__(self, layers: Layers, context: Context) -> Float[Array, 'B T D']:
    """Return the concatenated capsules of H[1..L]."""
    layers, options = layers[1:], self.options
    capsules = options.capsule_count(self.config.width)
    # With this gain, uniform couplings give the mean of the votes.
    mean = capsules / len(layers) if options.route_axis == 'output' else 1.0
    gain = options.route_gain or mean
    route = functools.partial(
      dynamic_routing,
      iterations=options.iterations,
      gain=None if options.average == 'mass' else gain,
      axis=options.route_axis,
      stop_gradient=options.stop_gradient,
      agreement=options.agreement,
      agreement_scale=options.agreement_scale,
    )
    routed = jax.checkpoint(route)(self._votes(layers, context))
    axis = options.route_axis
    self._record(routed.couplings, routed.output, axis, context)
    return self._finish(routed.output, layers)


SCHEME = on_both_sides(
  'dynamic_routing',
  DynamicRouting,
  'layer aggregation',
  'Dou et al. 2019, Eq. 5-9',
  'routing',
)
