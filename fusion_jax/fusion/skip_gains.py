"""Skip gains: a learned weight of what a sublayer adds to.

Pagliardini et al. (2024), DenseFormer, the baseline with gains.

Axis letters: B batch, T positions, D model width.
"""

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from fusion_jax.layers.parameter import parameter
from fusion_jax.layers.residual import Residual
from fusion_jax.layers.sow import sow


class GainResidual(Residual):
  """Residual of a sublayer f whose skip branch has a gain g.

  norm='pre': g x + dropout(f(LN(x))); Pagliardini et al. (2024).
  The other norms have g x in the place of x likewise. g is a scalar of each
  sublayer that starts at 1.

  Telemetry: 'skip_gain', g.
  """

  def setup(self):
    super().setup()
    ones = nn.initializers.ones_init()
    self.skip_gain = parameter(self, 'skip_gain', ones, (), ())

  def skip(self, x: Float[Array, 'B T D']) -> Float[Array, 'B T D']:
    """Return g x, computed in float32, in the dtype of x."""
    sow(self, 'telemetry', 'skip_gain', self.skip_gain)
    return (self.skip_gain * x.astype(jnp.float32)).astype(x.dtype)


SOURCE = 'Pagliardini et al. 2024'
