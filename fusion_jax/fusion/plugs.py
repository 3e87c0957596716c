"""The modules at the plug points of a stack, as its config chooses them.

Stacks, losses and searches ask here, and know no scheme by name.
"""

from typing import Any

from flax import linen as nn
from jaxtyping import Array, Float

from fusion_jax.config import ModelConfig, Side
from fusion_jax.config.fusion import SIDES
from fusion_jax.fusion.connection import LayerConnection
from fusion_jax.fusion.deep_residuals import (
  BottomToTopResidual,
  DeepNormResidual,
  with_initial_gains,
)
from fusion_jax.fusion.feed_forward import LayerEmbedding
from fusion_jax.fusion.inputs import InputNorms
from fusion_jax.fusion.mixture import keep_groups
from fusion_jax.fusion.scheme import Plug, ResidualPlug, Scheme
from fusion_jax.fusion.skip_gains import GainResidual
from fusion_jax.fusion.starts import Opening
from fusion_jax.layers.attention import MultiHeadAttention
from fusion_jax.layers.residual import Residual, ResidualState


def scheme_of(config: ModelConfig, side: Side) -> Scheme | None:
  """Return the scheme of a side; None where the side has none."""
  return config.side(side).scheme


def _module(config: ModelConfig, side: Side, plug: Plug) -> type | None:
  """Return the module class of a side at a plug point; None without one."""
  scheme = scheme_of(config, side)
  if scheme is None or scheme.plugs[side] != plug:
    return None
  return scheme.modules[side]


def connection(config: ModelConfig, side: Side) -> LayerConnection:
  """Return the module that chooses the inputs of the layers of a stack."""
  module = _module(config, side, 'layer connection')
  return LayerConnection() if module is None else module(config, side)


def layer_aggregation(
  config: ModelConfig, side: Side, table: nn.Module | None
) -> nn.Module | None:
  """Return the module that fuses the layers into the output of a stack.

  Args:
    table: Layer embeddings that both sides share, if there are any.

  Returns:
    The module; None: the output of the stack is its last layer.
  """
  module = _module(config, side, 'layer aggregation')
  if module is None:
    return None
  scheme = scheme_of(config, side)
  if scheme and scheme.reads_layer_embedding(config, side):
    return module(config, side, table)
  return module(config, side)


def prediction(config: ModelConfig, side: Side) -> nn.Module | None:
  """Return the module of the groups that predict; None without groups."""
  module = _module(config, side, 'prediction')
  if module is None or reads_embeddings(config):
    return None
  return module(config, side)


def reads_embeddings(config: ModelConfig) -> bool:
  """Return whether the source's embeddings predict too."""
  scheme = scheme_of(config, 'decoder')
  return scheme is not None and scheme.reads_embeddings


def surface_prediction(config: ModelConfig) -> nn.Module | None:
  """Return the module that predicts from the source's embeddings, if any."""
  if not reads_embeddings(config):
    return None
  module = _module(config, 'decoder', 'prediction')
  assert module is not None, 'a prediction reads them'
  return module(config, 'decoder')


def prediction_count(config: ModelConfig) -> int:
  """Return how many predictions the decoder mixes; 0: it has only one."""
  scheme = scheme_of(config, 'decoder')
  return scheme.prediction_count(config) if scheme else 0


def has_opening(config: ModelConfig, side: Side) -> bool:
  """Return whether the fusion of a side starts behind an `Opening`."""
  scheme = scheme_of(config, side)
  if scheme is None or config.side(side).start != 'baseline':
    return False
  return not scheme.starts_as_identity(config, side)


def openings(config: ModelConfig, side: Side) -> dict[str, Opening]:
  """Return the openings of all places where a stack may be fused, by name.

  Returns:
    'input_N' and 'output_N' of layer N (L + 1 for what follows the stack), and
    'features'; openings that are not used have no parameters. Empty without
    start='baseline', or where the scheme starts as an identity map.
  """
  if not has_opening(config, side):
    return {}
  layers = range(1, config.layers(side) + 2)
  places = [f'{end}_{n}' for n in layers for end in ('input', 'output')]
  return {place: Opening(config) for place in (*places, 'features')}


def layers_fused(config: ModelConfig, side: Side) -> tuple[int, ...]:
  """Return the numbers of the layers that the scheme of a side reads.

  Returns:
    Numbers, ascending, 0 for the embedding; empty without a scheme.
  """
  scheme = scheme_of(config, side)
  return () if scheme is None else scheme.layers_read(config, side)


def input_norms(config: ModelConfig, side: Side) -> InputNorms | None:
  """Return the norms of the layers that are fused.

  None without a scheme, for layer connections, which apply norms themselves,
  and for residuals.
  """
  scheme = scheme_of(config, side)
  if scheme is None or scheme.plugs[side] in ('layer connection', 'residual'):
    return None
  return InputNorms(config, side, layers_fused(config, side))


def _residual_plug(config: ModelConfig, side: Side) -> ResidualPlug | None:
  scheme = scheme_of(config, side)
  return None if scheme is None else scheme.residual


def residual_state(config: ModelConfig, side: Side) -> ResidualState:
  """Return what the sublayers of a stack read and write."""
  plug = _residual_plug(config, side)
  return ResidualState() if plug is None else plug.state(config, side)


def state_read(config: ModelConfig, side: Side) -> nn.Module | None:
  """Return the module that reads the state at the end of a stack.

  None where H[L] is the output.
  """
  plug = _residual_plug(config, side)
  return None if plug is None else plug.read(config, side)


def residual(config: ModelConfig, side: Side, number: int) -> Residual:
  """Return the residual of a sublayer, counted from 0 through the stack."""
  if plug := _residual_plug(config, side):
    return plug.module(config, side, number)
  if config.residual == 'b2t':
    return BottomToTopResidual(config, side, number)
  if config.residual == 'deepnorm':
    return DeepNormResidual(config, side)
  gains = config.side(side).skip_gains
  return GainResidual(config) if gains else Residual(config)


def layer_embedding(config: ModelConfig) -> LayerEmbedding | None:
  """Return the layer embeddings of both sides; None where no side reads them.

  Source: Wang et al. (2018), Eq. 4.
  """
  for side in SIDES:
    scheme = scheme_of(config, side)
    if scheme and scheme.reads_layer_embedding(config, side):
      return LayerEmbedding(config)
  return None


def self_attention(
  config: ModelConfig, side: Side, index: int
) -> MultiHeadAttention:
  """Return the self-attention of layer `index`, counted from 1."""
  scheme, source = scheme_of(config, side), config.side(side).source
  if scheme is not None and scheme.self_attention is not None:
    return scheme.self_attention(config, side, index)
  chosen = source and source.self_attention(config, side, index)
  return chosen or MultiHeadAttention(config)


def cross_attention(config: ModelConfig, index: int) -> MultiHeadAttention:
  """Return the cross-attention of decoder layer `index`, counted from 1."""
  source = config.decoder.source
  chosen = source and source.cross_attention(config, index)
  return chosen or MultiHeadAttention(config)


def mixes_memory(config: ModelConfig) -> bool:
  """Return whether cross-attention reads sums with the values of layer 1."""
  source = config.decoder.source
  return source is not None and source.mixes_memory(config)


def inference_depth(config: ModelConfig) -> int:
  """Return the number of decoder layers that the translating groups need.

  Behind an `Opening` it is all layers, because the groups start as the top
  layer.
  """
  scheme = scheme_of(config, 'decoder')
  if scheme is None or has_opening(config, 'decoder'):
    return config.decoder_layers
  return scheme.layers_needed(config)


def predictions_kept(config: ModelConfig) -> tuple[int, int]:
  """Return the half-open range, from 0, of the predictions that translate."""
  scheme = scheme_of(config, 'decoder')
  assert scheme is not None, 'a scheme predicts'
  return scheme.predictions_kept(config)


def inference_groups(
  config: ModelConfig,
  features: Float[Array, 'G M T D'],
  log_weights: Float[Array, 'G *rest'],
) -> tuple[Float[Array, 'K M T D'], Float[Array, 'K *rest']]:
  """Return the groups that translate, with weights that sum to 1."""
  return keep_groups(features, log_weights, *predictions_kept(config))


def started(config: ModelConfig, parameters: Any) -> Any:
  """Return fresh parameters with the start that schemes and residual ask for."""
  for side in SIDES:
    if scheme := scheme_of(config, side):
      stack = scheme.initial(config, side, parameters[side])
      parameters = {**parameters, side: stack}
  return with_initial_gains(config, parameters)
