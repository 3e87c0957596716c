"""Weights of groups of layers, and their course over the training.

Yang et al. (TASLP 2022), Fig. 8 and 9, and the weights of Table VI. They are
read from the parameters and, over the training, from metrics.jsonl.
"""

import logging
import math
import re
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from fusion_jax import figures
from fusion_jax.analysis.run_with_text import RunWithText
from fusion_jax.analysis.sides import sides_of
from fusion_jax.analysis.view_result import View, ViewResult
from fusion_jax.config import ModelConfig
from fusion_jax.errors import InputError
from fusion_jax.fusion.gtrans import groups_of, log_group_weights

logger = logging.getLogger(__name__)

# Table VI of Yang et al. (2022): 6 + 18 layers, groups of 3.
PAPER_WEIGHTS = [0.066, 0.071, 0.103, 0.255, 0.254, 0.251]
# Names in metrics.jsonl, and the corresponding names here.
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


def psi_of(parameters: Mapping[str, Any], config: ModelConfig) -> list[float]:
  """Return psi = softmax(w / temperature); Yang et al. (2022), Eq. 6.

  Args:
    parameters: Parameters of a model with decoder groups.
    config: Model configuration.
  """
  temperature = config.decoder.gtrans.temperature or math.sqrt(config.width)
  weights = parameters['decoder']['prediction']['group_weights']
  return jnp.exp(log_group_weights(weights, temperature)).tolist()


def group_weights(subject: RunWithText) -> Mapping[str, Any]:
  """Read the weights of groups and of the layers in them.

  Args:
    subject: Run to read.

  Returns:
    'weights': 'encoder', sigmoid(w) of every group, 'decoder_layers',
    sigmoid(w) of every layer, and 'psi' of every group, as far as the model
    has them. 'layers': the first and the last layer of every group of each
    side. 'training': 'steps' and the same weights over the training,
    [weights][steps]; None where nothing was logged. 'paper': psi of Yang et
    al. (2022).
  """
  config, parameters = subject.run.config.model, subject.run.parameters
  sides = sides_of(config, 'gtrans')
  weights: dict[str, list[float]] = {}
  if 'encoder' in sides:
    own = parameters['encoder']['read_out']['weights']
    weights['encoder'] = jax.nn.sigmoid(own).tolist()
  if 'decoder' in sides:
    own = parameters['decoder']['prediction']
    if 'layer_weights' in own:
      layer_weights = jax.nn.sigmoid(own['layer_weights'])
      weights['decoder_layers'] = layer_weights.tolist()
    weights['psi'] = psi_of(parameters, config)
  return {
    'weights': weights,
    'layers': {
      side: [[group[0], group[-1]] for group in groups_of(config, side)]
      for side in sides
    },
    'training': _over_training(subject),
    'paper': PAPER_WEIGHTS,
  }


def _over_training(subject: RunWithText) -> dict[str, Any] | None:
  try:
    rows = subject.of_kind('fusion')
  except InputError as error:
    logger.warning('%s; the weights over the training are left out', error)
    return None
  found: dict[str, Any] = {'steps': [row['step'] for row in rows]}
  for logged, name in _LOGGED.items():
    pattern = re.compile(re.escape(logged) + r'_(\d+)')
    numbers = sorted(
      int(match[1]) for match in map(pattern.fullmatch, rows[-1]) if match
    )
    if numbers:
      found[name] = [
        [row.get(f'{logged}_{number}') for row in rows] for number in numbers
      ]
  return found


def draw(numbers: Mapping[str, Any]) -> figures.Figure:
  """Draw bars of the weights; below, the weights over the training."""
  weights, training = numbers['weights'], numbers['training'] or {}
  curves = [name for name in weights if name in training]
  figure, axes = figures.panels(len(weights) + len(curves), len(weights))
  for panel, (name, values) in zip(axes, weights.items(), strict=False):
    _draw_weights(panel, name, values, numbers)
  for panel, name in zip(axes[len(weights) :], curves, strict=True):
    each = 'layer' if name == 'decoder_layers' else 'group'
    lines = {
      f'{each} {number}': (
        training['steps'],
        [math.nan if value is None else value for value in values],
      )
      for number, values in enumerate(training[name], start=1)
    }
    figures.draw_lines(panel, lines, 'update', _TITLES[name])
  return figure


def _draw_weights(
  axes: figures.Axes,
  name: str,
  values: list[float],
  numbers: Mapping[str, Any],
) -> None:
  bars = {'this run': values}
  if name == 'psi' and len(values) == len(numbers['paper']):
    bars['Yang 2022, 6 + 18 layers'] = numbers['paper']
  each = [str(number) for number in range(1, len(values) + 1)]
  if name != 'decoder_layers':
    side = 'encoder' if name == 'encoder' else 'decoder'
    ranges = numbers['layers'][side]
    each = [f'{k}\n({a}-{b})' for k, (a, b) in zip(each, ranges, strict=True)]
  what = 'layer' if name == 'decoder_layers' else 'group (its layers)'
  figures.draw_bars(axes, each, bars, what, _TITLES[name])


def look(subject: RunWithText) -> ViewResult:
  """Read the weights, and summarise and draw them."""
  numbers = group_weights(subject)
  said = '; '.join(
    f'{_TITLES[name]}: ' + ', '.join(f'{value:.3f}' for value in values)
    for name, values in numbers['weights'].items()
  )
  return ViewResult(
    numbers,
    lambda: draw(numbers),
    f'Weights from the lowest on: {said}.',
  )


VIEW = View(
  name='groups',
  title='Weights of groups of layers',
  source='Yang et al. 2022, Fig. 8 and 9, and Table VI',
  reading=(
    'Weights of the groups of the encoder, of the layers of the decoder, and '
    'psi, the share of every decoder group in the prediction.'
  ),
  look=look,
  applies=lambda config: bool(sides_of(config, 'gtrans')),
  needs='a model with groups (gtrans)',
  reads='parameters',
)
