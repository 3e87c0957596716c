"""Figures of what schemes sow, and sentences, from the numbers of the views."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from fusion_jax import figures
from fusion_jax.analysis.passes import LABELS
from fusion_jax.analysis.run_with_text import SIDES, Numbers, finite_or_nan
from fusion_jax.analysis.sown_quantities import GATES, PAPER, PREDICTIONS

# Letters of names below a map of positions, about.
_LETTERS = 30
# Width and height of a panel in inches: of positions, at which ten numbers fit
# into a row, and of couplings, at which 512 capsules have a pixel each.
_POSITIONS, _COUPLINGS = (5.6, 2.8), (6.0, 2.8)
# Most subwords in the figure of the hops, so that they stay readable.
_MOST_PIECES = 36
GROUP_TITLES = {
  'encoder': 'encoder groups, sigmoid(w)',
  'decoder_layers': 'decoder layers, sigmoid(w)',
  'psi': 'decoder groups, psi',
}
LOSSES = {
  'own': "the decoder's own",
  'surface': "of the source's embeddings",
  'both': 'both together',
}


def layer_weights(numbers: Numbers) -> figures.Figure:
  """Draw a map or bars for each side."""
  return figures.draw_panels([_layers(side, x) for side, x in numbers.items()])[
    0
  ]


def _layers(side: str, numbers: Mapping[str, Any]) -> figures.Panel:
  scheme = numbers['scheme']
  title = f'{side}, {scheme}'
  # Without H[...]: the full names are too wide for an axis.
  layers = [name[2:-1] for name in numbers['layers']]
  if 'weights' in numbers:
    weights = finite_or_nan(numbers['weights'])
    rows, columns = map(figures.thinned, (numbers['rows'], layers))
    x = 'number of the layer that is read'
    reads = 'decoder ' if scheme == 'transparent' else ''
    y = f'what the {reads}layer reads'
    limits = min(float(np.nanmin(weights)), 0.0), float(np.nanmax(weights))
    given = weights, rows, columns, x, y, 'weight', limits
    return figures.Panel(figures.draw_map, given, title)
  if 'norms' in numbers:
    bars, y = {'|W|': numbers['norms']}, 'Frobenius norm of its matrix'
  else:
    bars = {name: numbers[name] for name in ('mean', 'deviation')}
    y = 'weight (positions, features)'
  return figures.Panel(figures.draw_bars, (layers, bars, 'layer', y), title)


def position_weights(numbers: Numbers) -> figures.Figure:
  """Draw maps of the mean weights, a row of three for each group.

  Those by position and by frequency are means over the readers of a source.
  """
  panels = [
    panel
    for side, by_side in numbers.items()
    for group, weights in by_side.get('weights', {}).items()
    for panel in _group_maps(f'{side}, {group}', weights)
  ]
  return figures.draw_panels(panels, 3, _POSITIONS)[0]


def _group_maps(title: str, weights: Mapping[str, Any]) -> list[figures.Panel]:
  mean, sources = weights['mean'], weights['sources']
  values = finite_or_nan(mean['all'])
  maps = [(values, weights['readers'], sources, 'source', 'reader')]
  for part, label in LABELS.items():
    means = _mean_of_readers(finite_or_nan(mean[part])).T
    numbers = [str(n) for n in range(1, means.shape[1] + 1)]
    maps.append((means, sources, numbers, label, 'source'))
  return [
    figures.Panel(
      figures.draw_map,
      (values, figures.thinned(rows), _fitting(columns), x, y, 'mean weight'),
      '' if place else title,
    )
    for place, (values, rows, columns, x, y) in enumerate(maps)
  ]


def _mean_of_readers(
  values: Float[np.ndarray, 'P R K'],
) -> Float[np.ndarray, 'P K']:
  """Return means over the readers that have a source; NaN where none has."""
  there = np.isfinite(values)
  count = there.sum(1)
  total = np.where(there, values, 0).sum(1)
  return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _fitting(names: Sequence[str]) -> list[str]:
  """Empty most names where all would not fit side by side."""
  step = -(-sum(len(name) + 1 for name in names) // _LETTERS)
  return ['' if place % step else name for place, name in enumerate(names)]


def hops(numbers: Numbers) -> figures.Figure:
  """Draw the mean of each side, then the hops of the first sentence."""
  panels = [
    figures.Panel(
      figures.draw_map, _mean_map(numbers[side]), f'{side}, mean over the text'
    )
    for side in SIDES
    if side in numbers
  ]
  side = 'decoder' if 'decoder' in numbers else 'encoder'
  sentence, layers = numbers[side]['sentences'][0], numbers[side]['layers']
  # Matplotlib would read text between two dollar signs as a formula.
  pieces = [
    piece.replace('$', r'\$') for piece in sentence['pieces'][:_MOST_PIECES]
  ]
  x = f'subword that is {"predicted" if side == "decoder" else "read"}'
  title = f'{side}, line {sentence["line"]}, hop'
  for hop, attention in enumerate(sentence['attention'], start=1):
    values = np.array(attention)[:, : len(pieces)]
    given = values, layers, pieces, x, 'layer', 'attention', (0.0, 1.0)
    panels.append(figures.Panel(figures.draw_map, given, f'{title} {hop}'))
  size = max(4.4, 0.22 * len(pieces) + 1.5), 3.2
  figure, axes = figures.draw_panels(panels, size=size)
  for panel in axes[-len(sentence['attention']) :]:
    panel.tick_params('x', rotation=90)
  return figure


def _mean_map(numbers: Mapping[str, Any]) -> tuple[Any, ...]:
  mean = np.array(numbers['mean']).T
  names = [str(hop) for hop in range(1, mean.shape[1] + 1)]
  layers, limits = numbers['layers'], (0.0, 1.0)
  return mean, layers, names, 'hop', 'layer', 'mean attention', limits


def couplings(numbers: Numbers) -> figures.Figure:
  """Draw maps of the iterations of both sides, and the entropies at the end."""
  sides: dict[str, Any] = {s: numbers[s] for s in SIDES if s in numbers}
  panels = [
    figures.Panel(
      figures.draw_map,
      _iteration(x, index),
      f'{side}, iteration {index + 1}: entropy {entropy:.2f} nats',
    )
    for side, x in sides.items()
    for index, entropy in enumerate(x['entropy'])
  ]
  named = sides | {'Dou 2019': numbers['paper']}
  entropies = {
    name: _curve([y / max(x['uniform_entropy'], 1e-12) for y in x['entropy']])
    for name, x in named.items()
  }
  diversities = {name: _curve(x['diversity']) for name, x in named.items()}
  for curves, y in (
    (entropies, 'entropy / uniform entropy'),
    (diversities, 'diversity, mean of 1 - cosine'),
  ):
    panels.append(figures.Panel(figures.draw_lines, (curves, 'iteration', y)))
  columns = max(2, *(len(x['entropy']) for x in sides.values()))
  figure, axes = figures.draw_panels(panels, columns, _COUPLINGS)
  figures.share_legend(figure, axes[-2:])
  return figure


def _iteration(numbers: Mapping[str, Any], index: int) -> tuple[Any, ...]:
  couplings = np.array(numbers['couplings'])
  rows = [f'H[{layer}]' for layer in range(1, couplings.shape[1] + 1)]
  # Uniform couplings take the middle of the colours or less.
  most = max(couplings.max(), 2 * math.exp(-numbers['uniform_entropy']))
  labels = 'output capsule', 'layer', 'mean coupling'
  return couplings[index], rows, (), *labels, (0.0, most)


def gates(numbers: Numbers) -> figures.Figure:
  """Draw means above and deviations below, by layer, position, frequency.

  Those by position and frequency are averaged over the layers.
  """
  panels = []
  for moment in ('mean', 'deviation'):
    for part, name in {'layer': 'layer', **LABELS}.items():
      curves = {
        f'{place}, {kind.removesuffix("_gate")}s': _curve(x[kind][moment][part])
        for place, x in numbers.items()
        for kind in GATES
      }
      given = curves, name, f'{moment} of the gates'
      panels.append(figures.Panel(figures.draw_lines, given))
  figure, axes = figures.draw_panels(panels, 3)
  for panel in axes:
    panel.set_ylim(0, 1)
  figures.share_legend(figure, axes)
  return figure


def _curve(values: Sequence[Any]) -> figures.Line:
  """Number values from 1, without empty ones, as means over the layers."""
  points = {
    number: float(np.mean(value))
    for number, value in enumerate(values, start=1)
    if value is not None and not (isinstance(value, list) and None in value)
  }
  return list(points), list(points.values())


def groups(numbers: Numbers) -> figures.Figure:
  """Draw bars of the weights; below, over the training if logged twice."""
  weights, training = numbers['weights'], numbers['training'] or {'steps': []}
  panels = [
    figures.Panel(figures.draw_bars, _group_bars(name, values, numbers))
    for name, values in weights.items()
  ]
  logged = [name for name in weights if name in training]
  for name in logged if len(training['steps']) > 1 else ():
    kind = 'layer' if name == 'decoder_layers' else 'group'
    lines = {
      f'{kind} {number}': (training['steps'], values)
      for number, values in enumerate(training[name], start=1)
    }
    given = lines, 'update', GROUP_TITLES[name]
    panels.append(figures.Panel(figures.draw_lines, given))
  return figures.draw_panels(panels, len(weights))[0]


def _group_bars(
  name: str, values: list[float], numbers: Mapping[str, Any]
) -> tuple[Any, ...]:
  bars = {'this run': values}
  if name == 'psi' and len(values) == len(numbers['paper']):
    bars['Yang 2022, 6 + 18 layers'] = numbers['paper']
  names, what = [str(n) for n in range(1, len(values) + 1)], 'layer'
  if name != 'decoder_layers':
    side = 'encoder' if name == 'encoder' else 'decoder'
    ranges = zip(names, numbers['layers'][side], strict=True)
    names = [f'{k}\n({first}-{last})' for k, (first, last) in ranges]
    what = 'group (its layers)'
  return names, bars, what, GROUP_TITLES[name]


def surface(numbers: Numbers) -> figures.Figure:
  """Draw the losses by the frequency of the subword, and the weight g."""
  x = LABELS['frequency']
  losses = {
    label: _curve(numbers[name]['frequency']) for name, label in LOSSES.items()
  }
  weight = {LOSSES['own']: _curve(numbers['weight']['frequency'])}
  figure, axes = figures.draw_panels(
    [
      figures.Panel(figures.draw_lines, (losses, x, 'loss, nats per subword')),
      figures.Panel(
        figures.draw_lines, (weight, x, 'weight g of the prediction')
      ),
    ]
  )
  axes[1].set_ylim(0, 1)
  return figure


def layer_weights_summary(numbers: Numbers) -> str:
  """List the weights of each side."""
  said = '; '.join(f'{side} {_last(x)}' for side, x in numbers.items())
  return f'Weights of layers: {said}.'


def _last(numbers: Mapping[str, Any]) -> str:
  """Describe the last row of the weights, or the bars."""
  scheme = numbers['scheme']
  if 'weights' in numbers:
    values = numbers['weights'][-1]
    what = f'{numbers["rows"][-1]} of {scheme}'
  elif 'norms' in numbers:
    values, what = numbers['norms'], f'norms of {scheme}'
  else:
    values, what = numbers['mean'], f'means of {scheme}'
  listed = ', '.join(
    f'{name} {value:.2f}'
    for name, value in zip(numbers['layers'], values, strict=True)
    if value is not None
  )
  return f'({what}) {listed}'


def position_weights_summary(numbers: Numbers) -> str:
  """Say how far the weights vary over the positions, and who has none."""
  none = 'has the same weights at every position'
  said = []
  for side, x in numbers.items():
    deviations = {
      group: np.nanmean(finite_or_nan(weights['deviation']['all']))
      for group, weights in x.get('weights', {}).items()
    }
    listed = ', '.join(f'{name} {y:.3f}' for name, y in deviations.items())
    said.append(f'{side} ({x["scheme"]}) {listed or none}')
  return (
    f'Deviation of the weights over the positions, mean: {"; ".join(said)}.'
  )


def hops_summary(numbers: Numbers) -> str:
  """Name the layer that each hop attends to most."""
  said = []
  for side, x in numbers.items():
    best = [x['layers'][index] for index in np.argmax(x['mean'], axis=1)]
    shares = ', '.join(
      f'{name} {max(hop):.2f}'
      for name, hop in zip(best, x['mean'], strict=True)
    )
    said.append(f'in the {side} {shares}')
  return f'The layer that each hop attends to most: {"; ".join(said)}.'


def couplings_summary(numbers: Numbers) -> str:
  """List the entropies, beside the paper's."""
  said = '; '.join(
    f'{side}: {_listed(numbers[side]["entropy"])} of at most '
    f'{numbers[side]["uniform_entropy"]:.2f}'
    for side in SIDES
    if side in numbers
  )
  paper = PAPER['couplings']
  return (
    f'Entropy of the couplings by iteration, in nats: {said} (Dou et al. '
    f'2019: {_listed(paper["entropy"])} of at most '
    f'{paper["uniform_entropy"]:.2f}).'
  )


def _listed(values: list[float], digits: int = 2) -> str:
  return ', '.join(f'{value:.{digits}f}' for value in values)


def gates_summary(numbers: Numbers) -> str:
  """List the mean gates of every attention."""
  said = '; '.join(
    f'{place} {np.mean(x["key_gate"]["mean"]["layer"]):.3f} of keys and '
    f'{np.mean(x["value_gate"]["mean"]["layer"]):.3f} of values'
    for place, x in numbers.items()
  )
  return f'Mean gates, where 1 takes the shortcut: {said}.'


def groups_summary(numbers: Numbers) -> str:
  """List the weights."""
  said = '; '.join(
    f'{GROUP_TITLES[name]}: {_listed(values, 3)}'
    for name, values in numbers['weights'].items()
  )
  return f'Weights from the lowest on: {said}.'


def surface_summary(numbers: Numbers) -> str:
  """Compare the losses of the predictions."""
  weight, own, surface, both = (numbers[name]['all'] for name in PREDICTIONS)
  return (
    f"The decoder's own prediction has a loss of {own:.3f} nats and that of "
    f"the source's embeddings {surface:.3f}; with a mean weight of "
    f'{weight:.3f} on the first they have {both:.3f}.'
  )
