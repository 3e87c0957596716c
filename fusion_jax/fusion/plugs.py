"""The modules at the plug points of a stack, as its config chooses them.

Stacks ask here, and know no scheme by name.
"""

from typing import Any

from flax import linen as nn

from fusion_jax.config import ModelConfig, Side
from fusion_jax.config.fusion import SIDES
from fusion_jax.fusion.feed_forward import LayerEmbedding
from fusion_jax.fusion.inputs import InputNorms, Opening
from fusion_jax.fusion.residuals import with_initial_gains
from fusion_jax.fusion.scheme import Plug, has_opening, scheme_of, source_of
from fusion_jax.layers.attention import MultiHeadAttention


def module_at(
  plug: Plug, config: ModelConfig, side: Side, table: nn.Module | None = None
) -> nn.Module | None:
  """Return the module of a side at a plug point; None without one.

  Args:
    plug: Plug point.
    config: Model configuration.
    side: Side of the stack.
    table: Layer embeddings that both sides share, if there are any.
  """
  scheme = scheme_of(config, side)
  if scheme.plugs.get(side) != plug:
    return None
  if scheme.reads_layer_embedding(config, side):
    return scheme.modules[side](config, side, table)
  return scheme.modules[side](config, side)


def input_norms(config: ModelConfig, side: Side) -> InputNorms | None:
  """Return the norms of the layers that are fused after the stack, if any."""
  scheme = scheme_of(config, side)
  if scheme.plugs.get(side) not in ('layer aggregation', 'prediction'):
    return None
  return InputNorms(config, side, scheme.layers_read(config, side))


def openings(config: ModelConfig, side: Side) -> dict[str, Opening]:
  """Return the openings of all places where a stack may be fused, by name.

  They are 'input_N' and 'output_N' of layer N (L + 1 for what follows the
  stack), and 'features'; openings that are not used have no parameters. Empty
  without start='baseline', or where the scheme starts as an identity map.
  """
  if not has_opening(config, side):
    return {}
  layers = range(1, config.layers(side) + 2)
  places = [f'{end}_{n}' for n in layers for end in ('input', 'output')]
  return {place: Opening(config) for place in (*places, 'features')}


def layer_embedding(config: ModelConfig) -> LayerEmbedding | None:
  """Return the layer embeddings of both sides; None where no side reads them.

  Source: Wang et al. (2018), Eq. 4.
  """
  rows = ((scheme_of(config, side), side) for side in SIDES)
  read = any(row.reads_layer_embedding(config, side) for row, side in rows)
  return LayerEmbedding(config) if read else None


def self_attention(
  config: ModelConfig, side: Side, index: int
) -> MultiHeadAttention:
  """Return the self-attention of layer `index`, counted from 1."""
  return (
    scheme_of(config, side).self_attention(config, side, index)
    or source_of(config, side).self_attention(config, side, index)
    or MultiHeadAttention(config)
  )


def cross_attention(config: ModelConfig, index: int) -> MultiHeadAttention:
  """Return the cross-attention of decoder layer `index`, counted from 1."""
  source = source_of(config, 'decoder')
  return source.cross_attention(config, index) or MultiHeadAttention(config)


def started(config: ModelConfig, parameters: Any) -> Any:
  """Return fresh parameters with the start that schemes and residuals ask."""
  for side in SIDES:
    stack = scheme_of(config, side).initial(config, side, parameters[side])
    parameters = {**parameters, side: stack}
  return with_initial_gains(config, parameters)
