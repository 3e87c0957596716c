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
from fusion_jax.fusion.residuals import PLAIN, ResidualPlug
from fusion_jax.layers.attention import MultiHeadAttention

Plug = Literal[
  'layer aggregation', 'layer connection', 'prediction', 'attention', 'residual'
]

# Views that a scheme from outside the package can declare.
DeclaredView = Literal['layer_weights', 'position_weights']


class Predictions(NamedTuple):
  """Predictions that a decoder mixes.

  Attributes:
    total: Number of predictions.
    kept: Half-open range, from 0, of those that translate.
    layers: Number of layers that these read.
  """

  total: int
  kept: tuple[int, int]
  layers: int


def layers_above_embedding(config: ModelConfig, side: Side) -> tuple[int, ...]:
  """Return the numbers of H[1..L]."""
  return tuple(range(1, config.layers(side) + 1))


def all_layers(config: ModelConfig, side: Side) -> tuple[int, ...]:
  """Return the numbers of H[0..L]."""
  return tuple(range(config.layers(side) + 1))


def no_layers(config: ModelConfig, side: Side) -> tuple[int, ...]:
  """Return no number, for a scheme that reads no H[l]."""
  return ()


def always(*_: Any) -> bool:
  """Return that a scheme has a property, whatever its options."""
  return True


def _never(*_: Any) -> bool:
  return False


def _nothing(*_: Any) -> None:
  return None


def _as_drawn(config: ModelConfig, side: Side, parameters: Any) -> Any:
  return parameters


@dataclasses.dataclass(frozen=True)
class Scheme:
  """Scheme that a value of `SideConfig.fusion` chooses.

  Attributes:
    name: Value of `SideConfig.fusion`.
    source: Paper and equations.
    options: Class of `SideConfig.options`: one with
      `fusion_jax.config.section.section`, whose fields have types, bounds,
      defaults and a text. With a field `ways`, the number of sums that a layer
      reads, more than 1 replace the keys and values of its self-attention.
    modules: Module for each side that may have the scheme. It is built from
      the model's configuration and the side. An aggregation is called with the
      layers H[0..L], [B, T, D] each, and the context of the pass, and returns
      one layer [B, T, D] in their dtype.
    plugs: Plug point on each of these sides.
    layers_read: Function that returns the numbers of the layers that the scheme
      fuses, ascending; 0 is the embedding.
    reads_layer_embedding: Function that returns whether the module takes a
      third argument, the table of layer embeddings that both sides share.
    starts_as_identity: Function that returns whether the parameters can start
      such that the scheme gives the top layer. With start='baseline', all other
      schemes start behind an `Opening`.
    self_attention: Function that returns the self-attention of a layer, counted
      from 1, where the scheme has its own; None: it has not.
    residual: Residual of its own, if it has one.
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
    check: Function that raises an InputError where the options make no sense in
      a model.
    initial: Function of the fresh parameters of a stack that returns those that
      it starts with.
    predictions: Function that returns the predictions of the decoder; None: it
      has only one.
  """

  name: str
  source: str
  options: type
  modules: Mapping[Side, type[nn.Module]]
  plugs: Mapping[Side, Plug]
  layers_read: Callable[[ModelConfig, Side], tuple[int, ...]] = (
    layers_above_embedding
  )
  reads_layer_embedding: Callable[[ModelConfig, Side], bool] = _never
  starts_as_identity: Callable[[ModelConfig, Side], bool] = _never
  self_attention: Callable[
    [ModelConfig, Side, int], MultiHeadAttention | None
  ] = _nothing
  residual: ResidualPlug = PLAIN
  reads_embeddings: bool = False
  views: tuple[DeclaredView, ...] = ()
  no_gradient: tuple[str, ...] = ()
  norms: tuple[str, ...] = ('post', 'pre', 'rezero')
  rate: float = 1.0
  owns_layer_inputs: Callable[[Any], bool] = _never
  hides_layer_below: Callable[[Any], bool] = _never
  check: Callable[[ModelConfig, Side], None] = _nothing
  initial: Callable[[ModelConfig, Side, Any], Any] = _as_drawn
  predictions: Callable[[ModelConfig], Predictions | None] = _nothing


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
  self_attention: Callable[
    [ModelConfig, Side, int], MultiHeadAttention | None
  ] = _nothing
  cross_attention: Callable[[ModelConfig, int], MultiHeadAttention | None] = (
    _nothing
  )
  check: Callable[[ModelConfig, Side], None] = _nothing
  layers_alike: bool = False
  mixes_memory: Callable[[ModelConfig], bool] = _never


def on_both_sides(
  name: str,
  module: type[nn.Module],
  plug: Plug,
  source: str,
  options: type = NoOptions,
  **others,
) -> Scheme:
  """Return a scheme that is the same in the encoder and in the decoder."""
  modules: dict[Side, type[nn.Module]] = {'encoder': module, 'decoder': module}
  plugs: dict[Side, Plug] = {'encoder': plug, 'decoder': plug}
  return Scheme(name, source, options, modules, plugs, **others)


_NO_SCHEME = Scheme('none', '', NoOptions, {}, {}, no_layers)
_NO_SOURCE = AttentionSource('none', '', NoOptions)


def scheme_of(config: ModelConfig, side: Side) -> Scheme:
  """Return the scheme of a side; a row that fuses nothing where it has none."""
  return config.side(side).scheme or _NO_SCHEME


def source_of(config: ModelConfig, side: Side) -> AttentionSource:
  """Return what the attention of a side reads; a plain row without one."""
  return config.side(side).source or _NO_SOURCE


def starts_as_identity(config: ModelConfig, side: Side) -> bool:
  """Return whether the scheme of a side starts by giving the top layer."""
  asked = config.side(side).start == 'baseline'
  return asked and scheme_of(config, side).starts_as_identity(config, side)


def has_opening(config: ModelConfig, side: Side) -> bool:
  """Return whether the fusion of a side starts behind an `Opening`."""
  chosen = config.side(side)
  fused = chosen.fusion != 'none' and chosen.start == 'baseline'
  return fused and not starts_as_identity(config, side)


def predictions_of(config: ModelConfig) -> Predictions | None:
  """Return the predictions that the decoder mixes; None: it has only one.

  Behind an `Opening` all layers are needed, because the groups start as the top
  layer.
  """
  mixed = scheme_of(config, 'decoder').predictions(config)
  if mixed is not None and has_opening(config, 'decoder'):
    return mixed._replace(layers=config.decoder_layers)
  return mixed
