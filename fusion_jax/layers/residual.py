"""Norms, and the residual connection around a sublayer.

Axis letters: D model width.
"""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float

from fusion_jax.config import ModelConfig
from fusion_jax.layers.context import Context, States
from fusion_jax.layers.dropout import Dropout


def layer_norm(config: ModelConfig, scale: float = 1.0) -> nn.LayerNorm:
  """Return layer normalisation with scale and offset, statistics in float32."""
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


class ResidualState:
  """State of a stack between its layers: here H[l] itself.

  A state is one array or a tree of arrays, batch first. Others are made of H[0]
  by `open`, and give H[l] by `close`.
  """

  # Whether the state is H[l], for which a layer connection may put its own.
  is_layer: ClassVar[bool] = True

  def open(self, x: States) -> Any:
    """Return the state before the first layer, from H[0]."""
    return x

  def close(self, state: Any) -> States:
    """Return H[l], from the state after layer l."""
    return state

  def skipped(self, before: Any, after: Any) -> Any:
    """Return the state after a layer that is left out, formed as `after`."""
    del after
    return before

  def keep(self, kept: Bool[Array, ''], before: Any, after: Any) -> Any:
    """Return the state after a layer if it is kept, else as if it were not."""
    others = self.skipped(before, after)
    return jax.tree.map(lambda x, y: jnp.where(kept, y, x), others, after)


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

  def before(self, x: Any, context: Context) -> tuple[States, Any]:
    """Return the input of f, and what `after` needs beside its output."""
    del context
    return self.norm(x) if self.config.norm == 'pre' else x, None

  def skip(self, x: States) -> States:
    """Return what the output of f is added to: x itself."""
    return x

  def after(
    self,
    x: Any,
    y: States,
    context: Context,
    kept: Any = None,
    scale: Float[Array, ''] | None = None,
  ) -> Any:
    """Return the state after the sublayer, from that before it and y = f(h).

    Args:
      x: State before the sublayer.
      y: Output of f.
      context: Context of the pass.
      kept: What `before` gave with the input of f.
      scale: Scale a of norm='rezero', float32.
    """
    y = self.dropout(y, context.deterministic)
    if scale is not None:
      y = scale.astype(y.dtype) * y
    x = self.skip(x) + y
    return self.norm(x) if self.config.norm == 'post' else x
