"""Views of the weights of layers: those of a model, and those of its positions.

Axis letters: P parts, R readers, K sources.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from fusion_jax import figures
from fusion_jax.analysis import passes
from fusion_jax.analysis.run_with_text import SIDES, Numbers, RunWithText
from fusion_jax.analysis.sown_weights import (
  ROWS,
  Stack,
  Weights,
  powers_of,
  row_of,
)
from fusion_jax.config import ModelConfig, Side
from fusion_jax.errors import InputError

# Letters of names below a map of positions, about.
_LETTERS = 30
# Width and height of a panel of positions in inches, at which ten numbers fit
# into a row.
_POSITIONS = (5.6, 2.8)


def has_layer_weights(config: ModelConfig) -> bool:
  """Return whether a side has weights of layers."""
  rows = (row_of(config, side) for side in SIDES)
  return any(row.layers or row.stored for row in rows)


def has_position_weights(config: ModelConfig) -> bool:
  """Return whether positions of a side compute weights."""
  return any(row_of(config, side).positions for side in SIDES)


def layer_weights(analysed: RunWithText) -> Numbers:
  """Measure the weights of the layers of both sides."""
  config, parameters = analysed.run.config.model, analysed.run.parameters
  rows = {side: row_of(config, side) for side in SIDES}

  def averaged(seen: passes.Pass) -> dict[str, tuple[Side, Any]]:
    found: dict[str, tuple[Side, Any]] = {}
    for side, row in rows.items():
      if row.layers:
        sown = getattr(seen, row.sown)
        stack = Stack(sown.get(side, {}), config, side)
        found[side] = side, tuple(row.layers(stack))
    return found

  means = any(row.layers for row in rows.values())
  totals = passes.sums_by_part(analysed, averaged) if means else {}
  numbers: dict[str, Any] = {}
  for side, row in rows.items():
    scheme = {'scheme': config.side(side).fusion}
    if side in totals:
      numbers[side] = scheme | row.numbers(totals[side].means)
      if scheme['scheme'] in ROWS:
        numbers[side]['positions'] = int(totals[side].counts[0])
    elif row.stored:
      weights = row.stored(Stack(parameters[side], config, side))
      numbers[side] = scheme | row.numbers(tuple(weights))
  return numbers


def draw_layer_weights(numbers: Numbers) -> figures.Figure:
  """Draw a map or bars for each side."""
  return figures.draw_panels([_layers(side, x) for side, x in numbers.items()])


def _layers(side: str, numbers: Mapping[str, Any]) -> figures.Panel:
  scheme = numbers['scheme']
  title = f'{side}, {scheme}'
  # Without H[...]: the full names are too wide for an axis.
  layers = [name[2:-1] for name in numbers['layers']]
  if 'weights' in numbers:
    weights = np.array(numbers['weights'], float)
    limits = min(float(np.nanmin(weights)), 0.0), float(np.nanmax(weights))
    rows, columns = map(figures.thinned, (numbers['rows'], layers))
    reads = 'decoder ' if scheme == 'transparent' else ''
    labels = 'number of the layer that is read', f'what the {reads}layer reads'
    given = weights, rows, columns, *labels, 'weight', limits
    return figures.Panel(title, figures.draw_map, *given)
  if 'norms' in numbers:
    bars, y = {'|W|': numbers['norms']}, 'Frobenius norm of its matrix'
  else:
    bars = {name: numbers[name] for name in ('mean', 'deviation')}
    y = 'weight (positions, features)'
  return figures.Panel(title, figures.draw_bars, layers, bars, 'layer', y)


def layer_weights_summary(numbers: Numbers) -> str:
  """List the weights of each side."""
  said = '; '.join(f'{side} {_last(x)}' for side, x in numbers.items())
  return f'Weights of layers: {said}.'


def _last(numbers: Mapping[str, Any]) -> str:
  """Describe the last row of the weights, or the bars."""
  if 'weights' in numbers:
    values, what = numbers['weights'][-1], numbers['rows'][-1]
  elif 'norms' in numbers:
    values, what = numbers['norms'], 'norms'
  else:
    values, what = numbers['mean'], 'means'
  listed = ', '.join(
    f'{name} {value:.2f}'
    for name, value in zip(numbers['layers'], values, strict=True)
    if value is not None
  )
  return f'({what} of {numbers["scheme"]}) {listed}'


def position_weights(analysed: RunWithText) -> Numbers:
  """Measure the mean and deviation of the weights over the positions."""
  config = analysed.run.config.model
  rows = {side: row_of(config, side) for side in SIDES}

  def powers(seen: passes.Pass) -> dict[str, tuple[Side, Any]]:
    found: dict[str, tuple[Side, Any]] = {}
    for side, row in rows.items():
      if row.positions:
        stack = Stack(seen.views.get(side, {}), config, side)
        weights = tuple(row.positions(stack))
        found[side] = side, jax.tree.map(powers_of, weights)
    return found

  totals = passes.sums_by_part(analysed, powers)
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


def _by_group(
  weights: Sequence[Weights], counts: Float[np.ndarray, ' P']
) -> dict[str, Any]:
  groups: dict[str, list[Weights]] = {}
  for of_reader in weights:
    groups.setdefault(of_reader.group[0], []).append(of_reader)
  numbers = {name: _moments(group, counts) for name, group in groups.items()}
  return {'positions': passes.by_part(counts.astype(int)), 'weights': numbers}


def _moments(
  readers: Sequence[Weights], counts: Float[np.ndarray, ' P']
) -> dict[str, Any]:
  """Return the moments of the readers of a group, side by side."""
  sources = max((reader.sources for reader in readers), key=len)
  sums = np.full((len(counts), len(readers), len(sources), 2), np.nan)
  for row, reader in enumerate(readers):
    sums[:, row, : len(reader.sources)] = reader.values
  named = {
    name: passes.by_part(x) for name, x in passes.moments(sums, counts).items()
  }
  names = [reader.group[1] for reader in readers]
  return {'sources': list(sources), 'readers': names} | named


def draw_position_weights(numbers: Numbers) -> figures.Figure:
  """Draw maps of the mean weights, a row of three for each group.

  Those by position and by frequency are means over the readers of a source.
  """
  panels = [
    panel
    for side, by_side in numbers.items()
    for group, weights in by_side.get('weights', {}).items()
    for panel in _group_maps(f'{side}, {group}', weights)
  ]
  return figures.draw_panels(panels, 3, _POSITIONS)


def _group_maps(title: str, weights: Mapping[str, Any]) -> list[figures.Panel]:
  mean, sources = weights['mean'], weights['sources']
  values = np.array(mean['all'], float)
  maps = [(title, values, weights['readers'], sources, 'source', 'reader')]
  for part, label in passes.LABELS.items():
    means = _mean_of_readers(np.array(mean[part], float)).T
    numbers = [str(n) for n in range(1, means.shape[1] + 1)]
    maps.append(('', means, sources, numbers, label, 'source'))
  return [
    figures.Panel(
      *(title, figures.draw_map, values, figures.thinned(rows)),
      *(_fitting(columns), x, y, 'mean weight'),
    )
    for title, values, rows, columns, x, y in maps
  ]


def _mean_of_readers(
  values: Float[np.ndarray, 'P R K'],
) -> Float[np.ndarray, 'P K']:
  """Return means over the readers that have a source; NaN where none has."""
  count = np.isfinite(values).sum(1)
  total = np.nansum(values, 1)
  return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _fitting(names: Sequence[str]) -> list[str]:
  """Empty most names where all would not fit side by side."""
  step = -(-sum(len(name) + 1 for name in names) // _LETTERS)
  return ['' if place % step else name for place, name in enumerate(names)]


def position_weights_summary(numbers: Numbers) -> str:
  """Say how far the weights vary over the positions, and who has none."""
  said = []
  for side, x in numbers.items():
    deviations = ', '.join(
      f'{group} {np.nanmean(np.array(weights["deviation"]["all"], float)):.3f}'
      for group, weights in x.get('weights', {}).items()
    )
    none = 'has the same weights at every position'
    said.append(f'{side} ({x["scheme"]}) {deviations or none}')
  return (
    f'Deviation of the weights over the positions, mean: {"; ".join(said)}.'
  )
