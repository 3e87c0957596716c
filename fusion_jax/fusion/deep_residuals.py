"""Residuals for deep post-norm stacks: bottom-to-top connection and DeepNorm.

Takase et al. (2023), "B2T Connection"; Wang et al. (2022), "DeepNet".

Axis letters: B batch, T positions, D model width.
"""

from typing import Any, NamedTuple

import jax
from jaxtyping import Array, Float

from fusion_jax.config import ModelConfig, Side
from fusion_jax.config.fusion import SUBLAYERS
from fusion_jax.layers.context import Context
from fusion_jax.layers.residual import Residual

# What the names of maps end with that make logits of an attention: the softmax
# bounds what these change, so that DeepNorm does not make them smaller.
_LOGITS = 'query', 'key'


class InsideLayer(NamedTuple):
  """State of a stack between the sublayers of a layer.

  Attributes:
    x: What the next sublayer reads.
  """

  x: Float[Array, 'B T D']
  bottom: Float[Array, 'B T D']


class BottomToTopResidual(Residual):
  """Residual of a post-norm layer whose last sum has its input once more.

    x[s+1] = LN(x[s] + dropout(f(x[s])));  at the last sublayer
    x[s+1] = LN(x[0] + x[s] + dropout(f(x[s])))

  Source: Takase et al. (2023), section 3, with x[0] the input of the layer.
  """

  side: Side
  number: int

  def before(
    self, x: Any, context: Context
  ) -> tuple[Float[Array, 'B T D'], None]:
    """Return the input of f; see `Residual.before`."""
    del context
    return x.x if isinstance(x, InsideLayer) else x, None

  def after(
    self,
    x: Any,
    y: Float[Array, 'B T D'],
    context: Context,
    held: None = None,
    scale: Float[Array, ''] | None = None,
  ) -> Any:
    """Return the state after the sublayer; see `Residual.after`."""
    del held, scale
    x, bottom = x if isinstance(x, InsideLayer) else InsideLayer(x, x)
    total = x + self.dropout(y, context.deterministic)
    if (self.number + 1) % SUBLAYERS[self.side]:
      return InsideLayer(self.norm(total), bottom)
    return self.norm(bottom + total)


class DeepNormResidual(Residual):
  """Residual LN(alpha x + dropout(f(x))).

  With M encoder and N decoder layers alpha is 0.81 (M^4 N)^(1/16) in the
  encoder and (3 N)^(1/4) in the decoder.

  Source: Wang et al. (2022), Table 1.
  """

  side: Side

  def skip(self, x: Float[Array, 'B T D']) -> Float[Array, 'B T D']:
    """Return alpha x."""
    return deep_norm_alpha(self.config, self.side) * x


def deep_norm_alpha(config: ModelConfig, side: Side) -> float:
  """Return the factor of the residual; Wang et al. (2022), Table 1."""
  if side == 'decoder':
    return (3 * config.decoder_layers) ** 0.25
  return 0.81 * _both_depths(config)


def deep_norm_beta(config: ModelConfig, side: Side) -> float:
  """Return the factor of initial weights; Wang et al. (2022), Table 1."""
  if side == 'decoder':
    return (12 * config.decoder_layers) ** -0.25
  return 0.87 / _both_depths(config)


def _both_depths(config: ModelConfig) -> float:
  return (config.encoder_layers**4 * config.decoder_layers) ** (1 / 16)


def with_initial_gains(config: ModelConfig, parameters: Any) -> Any:
  """Return fresh parameters with the initial weights that a residual asks for.

  'b2t': all matrices of the layers times L^-0.5 for L layers in the stack.
  'deepnorm': those times beta with which a sublayer's output grows: all but the
  maps of queries and keys.
  """
  if config.residual == 'plain':
    return parameters

  def scaled(path: tuple[Any, ...], leaf: Array) -> Array:
    keys = [key for key in path if isinstance(key, jax.tree_util.DictKey)]
    return _gain(config, *(key.key for key in keys)) * leaf

  return jax.tree_util.tree_map_with_path(scaled, parameters)


def _gain(config: ModelConfig, stack: str, *names: str) -> float:
  """Return the gain of a parameter, from the parts of its name."""
  in_layer = len(names) > 2 and names[0].startswith('layer')
  if not in_layer or names[-1] != 'kernel':
    return 1.0
  side: Side = 'encoder' if stack == 'encoder' else 'decoder'
  if config.residual == 'b2t':
    return config.layers(side) ** -0.5
  makes_logits = names[-2].rpartition('_')[2] in _LOGITS
  return 1.0 if makes_logits else deep_norm_beta(config, side)
