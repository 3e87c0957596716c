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
from typing import Any, Literal, NamedTuple

from flax import linen as nn

from fusion_jax.config import ModelConfig, Side
from fusion_jax.config.fusion import NoOptions
from fusion_jax.layers.attention import MultiHeadAttention
from fusion_jax.layers.residual import Residual, ResidualState

Plug = Literal[
  'layer aggregation', 'layer connection', 'prediction', 'attention', 'residual'
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


def _no(*_: Any) -> bool:
  return False


def _one(options: Any) -> int:
  return 1


def _as_drawn(config: ModelConfig, side: Side, parameters: Any) -> Any:
  return parameters


def _none(config: ModelConfig) -> int:
  return 0


def _both(config: ModelConfig) -> tuple[int, int]:
  return 0, 2


def _all_of_decoder(config: ModelConfig) -> int:
  return config.decoder_layers


def _takes_all(config: ModelConfig, side: Side) -> None:
  return None


@dataclasses.dataclass(frozen=True)
class Scheme:
  """Scheme that a value of `SideConfig.fusion` chooses.

  Attributes:
    name: Value of `SideConfig.fusion`.
    source: Paper and equations.
    options: Class of `SideConfig.options`: one with
      `fusion_jax.config.section.section`, whose fields have types, bounds,
      defaults and a text.
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
    routes: Whether it has capsules, and telemetry of its couplings.
    reads_embeddings: Whether a prediction reads the output of the stack, after
      any final norm, and a memory of the source's embeddings, in place of
      H[0..L].
    views: Views of the 'layer_weights' that its modules sow: 'layer_weights' of
      numbers [K] in 'telemetry', 'position_weights' of [B, T, K] in 'views',
      for the K lowest of `layers_read`.
    no_gradient: Patterns of the shell over the names of the parameters that
      the gradient need not reach, as those of a hard choice.
    norms: Values of model.norm that it is defined for.
    rate: Factor on the learning rate of what only the fusion has; not 1 where
      that was measured to train worse (`python -m benchmarks.scheme_health`).
    owns_layer_inputs: Function of the options that returns whether layers read
      something else than the layer below.
    hides_layer_below: Likewise, whether what layers read is then no H[l], so
      that no attention can read those beside it.
    ways: Function of the options that returns the number of sums that a layer
      reads; more than 1 replace the keys and values of its self-attention.
    check: Function that raises an InputError where the options make no sense in
      a model.
    initial: Function of the fresh parameters of a stack that returns those that
      it starts with.
    prediction_count: Of a prediction: function that returns how many
      predictions the decoder mixes; 0: it has only one.
    predictions_kept: Of a prediction: function that returns the half-open range
      of the predictions that translate.
    layers_needed: Of a prediction: function that returns the number of layers
      that these read.
  """

  name: str
  source: str
  options: type
  modules: Mapping[Side, type[nn.Module]]
  plugs: Mapping[Side, Plug]
  layers_read: Callable[[ModelConfig, Side], tuple[int, ...]] = (
    layers_above_embedding
  )
  reads_layer_embedding: Callable[[ModelConfig, Side], bool] = _no
  starts_as_identity: Callable[[ModelConfig, Side], bool] = _no
  self_attention: (
    Callable[[ModelConfig, Side, int], MultiHeadAttention] | None
  ) = None
  residual: ResidualPlug | None = None
  routes: bool = False
  reads_embeddings: bool = False
  views: tuple[DeclaredView, ...] = ()
  no_gradient: tuple[str, ...] = ()
  norms: tuple[str, ...] = ('post', 'pre', 'rezero')
  rate: float = 1.0
  owns_layer_inputs: Callable[[Any], bool] = _no
  hides_layer_below: Callable[[Any], bool] = _no
  ways: Callable[[Any], int] = _one
  check: Callable[[ModelConfig, Side], None] = _takes_all
  initial: Callable[[ModelConfig, Side, Any], Any] = _as_drawn
  prediction_count: Callable[[ModelConfig], int] = _none
  predictions_kept: Callable[[ModelConfig], tuple[int, int]] = _both
  layers_needed: Callable[[ModelConfig], int] = _all_of_decoder


@dataclasses.dataclass(frozen=True)
class AttentionSource:
  """What attention reads beside the layer below, by `SideConfig.attention`.

  Attributes:
    name: Value of `SideConfig.attention`.
    source: Paper and equations.
    options: Class of `SideConfig.attention_options`.
    self_attention: Function that returns the self-attention of a layer, counted
      from 1; None where it is the usual one.
    cross_attention: Function that does so for a layer of the decoder.
    check: Function that raises an InputError where the options make no sense in
      a model.
    layers_alike: Whether all layers have the same parameters.
    mixes_memory: Function that returns whether cross-attention reads sums with
      the values of layer 1.
  """

  name: str
  source: str
  options: type
  self_attention: Callable[[ModelConfig, Side, int], MultiHeadAttention | None]
  cross_attention: Callable[[ModelConfig, int], MultiHeadAttention | None]
  check: Callable[[ModelConfig, Side], None]
  layers_alike: bool = False
  mixes_memory: Callable[[ModelConfig], bool] = _no


def on_both_sides(
  name: str,
  module: type[nn.Module],
  plug: Plug,
  source: str,
  options: type = NoOptions,
  **others,
) -> Scheme:
  """Return a scheme that is the same in the encoder and in the decoder.

  Args:
    name: Value of `SideConfig.fusion`.
    module: Module of both sides.
    plug: Plug point of both sides.
    source: Paper and equations.
    options: Class of `SideConfig.options`.
    **others: Further fields of `Scheme`.

  Returns:
    The scheme.
  """
  modules: dict[Side, type[nn.Module]] = {'encoder': module, 'decoder': module}
  plugs: dict[Side, Plug] = {'encoder': plug, 'decoder': plug}
  return Scheme(name, source, options, modules, plugs, **others)
