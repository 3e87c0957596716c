"""Openings, which make a fusion start as exactly the model without it.

A fusion that replaces x by y computes x + g * (y - x) instead, where the
opening g is a vector that starts at 0. At g = 0 this is the plain model,
whatever y is; at g = 1 it is the fusion itself. Schemes whose parameters can
give y = x start as identity maps and have no opening.

Axis letters: B batch, T positions, D model width.
"""

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from fusion_jax.config import ModelConfig, Side
from fusion_jax.fusion.inputs import per_layer_norms
from fusion_jax.layers.dense import parameter
from fusion_jax.layers.sow import sow


class Opening(nn.Module):
  """Blend x + g * (y - x) with a vector g that starts at 0.

  The form is that of the residual weights of ReZero (Bachlechner et al. 2020)
  and LayerScale (Touvron et al. 2021), between two tensors.

  Telemetry: 'opening', the mean of |g|.
  """

  config: ModelConfig

  def setup(self):
    zeros, shape = nn.initializers.zeros_init(), (self.config.width,)
    self.gate = parameter(self, 'gate', zeros, ('norm',), shape)

  def values(self) -> Float[Array, ' D']:
    """Return g, float32."""
    sow(self, 'telemetry', 'opening', jnp.abs(self.gate).mean())
    return self.gate

  def __call__(
    self, plain: Float[Array, '*#B T D'], fused: Float[Array, '*B T D']
  ) -> Float[Array, '*B T D']:
    """Return plain + g * (fused - plain), computed in float32."""
    x, y = plain.astype(jnp.float32), fused.astype(jnp.float32)
    return (x + self.values() * (y - x)).astype(fused.dtype)


def reads_plain_layers(config: ModelConfig, side: Side) -> bool:
  """Return whether an identity map of the top layer gives the plain model.

  It does where the fused layers have no norm of their own, and with pre-norm,
  where the norm at the end of the stack changes nothing: LN(LN(x)) = LN(x).
  """
  return config.norm == 'pre' or not per_layer_norms(config, side)
