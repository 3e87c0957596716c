"""The table of fusion schemes, and the modules a stack is built of.

A scheme plugs in at one of four points:

  read-out      (H[0..L], context) -> what follows reads, [B, T, D]
  layer input   H[0..l-1] -> the input of layer l, and the stack's output
  attention     what self- or cross-attention reads
  prediction    H[0..L] -> features of G groups, and their log weights
"""

import dataclasses
import types
from collections.abc import Iterable, Mapping
from typing import Literal

from flax import linen as nn
from jaxtyping import Array, Float

from fusion_jax.config import ModelConfig, Side
from fusion_jax.config.fusion import parse_groups
from fusion_jax.fusion.aggregate import (
  Average,
  FeedForwardFusion,
  Hops,
  LayerEmbedding,
  Linear,
)
from fusion_jax.fusion.capsules import DynamicRouting, EmRouting
from fusion_jax.fusion.connect import (
  DenseConnection,
  Dlcl,
  LayerConnection,
  TransparentAttention,
)
from fusion_jax.fusion.dynamic import DynamicCombination
from fusion_jax.fusion.groups import (
  DecoderGroups,
  EncoderGroups,
  group_count,
  groups_of,
  keep_groups,
  layers_in_groups,
)
from fusion_jax.fusion.inputs import InputNorms
from fusion_jax.fusion.shortcuts import ShortcutAttention
from fusion_jax.fusion.sources import MultiLayerAttention
from fusion_jax.fusion.starts import Opening, has_opening
from fusion_jax.fusion.tree import Hierarchical, Iterative
from fusion_jax.layers.attention import MultiHeadAttention

Plug = Literal['none', 'read-out', 'layer input', 'prediction']


@dataclasses.dataclass(frozen=True)
class Scheme:
  """One value of `SideConfig.fusion`.

  Attributes:
    module: for each side it may be used on.
    plug: where it plugs in, by side.
    source: paper and equations.
    embedding: it fuses H[0] too.
    options: the field of `SideConfig` that holds its options.
  """

  module: Mapping[Side, type[nn.Module]]
  plug: Mapping[Side, Plug]
  source: str
  options: str
  embedding: bool = False


def _both(
  module: type[nn.Module],
  plug: Plug,
  source: str,
  options: str,
  embedding: bool = False,
) -> Scheme:
  return Scheme(
    {'encoder': module, 'decoder': module},
    {'encoder': plug, 'decoder': plug},
    source,
    options,
    embedding,
  )


SCHEMES: Mapping[str, Scheme] = types.MappingProxyType(
  {
    'dense': _both(
      DenseConnection, 'layer input', 'Dou et al. 2018, Eq. 4', 'dense'
    ),
    'linear': _both(Linear, 'read-out', 'Dou et al. 2018, Eq. 5', 'linear'),
    'iterative': _both(
      Iterative, 'read-out', 'Dou et al. 2018, Eq. 6-7', 'agg'
    ),
    'hierarchical': _both(
      Hierarchical, 'layer input', 'Dou et al. 2018, section 3.1.1', 'agg'
    ),
    'average': _both(
      Average, 'read-out', 'Wang et al. 2018, Eq. 3', 'mlrf', True
    ),
    'feed_forward': _both(
      FeedForwardFusion, 'read-out', 'Wang et al. 2018, Eq. 4', 'mlrf', True
    ),
    'hops': _both(Hops, 'read-out', 'Wang et al. 2018, Eq. 5-7', 'mlrf', True),
    'dynamic_combination': _both(
      DynamicCombination, 'read-out', 'Dou et al. 2019, Eq. 4', 'dynamic'
    ),
    'dynamic_routing': _both(
      DynamicRouting, 'read-out', 'Dou et al. 2019, Eq. 5-9', 'routing'
    ),
    'em_routing': _both(
      EmRouting, 'read-out', 'Dou et al. 2019, Eq. 10-16', 'routing'
    ),
    'gtrans': Scheme(
      {'encoder': EncoderGroups, 'decoder': DecoderGroups},
      {'encoder': 'read-out', 'decoder': 'prediction'},
      'Yang et al. 2022, Eq. 2-7',
      'gtrans',
    ),
    'transparent': Scheme(
      {'encoder': TransparentAttention},
      {'encoder': 'read-out'},
      'Bapna et al. 2018, Eq. 1-3',
      'transparent',
      True,
    ),
    'dlcl': _both(
      Dlcl, 'layer input', 'Wang et al. 2019, Eq. 5-7', 'dlcl', True
    ),
  }
)


def _module(config: ModelConfig, side: Side, plug: Plug) -> type | None:
  """The class that a side has at a plug point, if any."""
  scheme = SCHEMES.get(config.side(side).fusion)
  if scheme is None or scheme.plug[side] != plug:
    return None
  return scheme.module[side]


def connection(config: ModelConfig, side: Side) -> nn.Module | LayerConnection:
  """What the layers of a stack read."""
  module = _module(config, side, 'layer input')
  return LayerConnection() if module is None else module(config, side)


def read_out(
  config: ModelConfig, side: Side, table: nn.Module | None
) -> nn.Module | None:
  """What follows a stack reads, or None for its last layer."""
  module = _module(config, side, 'read-out')
  if module is None:
    return None
  if module in (FeedForwardFusion, Hops):
    own = table if config.side(side).mlrf.layer_embedding else None
    return module(config, side, own)
  return module(config, side)


def prediction(config: ModelConfig, side: Side) -> nn.Module | None:
  """The groups that predict, or None."""
  module = _module(config, side, 'prediction')
  return None if module is None else module(config, side)


def openings(config: ModelConfig, side: Side) -> dict[str, Opening]:
  """Return what opens each place of a stack that is fused, by its name.

  Args:
    config: of the model.
    side: of the stack.

  Returns:
    'input_N' of layer N (L + 1 for what follows the stack), 'output_N' and
    'features'; those that are not used have no parameters. Empty without
    start='baseline', or where the scheme starts as an identity map.
  """
  if not has_opening(config, side):
    return {}
  layers = range(1, config.layers(side) + 2)
  places = [f'{end}_{n}' for n in layers for end in ('input', 'output')]
  return {place: Opening(config) for place in (*places, 'features')}


def input_norms(config: ModelConfig, side: Side) -> InputNorms | None:
  """The norms of the layers that a read-out or groups fuse."""
  scheme = SCHEMES.get(config.side(side).fusion)
  if scheme is None or scheme.plug[side] == 'layer input':
    return None
  return InputNorms(config, side, tuple(_layers_read(config, side, scheme)))


def _layers_read(
  config: ModelConfig, side: Side, scheme: Scheme
) -> Iterable[int]:
  options, layers = config.side(side), config.layers(side)
  if options.fusion == 'gtrans':
    return layers_in_groups(config, side)
  if scheme.options == 'mlrf' and not options.mlrf.include_embedding:
    return range(1, layers + 1)
  return range(0 if scheme.embedding else 1, layers + 1)


def layers_fused(config: ModelConfig, side: Side) -> tuple[int, ...]:
  """The numbers of the layers that read-outs, nodes, groups or sums read.

  Args:
    config: of the model.
    side: of the stack.

  Returns:
    Ascending, 0 for the embedding; none where a stack gives its last layer.
  """
  options, count = config.side(side), config.layers(side)
  scheme = SCHEMES.get(options.fusion)
  if scheme is None:
    return ()
  if scheme.plug[side] != 'layer input':
    return tuple(_layers_read(config, side, scheme))
  if options.fusion == 'dense':
    return tuple(range(1 - options.dense.include_embedding, count))
  return tuple(range(0 if scheme.embedding else 1, count + 1))


def layer_embedding(config: ModelConfig) -> LayerEmbedding | None:
  """The table that both sides share (Wang et al. 2018, Eq. 4), if any."""
  sides = (config.encoder, config.decoder)
  used = any(
    side.fusion in ('feed_forward', 'hops') and side.mlrf.layer_embedding
    for side in sides
  )
  return LayerEmbedding(config) if used else None


def self_attention(
  config: ModelConfig, side: Side, index: int
) -> MultiHeadAttention:
  """The self-attention of layer `index`, counted from 1."""
  options = config.side(side)
  if options.multi_layer.layers > 1:
    return MultiLayerAttention(config, side, index)
  if options.shortcut.source != 'none' and options.shortcut.where != 'cross':
    return ShortcutAttention(config, side)
  return MultiHeadAttention(config)


def cross_attention(config: ModelConfig) -> MultiHeadAttention:
  """The cross-attention of every decoder layer."""
  shortcut = config.decoder.shortcut
  if shortcut.source != 'none' and shortcut.where != 'self':
    return ShortcutAttention(config, 'decoder')
  return MultiHeadAttention(config)


def groups_kept(config: ModelConfig) -> tuple[int, int]:
  """The decoder's groups that translate, a half-open range from 0."""
  text = config.decoder.gtrans.inference_groups
  count = group_count(config, 'decoder')
  if not text:
    return 0, count
  return parse_groups(text, count, 'model.decoder.gtrans.inference_groups')


def inference_depth(config: ModelConfig) -> int:
  """The decoder layers that the groups that translate need.

  All of them where groups start at the top layer and open from there.
  """
  if has_opening(config, 'decoder'):
    return config.decoder_layers
  _, last = groups_kept(config)
  return groups_of(config, 'decoder')[last - 1][-1]


def inference_groups(
  config: ModelConfig,
  features: Float[Array, 'G M T D'],
  log_weights: Float[Array, ' G'],
) -> tuple[Float[Array, 'K M T D'], Float[Array, ' K']]:
  """The groups that translate, with their weights summing to 1."""
  return keep_groups(features, log_weights, *groups_kept(config))
