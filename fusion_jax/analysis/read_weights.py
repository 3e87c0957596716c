"""Weights that positions compute, as every scheme hands them out.

A reader, such as a layer, gives a weight to each of its sources, such as the
layers below it or the streams. Readers of the same kind of sources are a group.

Axis letters: B batch, T positions, K sources, C ways, N streams, L layers, G
heads, P hops, I iterations.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fusion_jax.analysis.declared import declares, sources, sown_weights
from fusion_jax.config import ModelConfig, Side
from fusion_jax.fusion import layers_fused, mudd
from fusion_jax.fusion.grn import apart
from fusion_jax.fusion.streams import WAYS

_SUBLAYERS = 'self_attention', 'cross_attention', 'feed_forward'


@functools.partial(
  jax.tree_util.register_dataclass,
  data_fields=['values'],
  meta_fields=['group', 'reader', 'sources'],
)
@dataclasses.dataclass(frozen=True)
class ReadWeights:
  """Weights of the sources of a reader.

  Attributes:
    group: Name of the kind of weights: 'query', 'write'.
    reader: Name of the reader: 'layer 2', 'output'.
    sources: Names of the sources.
    values: Weights [B, T, K], or what is made of them.
  """

  group: str
  reader: str
  sources: tuple[str, ...]
  values: Any


# Function from what the modules of a side sowed to its weights.
Reader = Callable[[Mapping[str, Any], ModelConfig, Side], Iterator[ReadWeights]]


def _numbered(letter: str, first: int, count: int) -> tuple[str, ...]:
  return tuple(f'{letter}[{n}]' for n in range(first, first + count))


def sum_names(config: ModelConfig, side: Side, layer: int) -> tuple[str, ...]:
  """Return the names of the sums of mudd or grn after a layer."""
  own = config.side(side)
  if own.fusion == 'mudd':
    return mudd.sum_names(config, side, layer)
  return WAYS[own.grn.ways if layer < config.layers(side) else 1]


def _sums(
  shown: Mapping[str, Any], config: ModelConfig, side: Side
) -> Iterator[ReadWeights]:
  """Yield the weights of mudd and grn, way by way."""
  own, depth = shown['connection'], config.layers(side)
  letter = 'y' if config.side(side).fusion == 'grn' else 'H'
  for layer in range(depth + 1):
    weights = own.get(f'weights_{layer}')
    if weights is None:
      continue
    reader = f'layer {layer + 1}' if layer < depth else 'output'
    each = jnp.moveaxis(apart(weights, layer + 1), 2, 0)
    names = sum_names(config, side, layer)
    sources = _numbered(letter, 0, layer + 1)
    for way, values in zip(names, each, strict=True):
      yield ReadWeights(*_reader_of(way, reader), sources, values)


def _reader_of(way: str, reader: str) -> tuple[str, str]:
  """Return the group of a sum, and who reads it.

  The memories of the decoder's layers are one group for each of their ways.
  """
  kind, _, layer = way.partition('_')
  if not layer:
    return way, reader
  group = kind if kind == 'memory' else f'memory {kind}'
  return group, f'decoder layer {layer}'


def _residuals(
  shown: Mapping[str, Any], config: ModelConfig, side: Side
) -> Iterator[tuple[str, Mapping[str, Any]]]:
  """Yield the name of each reader of the state, and what it sowed."""
  for layer in range(config.layers(side)):
    own = shown.get(f'layer_{layer}', {})
    if 'layers' in shown:
      own = jax.tree.map(lambda x, n=layer: x[n], shown['layers'])
    for name in _SUBLAYERS:
      if f'{name}_residual' in own:
        reader = f'layer {layer + 1} {name.replace("_", "-")}'
        yield reader, own[f'{name}_residual']
  if 'state_read' in shown:
    yield 'output', shown['state_read']


def _streams(
  shown: Mapping[str, Any], config: ModelConfig, side: Side
) -> Iterator[ReadWeights]:
  """Yield how sublayers read, write and mix the streams."""
  count = range(1, config.side(side).hyper.streams + 1)
  streams = tuple(f'stream {i}' for i in count)
  pairs = tuple(f'{i}>{j}' for i in count for j in count)
  for reader, own in _residuals(shown, config, side):
    for group in ('read', 'write', 'mix'):
      if group in own:
        values = own[group].reshape(*own[group].shape[:2], -1)
        names = pairs if group == 'mix' else streams
        yield ReadWeights(group, reader, names, values)


def _outputs(
  shown: Mapping[str, Any], config: ModelConfig, side: Side
) -> Iterator[ReadWeights]:
  """Yield the weights of attention residuals, as means over the heads."""
  options = config.side(side).attention_residual
  first = 0 if options.kind == 'replace' or options.embedding else 1
  for reader, own in _residuals(shown, config, side):
    if 'attention' in own:
      values = own['attention']['weights'].mean(-1)
      names = _numbered('v', first, values.shape[2])
      yield ReadWeights('read', reader, names, values)


def _fused(config: ModelConfig, side: Side) -> tuple[str, ...]:
  return tuple(f'H[{n}]' for n in layers_fused(config, side))


def _combination(
  shown: Mapping[str, Any], config: ModelConfig, side: Side
) -> Iterator[ReadWeights]:
  """Yield the weights of a dynamic combination, as means over the features."""
  weights: Float[Array, 'B T L D'] = shown['read_out']['layer_weights']
  values = weights.astype(jnp.float32).mean(-1)
  yield ReadWeights('combination', 'output', _fused(config, side), values)


def _hops(
  shown: Mapping[str, Any], config: ModelConfig, side: Side
) -> Iterator[ReadWeights]:
  """Yield the attention of each hop to the layers."""
  attention: Float[Array, 'B T L P'] = shown['read_out']['hop_attention']
  for hop, values in enumerate(jnp.moveaxis(attention, -1, 0), start=1):
    yield ReadWeights('hop', f'hop {hop}', _fused(config, side), values)


def _shares(
  shown: Mapping[str, Any], config: ModelConfig, side: Side
) -> Iterator[ReadWeights]:
  """Yield what share of the couplings of a capsule each layer has.

  They are those of the last iteration, as means over the output capsules.
  """
  couplings: Float[Array, 'B T I L N'] = shown['read_out']['couplings']
  last = couplings[:, :, -1].astype(jnp.float32)
  values = (last / last.sum(2, keepdims=True)).mean(-1)
  yield ReadWeights('share', 'output', _fused(config, side), values)


def _declared(
  shown: Mapping[str, Any], config: ModelConfig, side: Side
) -> Iterator[ReadWeights]:
  """Yield the weights of a scheme from outside that declares the view."""
  found = sown_weights(shown, config, side, 'position_weights')
  for reader, values in found.items():
    names = sources(config, side, values.shape[-1])
    yield ReadWeights('weights', reader, names, values)


_READERS: Mapping[str, Reader] = {
  'mudd': _sums,
  'grn': _sums,
  'hyper_connections': _streams,
  'attention_residuals': _outputs,
  'dynamic_combination': _combination,
  'hops': _hops,
  'dynamic_routing': _shares,
  'em_routing': _shares,
}


def has_read_weights(config: ModelConfig, side: Side) -> bool:
  """Return whether positions of a side compute weights of their own."""
  if declares(config, side, 'position_weights'):
    return True
  own = config.side(side)
  constant = {
    'grn': own.grn.kind != 'dynamic',
    'hyper_connections': own.hyper.kind == 'static'
    and own.hyper.collapse == 'mean',
  }
  return own.fusion in _READERS and not constant.get(own.fusion, False)


def read_weights(
  shown: Mapping[str, Any], config: ModelConfig, side: Side
) -> tuple[ReadWeights, ...]:
  """Return the weights that the positions of a side compute."""
  reader = _READERS.get(config.side(side).fusion, _declared)
  return tuple(reader(shown, config, side))
