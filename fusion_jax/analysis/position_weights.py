"""Weights that positions compute: by layer, by position, by frequency.

Axis letters: B batch, T positions, K sources, P parts, R readers, M moments.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from fusion_jax import figures
from fusion_jax.analysis.passes import sum_over_text, watched
from fusion_jax.analysis.read_weights import (
  ReadWeights,
  has_read_weights,
  read_weights,
)
from fusion_jax.analysis.run_with_text import RunWithText
from fusion_jax.analysis.text_parts import (
  LABELS,
  by_part,
  members_of,
  moments,
  positions_by_part,
)
from fusion_jax.analysis.view import SIDES, Numbers, View
from fusion_jax.config import ModelConfig, Side
from fusion_jax.errors import InputError

# Letters of names below a panel, about.
_LETTERS = 30
# Width and height of a panel in inches, at which ten numbers fit into a row.
_PANEL = 5.6, 2.8


def _sides(config: ModelConfig) -> tuple[Side, ...]:
  return tuple(side for side in SIDES if has_read_weights(config, side))


def position_weights(analysed: RunWithText) -> Numbers:
  """Measure the mean and deviation of the weights over the positions."""
  run, config = analysed.run, analysed.run.config.model
  members = members_of(analysed)

  def sums(parameters, batch):
    _, kept = watched(run.model, parameters, batch, 'views')
    member = members(batch)
    return {
      side: (
        tuple(
          _part_sums(weights, member[side])
          for weights in read_weights(kept['views'].get(side, {}), config, side)
        ),
        member[side].sum((0, 1)),
      )
      for side in _sides(config)
    }

  totals = sum_over_text(analysed, sums)
  if not any(found for found, _ in totals.values()):
    raise InputError(
      f'{analysed.workdir}: no part of its stacks has two sources to weigh'
    )
  schemes = {side: config.side(side).fusion for side in SIDES}
  return {
    side: {'scheme': scheme}
    | (_numbers(*totals[side]) if side in totals else {})
    for side, scheme in schemes.items()
    if scheme != 'none'
  }


def _part_sums(
  weights: ReadWeights, member: Float[Any, 'B T P']
) -> ReadWeights:
  """Return the sums [P, K, 2] of weights and their squares over each part."""
  values = weights.values.astype(jnp.float32)
  powers = jnp.stack([values, jnp.square(values)], -1)
  return dataclasses.replace(
    weights, values=jnp.einsum('BTP,BTKM->PKM', member, powers)
  )


def _numbers(
  found: tuple[ReadWeights, ...], counts: Float[np.ndarray, ' P']
) -> dict[str, Any]:
  groups: dict[str, list[ReadWeights]] = {}
  for each in found:
    groups.setdefault(each.group, []).append(each)
  weights = {name: _group(own, counts) for name, own in groups.items()}
  return {'positions': positions_by_part(counts), 'weights': weights}


def _group(
  readers: list[ReadWeights], counts: Float[np.ndarray, ' P']
) -> dict[str, Any]:
  """Return the moments of the readers of a group, side by side."""
  sources = max((each.sources for each in readers), key=len)
  shape = len(counts), len(readers), len(sources), 2
  sums = np.full(shape, np.nan)
  for row, each in enumerate(readers):
    sums[:, row, : len(each.sources)] = each.values
  named = {
    name: by_part(values, 'all')
    for name, values in moments(sums, counts).items()
  }
  names = [each.reader for each in readers]
  return {'sources': list(sources), 'readers': names} | named


def draw(numbers: Numbers) -> figures.Figure:
  """Draw maps of the mean weights, a row of three for each group.

  Those by position and by frequency are means over the readers of a source.
  """
  rows = [
    (side, group, weights)
    for side, own in numbers.items()
    for group, weights in own.get('weights', {}).items()
  ]
  figure, axes = figures.panels(3 * len(rows), 3, _PANEL)
  for number, (side, group, weights) in enumerate(rows):
    first, *others = axes[3 * number : 3 * number + 3]
    first.set_title(f'{side}, {group}')
    _draw_map(
      first,
      _array(weights['mean']['all']),
      (weights['readers'], 'reader'),
      (_fitting(weights['sources']), 'source'),
    )
    for panel, (part, label) in zip(others, LABELS.items(), strict=True):
      means = _mean_of_readers(_array(weights['mean'][part])).T
      names = [str(n) for n in range(1, means.shape[1] + 1)]
      sources = weights['sources'], 'source'
      _draw_map(panel, means, sources, (_fitting(names), label))
  return figure


def _array(values: Any) -> Float[np.ndarray, '...']:
  return np.array(values, np.float64)


def _mean_of_readers(
  values: Float[np.ndarray, 'P R K'],
) -> Float[np.ndarray, 'P K']:
  """Return means over the readers that have a source; NaN where none has."""
  there = np.isfinite(values)
  count = there.sum(1)
  total = np.where(there, values, 0).sum(1)
  return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _draw_map(
  axes: figures.Axes,
  values: Float[np.ndarray, 'Y X'],
  rows: tuple[Sequence[str], str],
  columns: tuple[Sequence[str], str],
) -> None:
  """Draw a map; of rows and columns the names, and what they are."""
  names, y = rows
  figures.draw_map(
    axes,
    values,
    figures.thinned(names),
    columns[0],
    columns[1],
    y,
    'mean weight',
    upwards=True,
  )


def _fitting(names: Sequence[str]) -> list[str]:
  """Empty most names where all would not fit side by side."""
  step = -(-sum(len(name) + 1 for name in names) // _LETTERS)
  return ['' if place % step else name for place, name in enumerate(names)]


def summary(numbers: Numbers) -> str:
  """Say how far the weights vary over the positions, and who has none."""
  said = []
  for side, own in numbers.items():
    groups = own.get('weights', {})
    listed = ', '.join(
      f'{group} {_deviation(each):.3f}' for group, each in groups.items()
    )
    none = 'has the same weights at every position'
    said.append(f'{side} ({own["scheme"]}) {listed or none}')
  return (
    f'Deviation of the weights over the positions, mean: {"; ".join(said)}.'
  )


def _deviation(weights: Mapping[str, Any]) -> float:
  return float(np.nanmean(_array(weights['deviation']['all'])))


VIEW = View(
  name='position_weights',
  title='What every position weighs',
  source=(
    'Xiao et al. 2025; Heddes et al. 2025; Zhu et al. 2024; Kimi Team 2026; '
    'Dou et al. 2019; Wang et al. 2018'
  ),
  reading=(
    'Mean weights that positions give to layers or streams: by reader, by '
    'position in the sentence, and by how frequent the subword that is read is '
    'in this text; the last two as means over the readers.'
  ),
  measure=position_weights,
  draw=draw,
  summary=summary,
  applies=lambda config: bool(_sides(config)),
  needs=(
    'a model with weights that positions compute (mudd, grn.kind=dynamic, '
    'hyper_connections but hyper.kind=static, attention_residuals, '
    'dynamic_combination, hops, dynamic_routing, em_routing or a scheme that '
    'declares it)'
  ),
)
