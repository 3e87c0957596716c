"""Layer aggregation by dynamic routing; Dou et al. (AAAI 2019), Eq. 5-9.

Axis letters: B batch, T positions, D model width, L layers, N output capsules,
C width of an output capsule.
"""

import functools
from typing import Literal

import jax
from jaxtyping import Array, Float

from fusion_jax.config.section import section
from fusion_jax.fusion.capsules import Routing, RoutingOptions, check_routing
from fusion_jax.fusion.inputs import Layers
from fusion_jax.fusion.routing import dynamic_routing
from fusion_jax.fusion.scheme import on_both_sides
from fusion_jax.layers.context import Context


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


SCHEME = on_both_sides(
  'dynamic_routing',
  DynamicRouting,
  'layer aggregation',
  'Dou et al. 2019, Eq. 5-9',
  DynamicRoutingOptions,
  check=check_routing,
  routes=True,
)
