"""Weights of the layers in the schemes that compute weighted sums of layers.

Dynamic linear combination of layers (Wang et al. 2019), transparent attention
(Bapna et al. 2018), linear combination (Dou et al. 2018, Eq. 5), dynamic
combination (Dou et al. 2019, Eq. 4), multiway dynamic dense connections (Xiao
et al. 2025) and generalised residual networks (Heddes et al. 2025). Weights
that positions compute are those of the text. Schemes from outside the package
may declare the view.

Axis letters: B batch, T positions, D model width, L layers, J decoder layers, F
columns of a factored map.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from fusion_jax import figures
from fusion_jax.analysis.declared import declares, sources, sown_weights
from fusion_jax.analysis.passes import (
  TokenMeans,
  sum_over_text,
  token_masks,
  token_means,
  watched,
)
from fusion_jax.analysis.read_weights import sum_names
from fusion_jax.analysis.run_with_text import RunWithText
from fusion_jax.analysis.view import SIDES, Numbers, View, nullable, sides_of
from fusion_jax.config import ModelConfig, Side
from fusion_jax.config.fusion import DlclOptions
from fusion_jax.fusion.dlcl import predecessors
from fusion_jax.fusion.grn import apart
from fusion_jax.fusion.linear import block_norms

_MATRICES = 'dlcl', 'transparent'
_COMPUTED = 'dynamic_combination', 'mudd', 'grn'
_SCHEMES = *_MATRICES, 'linear', *_COMPUTED


def dlcl_weights(
  weights: Float[np.ndarray, 'L L *D'], options: DlclOptions
) -> Float[np.ndarray, 'L L']:
  """Return the weights w_lk after layer l, averaged over features."""
  read = predecessors(
    len(weights), options.window, options.dilation, options.period
  )
  found = np.full(read.shape, np.nan)
  for row, mask in enumerate(read):
    own = jnp.asarray(weights[row, mask])
    if options.normalize == 'softmax':
      own = jax.nn.softmax(own, axis=0)
    found[row, mask] = np.asarray(own).reshape(len(own), -1).mean(1)
  return found


def layer_weights(analysed: RunWithText) -> Numbers:
  """Measure the layer weights of both sides."""
  config = analysed.run.config.model
  own = _declared(analysed)
  dynamic = tuple(
    side for side in sides_of(config, *_COMPUTED) if _computes(config, side)
  )
  means = token_means(analysed, dynamic, _moments) if dynamic else {}
  found = {
    side: _computed(means[side], config, side)
    if side in dynamic
    else _stored(analysed, side)
    for side in sides_of(config, *_SCHEMES)
  } | own
  return {
    side: {'scheme': config.side(side).fusion} | found[side]
    for side in SIDES
    if side in found
  }


def _sides_that_declare(config: ModelConfig) -> tuple[Side, ...]:
  return tuple(
    side for side in SIDES if declares(config, side, 'layer_weights')
  )


def _declared(analysed: RunWithText) -> dict[Side, dict[str, Any]]:
  """Return means over the tokens of what schemes from outside sow."""
  run, config = analysed.run, analysed.run.config.model
  if not (sides := _sides_that_declare(config)):
    return {}

  def sums(parameters, batch):
    _, kept = watched(run.model, parameters, batch, 'telemetry')
    found = {}
    for side in sides:
      count = token_masks(batch)[side].sum().astype(jnp.float32)
      shown = kept['telemetry'].get(side, {})
      each = sown_weights(shown, config, side, 'layer_weights')
      found[side] = {name: own * count for name, own in each.items()}, count
    return found

  totals = sum_over_text(analysed, sums)
  return {
    side: _padded(config, side, {k: v / count for k, v in own.items()})
    for side, (own, count) in totals.items()
  }


def _padded(
  config: ModelConfig, side: Side, rows: Mapping[str, Float[np.ndarray, ' _']]
) -> dict[str, Any]:
  """Return rows of weights, with None for the layers that one has not."""
  most = max(map(len, rows.values()))
  weights = [
    [*map(float, own), *[None] * (most - len(own))] for own in rows.values()
  ]
  names = list(sources(config, side, most))
  return {'layers': names, 'rows': list(rows), 'weights': weights}


def _computes(config: ModelConfig, side: Side) -> bool:
  """Return whether each position has weights of its own."""
  own = config.side(side)
  return own.fusion != 'grn' or own.grn.kind == 'dynamic'


def _moments(
  shown: Mapping[str, Any], side: Side
) -> Mapping[str, Float[jax.Array, 'B T *rest']]:
  del side
  if 'connection' in shown:
    return dict(shown['connection'])
  weights = shown['read_out']['layer_weights'].astype(jnp.float32)
  return {'mean': weights.mean(-1), 'square': jnp.square(weights).mean(-1)}


def _computed(
  means: TokenMeans, config: ModelConfig, side: Side
) -> dict[str, Any]:
  if config.side(side).fusion == 'dynamic_combination':
    return _dynamic(means)
  weights = {
    int(name.removeprefix('weights_')): values
    for name, values in means.means.items()
  }
  return _sums(config, side, weights) | {'positions': means.positions}


def _sums(
  config: ModelConfig,
  side: Side,
  found: Mapping[int, Float[np.ndarray, 'C K']],
) -> dict[str, Any]:
  """Return a row for each sum after each layer, from the weights after it."""
  count, rows, weights = max(found), [], []
  for layer in sorted(found):
    reader = f'layer {layer + 1}' if layer < count else 'output'
    each = np.asarray(apart(jnp.asarray(found[layer]), layer + 1), np.float64)
    names = sum_names(config, side, layer)
    for way, own in zip(names, each, strict=True):
      rows.append(f'{reader}, {way}' if len(each) > 1 else reader)
      weights.append([*own.tolist(), *[None] * (count - layer)])
  letter = 'y' if config.side(side).fusion == 'grn' else 'H'
  sources = [f'{letter}[{n}]' for n in range(count + 1)]
  return {'layers': sources, 'rows': rows, 'weights': weights}


def _dynamic(means: TokenMeans) -> dict[str, Any]:
  mean = np.asarray(means.means['mean'], np.float64)
  variance = np.asarray(means.means['square'], np.float64) - mean**2
  return {
    'layers': [f'H[{n}]' for n in range(1, len(mean) + 1)],
    'mean': mean.tolist(),
    'deviation': np.sqrt(np.maximum(variance, 0)).tolist(),
    'positions': means.positions,
  }


def _stored(analysed: RunWithText, side: Side) -> dict[str, Any]:
  """Return the weights of the schemes whose weights are parameters."""
  config = analysed.run.config.model
  parameters, count = analysed.run.parameters[side], config.layers(side)
  names = [f'H[{n}]' for n in range(count + 1)]
  options = config.side(side)
  if options.fusion == 'linear':
    norms = block_norms(parameters['read_out'], count).tolist()
    return {'layers': names[1:], 'norms': norms}
  if options.fusion == 'grn':
    static = {
      n: np.asarray(parameters['connection'][f'static_{n}'])
      for n in range(count + 1)
    }
    return _sums(
      config,
      side,
      {
        n: own.reshape(*own.shape[:2], -1).mean(-1) for n, own in static.items()
      },
    )
  if options.fusion == 'dlcl':
    weights = dlcl_weights(
      np.asarray(parameters['connection']['weights']), options.dlcl
    )
    rows = [f'layer {n}' for n in range(1, count + 1)] + ['output']
  else:
    softmax = jax.nn.softmax(parameters['read_out']['weights'], axis=0)
    by_feature = np.asarray(softmax).reshape(*softmax.shape[:2], -1)
    weights = by_feature.mean(-1).T
    rows = [f'layer {n}' for n in range(1, config.decoder_layers + 1)]
  return {'layers': names, 'rows': rows, 'weights': nullable(weights)}


def draw(numbers: Numbers) -> figures.Figure:
  """Draw a map or bars for each side."""
  figure, axes = figures.panels(len(numbers))
  for panel, (side, own) in zip(axes, numbers.items(), strict=True):
    panel.set_title(f'{side}, {own["scheme"]}')
    if 'weights' in own:
      _draw_matrix(panel, own)
      continue
    bars = {name: own[name] for name in ('mean', 'deviation') if name in own}
    y = 'weight (positions, features)'
    if 'norms' in own:
      bars, y = {'|W|': own['norms']}, 'Frobenius norm of its matrix'
    figures.draw_bars(panel, _numbers(own['layers']), bars, 'layer', y)
  return figure


def _draw_matrix(axes: figures.Axes, numbers: Mapping[str, Any]) -> None:
  reads = 'decoder ' if numbers['scheme'] == 'transparent' else ''
  weights = np.array(numbers['weights'], np.float64)
  figures.draw_map(
    axes,
    weights,
    figures.thinned(numbers['rows']),
    figures.thinned(_numbers(numbers['layers'])),
    'number of the layer that is read',
    f'what the {reads}layer reads',
    'weight',
    (min(float(np.nanmin(weights)), 0.0), float(np.nanmax(weights))),
    upwards=True,
  )


def _numbers(layers: list[str]) -> list[str]:
  """Return l of every H[l] or y[l]; the full names are too wide for an axis."""
  return [name[2:-1] for name in layers]


def summary(numbers: Numbers) -> str:
  """List the weights of each side."""
  said = '; '.join(f'{side} {_said(own)}' for side, own in numbers.items())
  return f'Weights of layers: {said}.'


def _said(numbers: Mapping[str, Any]) -> str:
  """Describe the last row of the weights, or the bars."""
  scheme = numbers['scheme']
  if 'weights' in numbers:
    row = numbers['rows'][-1]
    values, of = numbers['weights'][-1], f'{row} of {scheme}'
  elif 'norms' in numbers:
    values, of = numbers['norms'], f'norms of {scheme}'
  else:
    values, of = numbers['mean'], f'means of {scheme}'
  listed = ', '.join(
    f'{name} {value:.2f}'
    for name, value in zip(numbers['layers'], values, strict=True)
    if value is not None
  )
  return f'({of}) {listed}'


VIEW = View(
  name='layer_weights',
  title='What every layer weighs',
  source=(
    'Wang et al. 2019; Bapna et al. 2018; Dou et al. 2018, Eq. 5; Dou et al. '
    '2019, Eq. 4'
  ),
  reading=(
    'Weight of every layer in a weighted sum of layers; of full matrices their '
    'norm, of weights that positions compute mean and deviation.'
  ),
  measure=layer_weights,
  draw=draw,
  summary=summary,
  applies=lambda config: bool(
    sides_of(config, *_SCHEMES) or _sides_that_declare(config)
  ),
  needs=(
    'a model with dlcl, mudd, grn, transparent attention, linear or dynamic '
    'combination, or a scheme that declares it'
  ),
)
