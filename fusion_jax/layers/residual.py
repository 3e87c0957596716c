"""Norms, and the residual connection around a sublayer.

Axis letters: D model width.
"""

import dataclasses

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from fusion_jax.config import ModelConfig
from fusion_jax.layers.dropout import Dropout


def layer_norm(config: ModelConfig, scale: float = 1.0) -> nn.LayerNorm:
  """Return layer normalisation with scale and offset, statistics in float32.

  Args:
    config: Model configuration.
    scale: Start of the scale.
  """
  return nn.LayerNorm(
    epsilon=config.norm_epsilon,
    dtype=jnp.dtype(config.compute_dtype),
    use_fast_variance=False,
    scale_init=nn.with_logical_partitioning(
      nn.initializers.constant(scale), ('norm',)
    ),
    bias_init=nn.with_logical_partitioning(
      nn.initializers.zeros_init(), ('norm',)
    ),
  )


def plain_norm(config: ModelConfig) -> nn.LayerNorm:
  """Return layer normalisation without scale and offset."""
  return nn.LayerNorm(
    epsilon=config.norm_epsilon,
    dtype=jnp.dtype(config.compute_dtype),
    use_fast_variance=False,
    use_scale=False,
    use_bias=False,
  )


@dataclasses.dataclass(frozen=True)
class Streams:
  """State of a stack between its layers: one stream, or several side by side.

  Attributes:
    count: Number of streams N.
  """

  count: int = 1

  def open(self, x: Float[Array, 'B T D']) -> Float[Array, 'B T *N D']:
    """Return the state before the first layer: H[0] in every stream."""
    if self.count == 1:
      return x
    shape = *x.shape[:-1], self.count, x.shape[-1]
    return jnp.broadcast_to(x[..., None, :], shape)

  def close(self, state: Float[Array, 'B T *N D']) -> Float[Array, 'B T D']:
    """Return H[l], the mean of the streams after layer l."""
    if self.count == 1:
      return state
    return state.mean(-2, dtype=jnp.float32).astype(state.dtype)


class Residual(nn.Module):
  """Norm, dropout and residual sum around a sublayer f.

  norm='post': LN(x + dropout(f(x))). norm='pre': x + dropout(f(LN(x))).
  norm='rezero': x + a dropout(f(x)); Bachlechner et al. (2020), Eq. 1.
  """

  config: ModelConfig

  def setup(self):
    if self.config.norm != 'rezero':
      self.norm = layer_norm(self.config)
    self.dropout = Dropout(self.config.dropout, self.config.dropout_generator)

  def before(self, x: Float[Array, '*batch D']) -> Float[Array, '*batch D']:
    """Return the input of f."""
    return self.norm(x) if self.config.norm == 'pre' else x

  def after(
    self,
    x: Float[Array, '*batch D'],
    y: Float[Array, '*batch D'],
    deterministic: bool,
    scale: Float[Array, ''] | None = None,
  ) -> Float[Array, '*batch D']:
    """Return the output, from the input x and y = f(before(x)).

    Args:
      x: Input of the sublayer.
      y: Output of f.
      deterministic: Whether dropout is off.
      scale: Scale a of norm='rezero', float32.

    Returns:
      The sum; with norm='post' it is normalised.
    """
    y = self.dropout(y, deterministic)
    if scale is not None:
      y = scale.astype(y.dtype) * y
    x = x + y
    return self.norm(x) if self.config.norm == 'post' else x
