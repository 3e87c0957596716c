"""Residuals without a scheme: B2T, DeepNorm and skip gains.

Takase et al. (2023), "B2T Connection"; Wang et al. (2022), "DeepNet";
Pagliardini et al. (2024), DenseFormer, the baseline with gains.

Axis letters: B batch, T positions, D model width.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from fusion_jax.config import ModelConfig, Side
from fusion_jax.config.fusion import SUBLAYERS
from fusion_jax.layers.context import Context, States
from fusion_jax.layers.dense import parameter
from fusion_jax.layers.residual import Residual, ResidualState
from fusion_jax.layers.sow import sow

# What the names of maps end with that make logits of an attention: the softmax
# bounds what these change, so that DeepNorm does not make them smaller.
_LOGITS = 'query', 'key'


class InsideLayer(NamedTuple):
  """State between the sublayers: what the next one reads, and H[l-1]."""

  x: States
  bottom: States


class BottomToTopResidual(Residual):
  """Residual of a post-norm layer whose last sum has its input once more.

    x[s+1] = LN(x[s] + dropout(f(x[s])));  at the last sublayer
    x[s+1] = LN(x[0] + x[s] + dropout(f(x[s])))

  Source: Takase et al. (2023), section 3, with x[0] the input of the layer.
  """

  side: Side
  number: int

  def before(self, x: Any, context: Context) -> tuple[States, None]:
    """Return the input of f; see `Residual.before`."""
    del context
    return x.x if isinstance(x, InsideLayer) else x, None

  def after(
    self,
    x: Any,
    y: States,
    context: Context,
    kept: None = None,
    scale: Float[Array, ''] | None = None,
  ) -> Any:
    """Return the state after the sublayer; see `Residual.after`."""
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

  def skip(self, x: States) -> States:
    """Return alpha x."""
    return deep_norm_alpha(self.config, self.side) * x


def deep_norm_alpha(config: ModelConfig, side: Side) -> float:
  """Return the factor alpha of the residual."""
  if side == 'decoder':
    return (3 * config.decoder_layers) ** 0.25
  return 0.81 * _both_depths(config)


def deep_norm_beta(config: ModelConfig, side: Side) -> float:
  """Return the factor beta of initial weights."""
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

  def skip(self, x: States) -> States:
    """Return g x, computed in float32, in the dtype of x."""
    sow(self, 'telemetry', 'skip_gain', self.skip_gain)
    return (self.skip_gain * x.astype(jnp.float32)).astype(x.dtype)


class ResidualPlug(NamedTuple):
  """What is at the plug point 'residual' of a stack.

  Attributes:
    module: Residual of a sublayer, made from the model's configuration, the
      side and the number of the sublayer, counted from 0 through the stack.
    state: Function that returns the state of a stack.
    read: Function that returns the module that reads the last state; where it
      returns None, H[L] is the output of the stack.
  """

  module: Callable[[ModelConfig, Side, int], Residual]
  state: Callable[[ModelConfig, Side], ResidualState]
  read: Callable[[ModelConfig, Side], nn.Module | None]


def _residual(config: ModelConfig, side: Side, number: int) -> Residual:
  if config.residual == 'b2t':
    return BottomToTopResidual(config, side, number)
  if config.residual == 'deepnorm':
    return DeepNormResidual(config, side)
  gains = config.side(side).skip_gains
  return GainResidual(config) if gains else Residual(config)


# What schemes have that leave the residual alone.
PLAIN = ResidualPlug(
  _residual, lambda config, side: ResidualState(), lambda config, side: None
)
