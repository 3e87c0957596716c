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
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fusion_jax.analysis.passes import (
  TokenMeans,
  by_part,
  moments,
  sums_by_part,
  token_means,
)
from fusion_jax.analysis.run_with_text import RunWithText
from fusion_jax.analysis.view import SIDES, Numbers, nullable
from fusion_jax.config import ModelConfig, Side
from fusion_jax.errors import InputError
from fusion_jax.fusion import mudd
from fusion_jax.fusion.dlcl import predecessors
from fusion_jax.fusion.grn import apart
from fusion_jax.fusion.linear import block_norms
from fusion_jax.fusion.plugs import layers_fused, scheme_of
from fusion_jax.fusion.scheme import DeclaredView
from fusion_jax.fusion.streams import WAYS

_SUBLAYERS = 'self_attention', 'cross_attention', 'feed_forward'
_DECLARED = 'layer_weights'
# Axes of what is declared for each view: [K], and [B, T, K].
_AXES: Mapping[DeclaredView, int] = {'layer_weights': 1, 'position_weights': 3}


@functools.partial(
  jax.tree_util.register_dataclass,
  data_fields=['values'],
  meta_fields=['way', 'reader', 'sources'],
)
@dataclasses.dataclass(frozen=True)
class Weights:
  """Weights of the sources of a reader.

  Attributes:
    way: What they are for: 'query', 'write'.
    reader: Name of the reader: 'layer 2', 'output'.
    sources: Names of the sources.
    values: Weights [B, T, K], or what is made of them.
  """

  way: str
  reader: str
  sources: tuple[str, ...]
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


# What a side sowed or has as parameters, and the side.
_Tree = Mapping[str, Any]
Reader = Callable[[_Tree, ModelConfig, Side], Iterator[Weights]]
# Numbers of `layer_weights`, of parameters or of means over the positions.
Layers = Callable[[Any, ModelConfig, Side], dict[str, Any]]


class Row(NamedTuple):
  """How the weights of a scheme are read.

  Attributes:
    positions: Reader of the weights that positions compute, None if none do.
    means: Numbers of the layers from means over the positions.
    averaged: What `means` are of; None: what `positions` reads.
    stored: Numbers of the layers from parameters.
    constant: Whether, with its options, all positions have the same weights.
  """

  positions: Reader | None = None
  means: Layers | None = None
  averaged: Callable[[_Tree, ModelConfig, Side], Any] | None = None
  stored: Layers | None = None
  constant: Callable[[Any], bool] = lambda options: False


def _names(letter: str, numbers: Sequence[int]) -> tuple[str, ...]:
  return tuple(f'{letter}[{n}]' for n in numbers)


def _fused(config: ModelConfig, side: Side) -> tuple[str, ...]:
  return _names('H', layers_fused(config, side))


def _sums(sown: _Tree, config: ModelConfig, side: Side) -> Iterator[Weights]:
  """Yield the weights 'weights_l' [..., C, K] of mudd and grn, way by way."""
  options, depth = config.side(side), config.layers(side)
  letter = 'y' if options.fusion == 'grn' else 'H'
  for layer in range(depth + 1):
    if (weights := sown['connection'].get(f'weights_{layer}')) is None:
      continue
    if options.fusion == 'mudd':
      ways = mudd.sum_names(config, side, layer)
    else:
      ways = WAYS[options.ways if layer < depth else 1]
    reader = f'layer {layer + 1}' if layer < depth else 'output'
    sources = _names(letter, range(layer + 1))
    by_way = jnp.moveaxis(apart(jnp.asarray(weights), layer + 1), -2, 0)
    for way, values in zip(ways, by_way, strict=True):
      yield Weights(way, reader, sources, values)


def _residuals(
  sown: _Tree, config: ModelConfig, side: Side
) -> Iterator[tuple[str, Mapping[str, Any]]]:
  """Yield the name of each reader of the state, and what it sowed."""
  for layer in range(config.layers(side)):
    inside = sown.get(f'layer_{layer}', {})
    if 'layers' in sown:
      inside = jax.tree.map(lambda x, n=layer: x[n], sown['layers'])
    for name in _SUBLAYERS:
      if f'{name}_residual' in inside:
        reader = f'layer {layer + 1} {name.replace("_", "-")}'
        yield reader, inside[f'{name}_residual']
  if 'state_read' in sown:
    yield 'output', sown['state_read']


def _streams(sown: _Tree, config: ModelConfig, side: Side) -> Iterator[Weights]:
  """Yield how sublayers read, write and mix the streams."""
  count = range(1, config.side(side).options.streams + 1)
  streams = tuple(f'stream {i}' for i in count)
  pairs = tuple(f'{i}>{j}' for i in count for j in count)
  for reader, inside in _residuals(sown, config, side):
    for way in ('read', 'write', 'mix'):
      if way in inside:
        values = inside[way].reshape(*inside[way].shape[:2], -1)
        names = pairs if way == 'mix' else streams
        yield Weights(way, reader, names, values)


def _outputs(sown: _Tree, config: ModelConfig, side: Side) -> Iterator[Weights]:
  """Yield the weights of attention residuals, as means over the heads."""
  options = config.side(side).options
  first = 0 if options.kind == 'replace' or options.embedding else 1
  for reader, inside in _residuals(sown, config, side):
    if 'attention' in inside:
      values = inside['attention']['weights'].mean(-1)
      names = _names('v', range(first, first + values.shape[2]))
      yield Weights('read', reader, names, values)


def _combination(
  sown: _Tree, config: ModelConfig, side: Side
) -> Iterator[Weights]:
  """Yield the weights of a dynamic combination, as means over the features."""
  weights: Float[Array, 'B T L D'] = sown['read_out']['layer_weights']
  values = weights.astype(jnp.float32).mean(-1)
  yield Weights('combination', 'output', _fused(config, side), values)


def _features(
  sown: _Tree, config: ModelConfig, side: Side
) -> Mapping[str, Float[Array, 'B T L']]:
  """Return mean and mean square over the features of the same weights."""
  weights = sown['read_out']['layer_weights'].astype(jnp.float32)
  return {'mean': weights.mean(-1), 'square': jnp.square(weights).mean(-1)}


def _hops(sown: _Tree, config: ModelConfig, side: Side) -> Iterator[Weights]:
  """Yield the attention of each hop to the layers."""
  attention: Float[Array, 'B T L P'] = sown['read_out']['hop_attention']
  for hop, values in enumerate(jnp.moveaxis(attention, -1, 0), start=1):
    yield Weights('hop', f'hop {hop}', _fused(config, side), values)


def _shares(sown: _Tree, config: ModelConfig, side: Side) -> Iterator[Weights]:
  """Yield what share of the couplings of a capsule each layer has.

  They are those of the last iteration, as means over the output capsules.
  """
  couplings: Float[Array, 'B T I L N'] = sown['read_out']['couplings']
  last = couplings[:, :, -1].astype(jnp.float32)
  values = (last / last.sum(2, keepdims=True)).mean(-1)
  yield Weights('share', 'output', _fused(config, side), values)


def _declared(
  sown: _Tree, config: ModelConfig, side: Side, view: DeclaredView
) -> Iterator[Weights]:
  """Yield the weights of a scheme from outside that declares a view."""
  named = {
    '/'.join(part.key for part in path[:-1]).replace('read_out', 'output'): x
    for path, x in jax.tree_util.tree_leaves_with_path(sown)
    if path[-1].key == _DECLARED
  }
  sources, axes = _fused(config, side), _AXES[view]
  wrong = [
    x.shape
    for x in named.values()
    if x.ndim != axes or x.shape[-1] > len(sources)
  ]
  if wrong or not named:
    where = 'telemetry' if axes == 1 else 'views'
    wanted = 'K' if axes == 1 else 'batch, positions, K'
    raise InputError(
      f'fusion={config.side(side).fusion!r} declares the view {view}, which '
      f'needs {_DECLARED!r} of shape [{wanted}] in {where!r}, K <= '
      f'{len(sources)}; it sows {list(wrong[0]) if wrong else "none"}'
    )
  for reader, values in named.items():
    yield Weights('weights', reader, sources[: values.shape[-1]], values)


def _declared_layers(
  sown: _Tree, config: ModelConfig, side: Side
) -> tuple[Weights, ...]:
  return tuple(_declared(sown, config, side, 'layer_weights'))


def _matrix(
  weights: Sequence[Weights], config: ModelConfig, side: Side
) -> dict[str, Any]:
  """Return a row for each way of each reader, with None for other layers."""
  longest = max((w.sources for w in weights), key=len)
  readers = [w.reader for w in weights]
  rows = [
    f'{w.reader}, {w.way}' if readers.count(w.reader) > 1 else w.reader
    for w in weights
  ]
  values = [
    [*map(float, w.values), *[None] * (len(longest) - len(w.sources))]
    for w in weights
  ]
  return {'layers': list(longest), 'rows': rows, 'weights': values}


def _spread(
  means: Mapping[str, Float[np.ndarray, ' L']], config: ModelConfig, side: Side
) -> dict[str, Any]:
  """Return mean and deviation over positions and features."""
  mean, square = (means[name].astype(float) for name in ('mean', 'square'))
  deviation = np.sqrt(np.maximum(square - mean**2, 0))
  return {
    'layers': list(_names('H', range(1, len(mean) + 1))),
    'mean': mean.tolist(),
    'deviation': deviation.tolist(),
  }


def _norms(
  parameters: _Tree, config: ModelConfig, side: Side
) -> dict[str, Any]:
  """Return the norms of the layers' matrices in a linear combination."""
  count = config.layers(side)
  return {
    'layers': list(_names('H', range(1, count + 1))),
    'norms': block_norms(parameters['read_out'], count).tolist(),
  }


def _static(
  parameters: _Tree, config: ModelConfig, side: Side
) -> dict[str, Any]:
  """Return the weights of grn that no position changes, mean over features."""
  static = {
    f'weights_{n}': np.asarray(parameters['connection'][f'static_{n}'])
    for n in range(config.layers(side) + 1)
  }
  means = {n: x.reshape(*x.shape[:2], -1).mean(-1) for n, x in static.items()}
  weights = tuple(_sums({'connection': means}, config, side))
  return _matrix(weights, config, side)


def _dlcl(parameters: _Tree, config: ModelConfig, side: Side) -> dict[str, Any]:
  """Return the weights w_lk after layer l, averaged over features."""
  weights = parameters['connection']['weights']
  options = config.side(side).options
  read = predecessors(
    len(weights), options.window, options.dilation, options.period
  )
  means = np.full(read.shape, np.nan)
  for row, mask in enumerate(read):
    chosen = jnp.asarray(np.asarray(weights)[row, mask])
    if options.normalize == 'softmax':
      chosen = jax.nn.softmax(chosen, axis=0)
    means[row, mask] = np.asarray(chosen).reshape(len(chosen), -1).mean(1)
  return _stored_rows(means, [*range(1, len(means)), 'output'])


def _transparent(
  parameters: _Tree, config: ModelConfig, side: Side
) -> dict[str, Any]:
  """Return the weights by layer of the decoder, averaged over features."""
  weights = jax.nn.softmax(parameters['read_out']['weights'], axis=0)
  means = np.asarray(weights).reshape(*weights.shape[:2], -1).mean(-1).T
  return _stored_rows(means, range(1, config.decoder_layers + 1))


def _stored_rows(
  weights: Float[np.ndarray, 'R K'], readers: Sequence[int | str]
) -> dict[str, Any]:
  rows = [name if name == 'output' else f'layer {name}' for name in readers]
  layers = list(_names('H', range(weights.shape[1])))
  return {'layers': layers, 'rows': rows, 'weights': nullable(weights)}


ROWS: Mapping[str, Row] = {
  'linear': Row(stored=_norms),
  'dlcl': Row(stored=_dlcl),
  'transparent': Row(stored=_transparent),
  'mudd': Row(_sums, _matrix),
  'grn': Row(
    _sums,
    _matrix,
    stored=_static,
    constant=lambda side: side.options.kind != 'dynamic',
  ),
  'dynamic_combination': Row(_combination, _spread, _features),
  'hops': Row(_hops),
  'dynamic_routing': Row(_shares),
  'em_routing': Row(_shares),
  'attention_residuals': Row(_outputs),
  'hyper_connections': Row(
    _streams,
    constant=lambda side: (
      side.options.kind == 'static' and side.options.collapse == 'mean'
    ),
  ),
}


def row_of(config: ModelConfig, side: Side) -> Row:
  """Return the row of a side's scheme, or of the views that it declares."""
  options, scheme = config.side(side), scheme_of(config, side)
  if options.fusion in ROWS:
    row = ROWS[options.fusion]
    if row.constant(options):
      return Row(stored=row.stored)
    return row._replace(stored=None) if row.means else row
  views = () if scheme is None else scheme.views
  row = Row()
  if 'position_weights' in views:
    row = Row(functools.partial(_declared, view='position_weights'))
  if 'layer_weights' in views:
    row = row._replace(means=_matrix, averaged=_declared_layers)
  return row


def has_layer_weights(config: ModelConfig) -> bool:
  """Return whether a side has weights of layers."""
  rows = (row_of(config, side) for side in SIDES)
  return any(row.means or row.stored for row in rows)


def has_position_weights(config: ModelConfig) -> bool:
  """Return whether positions of a side compute weights."""
  return any(row_of(config, side).positions for side in SIDES)


def layer_weights(analysed: RunWithText) -> Numbers:
  """Measure the weights of the layers of both sides."""
  config, parameters = analysed.run.config.model, analysed.run.parameters
  rows = {side: row_of(config, side) for side in SIDES}
  means = _means(analysed, rows)
  numbers = {}
  for side, row in rows.items():
    if row.means:
      numbers[side] = row.means(means[side].means, config, side)
      if config.side(side).fusion in ROWS:
        numbers[side]['positions'] = means[side].positions
    elif row.stored:
      numbers[side] = row.stored(parameters[side], config, side)
  return {
    side: {'scheme': config.side(side).fusion} | values
    for side, values in numbers.items()
  }


def _means(
  analysed: RunWithText, rows: Mapping[Side, Row]
) -> dict[Side, TokenMeans]:
  """Average what positions compute, and what schemes from outside declare."""
  config = analysed.run.config.model

  def averaged(sown: _Tree, side: Side) -> Any:
    row = rows[side]
    if row.averaged is not None:
      return row.averaged(sown, config, side)
    assert row.positions is not None, 'means are of what positions compute'
    return tuple(row.positions(sown, config, side))

  sides = [side for side, row in rows.items() if row.means]
  known = [side for side in sides if config.side(side).fusion in ROWS]
  others = [side for side in sides if side not in known]
  return {
    **token_means(analysed, known, averaged),
    **token_means(analysed, others, averaged, 'telemetry'),
  }


def position_weights(analysed: RunWithText) -> Numbers:
  """Measure the mean and deviation of the weights over the positions."""
  config = analysed.run.config.model
  readers = {
    side: reader
    for side in SIDES
    if (reader := row_of(config, side).positions) is not None
  }

  def powers(sown: _Tree) -> dict[str, tuple[Side, Any]]:
    return {
      side: (
        side,
        jax.tree.map(_powers, tuple(read(sown.get(side, {}), config, side))),
      )
      for side, read in readers.items()
    }

  totals = sums_by_part(analysed, powers)
  if not any(weights for weights, _ in totals.values()):
    raise InputError(
      f'{analysed.workdir}: no part of its stacks has two sources to weigh'
    )
  return {
    side: {'scheme': config.side(side).fusion}
    | (_by_group(*totals[side]) if side in totals else {})
    for side in SIDES
    if config.side(side).fusion != 'none'
  }


def _powers(values: Float[Array, 'B T K']) -> Float[Array, 'B T K 2']:
  values = values.astype(jnp.float32)
  return jnp.stack([values, jnp.square(values)], -1)


def _by_group(
  weights: Sequence[Weights], counts: Float[np.ndarray, ' P']
) -> dict[str, Any]:
  groups: dict[str, list[Weights]] = {}
  for one in weights:
    groups.setdefault(one.group[0], []).append(one)
  numbers = {name: _moments(group, counts) for name, group in groups.items()}
  return {'positions': by_part(counts.astype(int)), 'weights': numbers}


def _moments(
  readers: Sequence[Weights], counts: Float[np.ndarray, ' P']
) -> dict[str, Any]:
  """Return the moments of the readers of a group, side by side."""
  sources = max((one.sources for one in readers), key=len)
  sums = np.full((len(counts), len(readers), len(sources), 2), np.nan)
  for row, one in enumerate(readers):
    sums[:, row, : len(one.sources)] = one.values
  named = {name: by_part(x) for name, x in moments(sums, counts).items()}
  names = [one.group[1] for one in readers]
  return {'sources': list(sources), 'readers': names} | named
