"""Description of a scheme: where it plugs in.

A scheme plugs in at one of these points:

  layer aggregation  (H[0..L], context) -> output of the stack, [B, T, D]
  layer connection   H[0..l-1] -> input of layer l, and the stack's output
  prediction         H[0..L] -> features of G groups, and their log weights;
                     or so from the stack's output and the source's embeddings
  residual           what a sublayer reads and writes of the stack's state

Shortcuts and multi-layer attention plug in at 'attention', the input of self-
or cross-attention; norm='rezero' plugs in at 'residual' too.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

from flax import linen as nn

from fusion_jax.config import ModelConfig, Side
from fusion_jax.layers.attention import MultiHeadAttention
from fusion_jax.layers.residual import Residual, ResidualState

Plug = Literal[
  'layer aggregation',
  'layer connection',
  'prediction',
  'attention',
  'residual',
]

# Views that a scheme from outside the package can declare.
DeclaredView = Literal['layer_weights', 'position_weights']


class ResidualPlug(NamedTuple):
  """What a scheme at the plug point 'residual' is made of.

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


def layers_above_embedding(config: ModelConfig, side: Side) -> tuple[int, ...]:
  """Return the numbers of H[1..L]."""
  return tuple(range(1, config.layers(side) + 1))


def all_layers(config: ModelConfig, side: Side) -> tuple[int, ...]:
  """Return the numbers of H[0..L]."""
  return tuple(range(config.layers(side) + 1))


def no_layers(config: ModelConfig, side: Side) -> tuple[int, ...]:
  """Return no number, for a scheme that reads no H[l]."""
  return ()


def _never(config: ModelConfig, side: Side) -> bool:
  return False


@dataclasses.dataclass(frozen=True)
class Scheme:
  """Scheme that a value of `SideConfig.fusion` chooses.

  Attributes:
    name: Value of `SideConfig.fusion`.
    source: Paper and equations.
    options: Section of `SideConfig` that has its options.
    modules: Module for each side that may have the scheme. It is built from
      the model's configuration and the side. An aggregation is called with the
      layers H[0..L], [B, T, D] each, and the context of the pass, and returns
      one layer [B, T, D] in their dtype.
    plugs: Plug point on each of these sides.
    layers_read: Function that returns the numbers of the layers that the scheme
      fuses, ascending; 0 is the embedding.
    reads_layer_embedding: Function that returns whether the module takes a
      third argument, the table of layer embeddings that both sides share.
    starts_as_identity: Function that returns whether the parameters start such
      that the scheme gives the top layer. With start='baseline', all other
      schemes start behind an `Opening`.
    self_attention: Function that returns the self-attention of a layer, counted
      from 1, where the scheme has its own; None: it has not.
    residual: Residual of its own, if it has one.
    reads_embeddings: Whether a prediction reads the output of the stack, after
      any final norm, and a memory of the source's embeddings, in place of
      H[0..L].
    own: Section of its options where `options` is 'own': a class with
      `fusion_jax.config.section.section`, whose fields have types, bounds and
      defaults; None: it has no options.
    views: Views of the 'layer_weights' that its modules sow: 'layer_weights' of
      numbers [K] in 'telemetry', 'position_weights' of [B, T, K] in 'views',
      for the K lowest of `layers_read`.
    no_gradient: Patterns of the shell over the names of the parameters that
      the gradient need not reach, as those of a hard choice.
  """

  name: str
  source: str
  options: str
  modules: Mapping[Side, type[nn.Module]]
  plugs: Mapping[Side, Plug]
  layers_read: Callable[[ModelConfig, Side], tuple[int, ...]] = (
    layers_above_embedding
  )
  reads_layer_embedding: Callable[[ModelConfig, Side], bool] = _never
  starts_as_identity: Callable[[ModelConfig, Side], bool] = _never
  self_attention: (
    Callable[[ModelConfig, Side, int], MultiHeadAttention] | None
  ) = None
  residual: ResidualPlug | None = None
  reads_embeddings: bool = False
  own: type | None = None
  views: tuple[DeclaredView, ...] = ()
  no_gradient: tuple[str, ...] = ()


def on_both_sides(
  name: str,
  module: type[nn.Module],
  plug: Plug,
  source: str,
  options: str,
  **others,
) -> Scheme:
  """Return a scheme that is the same in the encoder and in the decoder.

  Args:
    name: Value of `SideConfig.fusion`.
    module: Module of both sides.
    plug: Plug point of both sides.
    source: Paper and equations.
    options: Section of `SideConfig` that has its options.
    **others: Further fields of `Scheme`.

  Returns:
    The scheme.
  """
  modules: dict[Side, type[nn.Module]] = {'encoder': module, 'decoder': module}
  plugs: dict[Side, Plug] = {'encoder': plug, 'decoder': plug}
  return Scheme(name, source, options, modules, plugs, **others)
