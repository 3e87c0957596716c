"""Groups of layers: their weights, and BLEU with some of them.

Yang et al. (TASLP 2022), Fig. 8 and 9; of Table VI, BLEU of every single group
k:k, and of the mixtures a:N of the highest groups.
"""

import dataclasses
import logging
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from fusion_jax import figures
from fusion_jax.analysis.run_with_text import (
  Numbers,
  RunWithText,
  numbered,
  sides_of,
)
from fusion_jax.config import ModelConfig
from fusion_jax.decoding.ensemble import with_groups
from fusion_jax.errors import InputError
from fusion_jax.fusion.gtrans import groups_of, log_group_weights

logger = logging.getLogger(__name__)

# Table VI: De-En, 6 + 18 layers, groups of 3. The text of the paper gives 35.02
# for the last group.
_PAPER = {
  'single': [33.12, 34.16, 34.94, 34.89, 35.17, 35.05],
  'pruned': [35.43, 35.39, 35.29, 35.10, 35.09, 35.05],
  'psi': [0.066, 0.071, 0.103, 0.255, 0.254, 0.251],
}
# Names of groups' weights in metrics.jsonl, and the corresponding names here.
_LOGGED = {
  'encoder/read_out/group_weights': 'encoder',
  'decoder/prediction/layer_weights': 'decoder_layers',
  'decoder/prediction/group_weights': 'psi',
}
_TITLES = {
  'encoder': 'encoder groups, sigmoid(w)',
  'decoder_layers': 'decoder layers, sigmoid(w)',
  'psi': 'decoder groups, psi',
}


def _psi(parameters: Mapping[str, Any], config: ModelConfig) -> list[float]:
  """Return psi = softmax(w / temperature); Yang et al. (2022), Eq. 6."""
  temperature = config.decoder.options.temperature or math.sqrt(config.width)
  weights = parameters['decoder']['prediction']['group_weights']
  return jnp.exp(log_group_weights(weights, temperature)).tolist()


def groups(analysed: RunWithText) -> Numbers:
  """Read the weights of groups and of the layers in them."""
  config, parameters = analysed.run.config.model, analysed.run.parameters
  sides = sides_of(config, 'gtrans')
  weights: dict[str, list[float]] = {}
  if 'encoder' in sides:
    w = parameters['encoder']['read_out']['weights']
    weights['encoder'] = jax.nn.sigmoid(w).tolist()
  if 'decoder' in sides:
    w = parameters['decoder']['prediction'].get('layer_weights')
    if w is not None:
      weights['decoder_layers'] = jax.nn.sigmoid(w).tolist()
    weights['psi'] = _psi(parameters, config)
  return {
    'weights': weights,
    'layers': {
      side: [[group[0], group[-1]] for group in groups_of(config, side)]
      for side in sides
    },
    'training': _over_training(analysed),
    'paper': _PAPER['psi'],
  }


def _over_training(analysed: RunWithText) -> dict[str, Any] | None:
  try:
    rows = analysed.of_kind('fusion')
  except InputError as error:
    logger.warning('%s; the weights over the training are left out', error)
    return None
  weights: dict[str, Any] = {'steps': [row['step'] for row in rows]}
  for logged, name in _LOGGED.items():
    if values := numbered(rows, f'{logged}_'):
      weights[name] = list(values.values())
  return weights


def draw_groups(numbers: Numbers) -> figures.Figure:
  """Draw bars of the weights; below, over the training if logged twice."""
  weights, training = numbers['weights'], numbers['training'] or {'steps': []}
  panels = [_bars(name, x, numbers) for name, x in weights.items()]
  logged = [name for name in weights if name in training]
  for name in logged if len(training['steps']) > 1 else ():
    kind = 'layer' if name == 'decoder_layers' else 'group'
    lines = {
      f'{kind} {number}': (training['steps'], values)
      for number, values in enumerate(training[name], start=1)
    }
    labels = 'update', _TITLES[name]
    panels.append(figures.Panel('', figures.draw_lines, lines, *labels))
  return figures.draw_panels(panels, len(weights))


def _bars(name: str, values: list[float], numbers: Numbers) -> figures.Panel:
  bars = {'this run': values}
  if name == 'psi' and len(values) == len(numbers['paper']):
    bars['Yang 2022, 6 + 18 layers'] = numbers['paper']
  names, what = [str(n) for n in range(1, len(values) + 1)], 'layer'
  if name != 'decoder_layers':
    layers = numbers['layers']['encoder' if name == 'encoder' else 'decoder']
    ranges = zip(names, layers, strict=True)
    names = [f'{k}\n({first}-{last})' for k, (first, last) in ranges]
    what = 'group (its layers)'
  return figures.Panel('', figures.draw_bars, names, bars, what, _TITLES[name])


def groups_summary(numbers: Numbers) -> str:
  """List the weights."""
  said = '; '.join(
    f'{_TITLES[name]}: {", ".join(f"{value:.3f}" for value in values)}'
    for name, values in numbers['weights'].items()
  )
  return f'Weights from the lowest on: {said}.'


def group_bleu(analysed: RunWithText) -> Numbers:
  """Measure BLEU with every single group, and without the lowest groups."""
  run = analysed.run
  count = len(groups_of(run.config.model, 'decoder'))
  single = [f'{k}:{k}' for k in range(1, count + 1)]
  pruned = [f'{a}:{count}' for a in range(1, count + 1)]
  scores = {}
  for chosen in dict.fromkeys([*pruned, *single]):
    scores[chosen] = analysed.scores(with_groups(run, chosen))
    logger.info('groups %s: BLEU %.2f', chosen, scores[chosen].bleu)
  return {
    'single': [scores[chosen].bleu for chosen in single],
    'pruned': [scores[chosen].bleu for chosen in pruned],
    'psi': _psi(run.parameters, run.config.model),
    'lines': len(analysed.lines),
    'signature': scores[single[0]].bleu_signature,
    'decoding': dataclasses.asdict(run.config.decoding),
    'paper': _PAPER,
  }


def draw_group_bleu(numbers: Numbers) -> figures.Figure:
  """Draw BLEU of single and of several groups, and psi; the paper's below."""
  panels = []
  for title, row in (
    ('this run', numbers),
    ('Yang 2022, De-En, 6 + 18 layers', numbers['paper']),
  ):
    places = range(1, len(row['single']) + 1)
    lines = {
      'group k alone': (places, row['single']),
      f'groups k:{len(places)}': (places, row['pruned']),
    }
    bars = [*map(str, places)], {'psi': row['psi']}, 'group', 'psi'
    panels += [
      figures.Panel(title, figures.draw_lines, lines, 'k', 'BLEU'),
      figures.Panel(title, figures.draw_bars, *bars),
    ]
  figure = figures.draw_panels(panels)
  for panel in figure.axes[::2]:
    panel.set_ylim(bottom=0)
  return figure


def group_bleu_summary(numbers: Numbers) -> str:
  """Compare all groups with the best one."""
  best = max(numbers['single'])
  place = numbers['single'].index(best) + 1
  return (
    f'All groups together have BLEU {numbers["pruned"][0]:.2f}; the best one '
    f'alone, group {place} of {len(numbers["single"])}, has {best:.2f}.'
  )
