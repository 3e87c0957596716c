"""Weights of layers that schemes learn or compute: a row of `ROWS` for each.

A reader, such as a layer, gives a weight to each of its sources, such as the
layers below it or the streams. What positions compute is sown into 'views'; a
scheme from outside the package sows 'layer_weights' and declares its views.

Axis letters: B batch, T positions, K sources, C ways, N streams, L layers, D
model width, P hops, parts or positions, I iterations, M moments.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fusion_jax.analysis import passes
from fusion_jax.analysis.run_with_text import nullable
from fusion_jax.config import ModelConfig, Side, SideConfig
from fusion_jax.errors import InputError
from fusion_jax.fusion import mudd
from fusion_jax.fusion.dlcl import predecessors
from fusion_jax.fusion.grn import apart
from fusion_jax.fusion.inputs import WAYS
from fusion_jax.fusion.linear import block_norms
from fusion_jax.fusion.scheme import DeclaredView, scheme_of

_SUBLAYERS = 'self_attention', 'cross_attention', 'feed_forward'
_DECLARED = 'layer_weights'
# Axes of what is declared for each view: [K], and [B, T, K].
_AXES: Mapping[DeclaredView, int] = {'layer_weights': 1, 'position_weights': 3}

_STATIC = {'static': True}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Weights:
  """Weights [B, T, K] of the sources of a reader, or what is made of them.

  The way is what they are for, as 'query' or 'write'; a reader is 'layer 2' or
  'output'.
  """

  way: str = dataclasses.field(metadata=_STATIC)
  reader: str = dataclasses.field(metadata=_STATIC)
  sources: tuple[str, ...] = dataclasses.field(metadata=_STATIC)
  values: Any

  @property
  def group(self) -> tuple[str, str]:
    """What is shown together, and the reader in it.

    The memories of the decoder's layers are a group for each of their ways.
    """
    kind, _, layer = self.way.partition('_')
    if not layer:
      return self.way, self.reader
    group = kind if kind == 'memory' else f'memory {kind}'
    return group, f'decoder layer {layer}'


class Stack(NamedTuple):
  """What a side sowed or has as parameters."""

  tree: Mapping[str, Any]
  config: ModelConfig
  side: Side

  @property
  def fusion(self) -> SideConfig:
    return self.config.side(self.side)

  @property
  def depth(self) -> int:
    return self.config.layers(self.side)

  @property
  def fused(self) -> tuple[str, ...]:
    """Names of the layers that the scheme reads."""
    scheme = scheme_of(self.config, self.side)
    return _names('H', scheme.layers_read(self.config, self.side))


Reader = Callable[[Stack], Iterator[Weights]]


def _matrix(weights: Sequence[Weights]) -> dict[str, Any]:
  """Return a row for each way of each reader, with None for other layers."""
  longest = max((w.sources for w in weights), key=len)
  readers = [w.reader for w in weights]
  rows = [
    f'{w.reader}, {w.way}' if readers.count(w.reader) > 1 else w.reader
    for w in weights
  ]
  values = np.full((len(weights), len(longest)), np.nan)
  for row, w in zip(values, weights, strict=True):
    row[: len(w.sources)] = w.values
  return {'layers': list(longest), 'rows': rows, 'weights': nullable(values)}


def _norms(weights: Sequence[Weights]) -> dict[str, Any]:
  (norms,) = weights
  return {'layers': list(norms.sources), 'norms': norms.values.tolist()}


def _spread(weights: Sequence[Weights]) -> dict[str, Any]:
  """Return mean and deviation over positions and features."""
  (powers,) = weights
  named = passes.moments(powers.values[None], np.ones(1))
  spread = {name: values[0].tolist() for name, values in named.items()}
  return {'layers': list(powers.sources)} | spread


class Row(NamedTuple):
  """How the weights of a scheme are read.

  Attributes:
    positions: Reader of the weights that positions compute, None if none do.
    layers: Reader of what is averaged for the weights of layers.
    stored: Reader of the weights of layers that are parameters.
    numbers: Numbers of the weights of layers.
    sown: Where `layers` reads.
    constant: Whether, with its options, all positions have the same weights.
  """

  positions: Reader | None = None
  layers: Reader | None = None
  stored: Reader | None = None
  numbers: Callable[[Sequence[Weights]], dict[str, Any]] = _matrix
  sown: Literal['views', 'telemetry'] = 'views'
  constant: Callable[[Any], bool] = lambda options: False


def _names(letter: str, numbers: Sequence[int]) -> tuple[str, ...]:
  return tuple(f'{letter}[{n}]' for n in numbers)


def _sums(stack: Stack) -> Iterator[Weights]:
  """Yield the weights 'weights_l' [..., C, K] of mudd and grn, way by way."""
  options, depth = stack.fusion, stack.depth
  letter = 'y' if options.fusion == 'grn' else 'H'
  for layer in range(depth + 1):
    if (weights := stack.tree['connection'].get(f'weights_{layer}')) is None:
      continue
    if options.fusion == 'mudd':
      ways = mudd.sum_names(stack.config, stack.side, layer)
    else:
      ways = WAYS[options.ways if layer < depth else 1]
    reader = f'layer {layer + 1}' if layer < depth else 'output'
    sources = _names(letter, range(layer + 1))
    by_way = jnp.moveaxis(apart(jnp.asarray(weights), layer + 1), -2, 0)
    for way, values in zip(ways, by_way, strict=True):
      yield Weights(way, reader, sources, values)


def _residuals(stack: Stack) -> Iterator[tuple[str, Mapping[str, Any]]]:
  """Yield the name of each reader of the state, and what it sowed."""
  for layer in range(stack.depth):
    inside = stack.tree.get(f'layer_{layer}', {})
    if 'layers' in stack.tree:
      inside = jax.tree.map(lambda x, n=layer: x[n], stack.tree['layers'])
    for name in _SUBLAYERS:
      if f'{name}_residual' in inside:
        reader = f'layer {layer + 1} {name.replace("_", "-")}'
        yield reader, inside[f'{name}_residual']
  if 'state_read' in stack.tree:
    yield 'output', stack.tree['state_read']


def _streams(stack: Stack) -> Iterator[Weights]:
  """Yield how sublayers read, write and mix the streams."""
  count = range(1, stack.fusion.options.streams + 1)
  streams = tuple(f'stream {i}' for i in count)
  pairs = tuple(f'{i}>{j}' for i in count for j in count)
  for reader, inside in _residuals(stack):
    for way in ('read', 'write', 'mix'):
      if way in inside:
        values = inside[way].reshape(*inside[way].shape[:2], -1)
        names = pairs if way == 'mix' else streams
        yield Weights(way, reader, names, values)


def _outputs(stack: Stack) -> Iterator[Weights]:
  """Yield the weights of attention residuals, as means over the heads."""
  first = 0 if stack.fusion.options.kind == 'replace' else 1
  for reader, inside in _residuals(stack):
    if 'attention' in inside:
      values = inside['attention']['weights'].mean(-1)
      names = _names('v', range(first, first + values.shape[2]))
      yield Weights('read', reader, names, values)


def _combination(stack: Stack) -> Iterator[Weights]:
  """Yield the weights of a dynamic combination, as means over the features."""
  weights: Float[Array, 'B T L D'] = stack.tree['read_out']['layer_weights']
  values = weights.astype(jnp.float32).mean(-1)
  yield Weights('combination', 'output', stack.fused, values)


def _features(stack: Stack) -> Iterator[Weights]:
  """Yield mean and mean square over the features of the same weights."""
  powers = powers_of(stack.tree['read_out']['layer_weights']).mean(-2)
  yield Weights('combination', 'output', stack.fused, powers)


def _hops(stack: Stack) -> Iterator[Weights]:
  """Yield the attention of each hop to the layers."""
  attention: Float[Array, 'B T L P'] = stack.tree['read_out']['hop_attention']
  for hop, values in enumerate(jnp.moveaxis(attention, -1, 0), start=1):
    yield Weights('hop', f'hop {hop}', stack.fused, values)


def _shares(stack: Stack) -> Iterator[Weights]:
  """Yield what share of the couplings of a capsule each layer has.

  They are those of the last iteration, as means over the output capsules.
  """
  couplings: Float[Array, 'B T I L N'] = stack.tree['read_out']['couplings']
  last = couplings[:, :, -1].astype(jnp.float32)
  values = (last / last.sum(2, keepdims=True)).mean(-1)
  yield Weights('share', 'output', stack.fused, values)


def _declared(stack: Stack, view: DeclaredView) -> Iterator[Weights]:
  """Yield the weights of a scheme from outside that declares a view."""
  named = {
    '/'.join(part.key for part in path[:-1]).replace('read_out', 'output'): x
    for path, x in jax.tree_util.tree_leaves_with_path(stack.tree)
    if path[-1].key == _DECLARED
  }
  sources, axes = stack.fused, _AXES[view]
  shapes = [x.shape for x in named.values()]
  wrong = [x for x in shapes if len(x) != axes or x[-1] > len(sources)]
  if wrong or not named:
    where = 'telemetry' if axes == 1 else 'views'
    wanted = 'K' if axes == 1 else 'batch, positions, K'
    raise InputError(
      f'fusion={stack.fusion.fusion!r} declares the view {view}, which '
      f'needs {_DECLARED!r} of shape [{wanted}] in {where!r}, K <= '
      f'{len(sources)}; it sows {list(wrong[0]) if wrong else "none"}'
    )
  for reader, values in named.items():
    # A mean of the batch is the same at all positions.
    values = values.reshape((1,) * (3 - axes) + values.shape)
    yield Weights('weights', reader, sources[: values.shape[-1]], values)


def _blocks(stack: Stack) -> Iterator[Weights]:
  """Yield the norms of the layers' matrices in a linear combination."""
  norms = block_norms(stack.tree['read_out'], stack.depth)
  sources = _names('H', range(1, stack.depth + 1))
  yield Weights('norm', 'output', sources, norms)


def _static(stack: Stack) -> Iterator[Weights]:
  """Yield the weights of grn that no position changes, mean over features."""
  means = {}
  for n in range(stack.depth + 1):
    weights = np.asarray(stack.tree['connection'][f'static_{n}'])
    means[f'weights_{n}'] = _mean_of_features(weights)
  return _sums(stack._replace(tree={'connection': means}))


def _mean_of_features(
  weights: Float[np.ndarray, 'I J *D'],
) -> Float[np.ndarray, 'I J']:
  return weights.reshape(*weights.shape[:2], -1).mean(-1)


def _dlcl(stack: Stack) -> Iterator[Weights]:
  """Yield the weights w_lk after layer l."""
  weights = np.asarray(stack.tree['connection']['weights'])
  options, count = stack.fusion.options, len(weights)
  read = predecessors(count, options.window, options.dilation, options.period)
  for layer, mask in enumerate(read, start=1):
    values = np.full(count, np.nan)
    values[mask] = weights[layer - 1, mask]
    reader = f'layer {layer}' if layer < count else 'output'
    yield Weights('weights', reader, _names('H', range(count)), values)


def _transparent(stack: Stack) -> Iterator[Weights]:
  """Yield the weights by layer of the decoder, averaged over features."""
  weights = jax.nn.softmax(stack.tree['read_out']['weights'], axis=0)
  means = _mean_of_features(np.asarray(weights))
  for layer, values in enumerate(means.T, start=1):
    sources = _names('H', range(len(values)))
    yield Weights('weights', f'layer {layer}', sources, values)


ROWS: Mapping[str, Row] = {
  'linear': Row(stored=_blocks, numbers=_norms),
  'dlcl': Row(stored=_dlcl),
  'transparent': Row(stored=_transparent),
  'mudd': Row(_sums, _sums),
  'grn': Row(
    _sums, _sums, _static, constant=lambda side: side.options.kind != 'dynamic'
  ),
  'dynamic_combination': Row(_combination, _features, numbers=_spread),
  'hops': Row(_hops),
  'dynamic_routing': Row(_shares),
  'em_routing': Row(_shares),
  'attention_residuals': Row(_outputs),
  'hyper_connections': Row(
    _streams, constant=lambda side: side.options.kind == 'static'
  ),
}


def row_of(config: ModelConfig, side: Side) -> Row:
  """Return the row of a side's scheme, or of the views that it declares."""
  options, scheme = config.side(side), scheme_of(config, side)
  if options.fusion in ROWS:
    row = ROWS[options.fusion]
    if row.constant(options):
      return Row(stored=row.stored)
    return row._replace(stored=None) if row.layers else row
  layers, positions = (
    functools.partial(_declared, view=view) if view in scheme.views else None
    for view in _AXES
  )
  return Row(positions, layers, sown='telemetry')


def powers_of(values: Float[Array, '*axes']) -> Float[Array, '*axes 2']:
  """Return the values and their squares, side by side, in float32."""
  values = values.astype(jnp.float32)
  return jnp.stack([values, jnp.square(values)], -1)
