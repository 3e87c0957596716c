"""Layer aggregation by dynamic routing; Dou et al. (AAAI 2019), Eq. 5-9.

Axis letters: B batch, T positions, D model width, L layers, N output capsules,
C width of an output capsule.
"""

import functools
from typing import Literal

import jax
from jaxtyping import Array, Float

from fusion_jax.bounds import NotNegative, PositiveFloat
from fusion_jax.config.section import section
from fusion_jax.fusion.capsules import Routing, RoutingOptions, check_routing
from fusion_jax.fusion.inputs import Layers
from fusion_jax.fusion.routing import (
  dynamic_routing,
)
from fusion_jax.fusion.scheme import (
  on_both_sides,
)
from fusion_jax.layers.context import Context


@section('model.*.options')
class DynamicRoutingOptions(RoutingOptions):
  """Dynamic routing (Dou 2019, Algorithm 1)."""

  agreement: Literal['cosine', 'scaled', 'product'] = 'cosine'
  """What is added to the logits: the cosine of capsule and vote, their
  product, or the product scaled by the size of the votes and by
  1 / sqrt(width of a capsule)."""

  agreement_scale: PositiveFloat = 1.0
  """Factor on the agreement."""

  average: Literal['mass', 'gain'] = 'mass'
  """Whether a capsule is the mean of its votes, weighted by the
  couplings ('mass'), or their weighted sum times route_gain ('gain')."""

  route_axis: Literal['output', 'input'] = 'output'
  """The couplings of an input sum to 1 over the capsules ('output'),
  or those of a capsule over the inputs ('input')."""

  route_gain: NotNegative = 0.0
  """With average='gain': factor on the weighted votes; 0: that which
  makes uniform couplings a mean, capsules / layers for 'output' and 1 for
  'input'."""


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
  DynamicRoutingOptions,
  check=check_routing,
)
