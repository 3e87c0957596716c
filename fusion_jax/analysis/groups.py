"""Groups of layers: their weights, and what single groups translate.

Yang et al. (TASLP 2022), Fig. 8 and 9: the weights, which are read from the
parameters and, over the training, from metrics.jsonl. Table VI: BLEU of every
single group k:k, and of the mixtures a:N of the highest groups.
"""

import dataclasses
import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fusion_jax import figures
from fusion_jax.analysis.run_with_text import RunWithText, numbered
from fusion_jax.analysis.view import Numbers, View, sides_of
from fusion_jax.config import ModelConfig
from fusion_jax.errors import InputError
from fusion_jax.fusion.gtrans import group_count, groups_of, log_group_weights
from fusion_jax.metrics import Scores
from fusion_jax.runs.loading import TrainedModel

logger = logging.getLogger(__name__)

# Table VI of Yang et al. (2022): 6 + 18 layers, groups of 3.
PAPER_WEIGHTS = [0.066, 0.071, 0.103, 0.255, 0.254, 0.251]
# Table VI of Yang et al. (2022): De-En, 6 + 18 layers, groups of 3. The text of
# the paper gives 35.02 for the last group.
_PAPER = {
  'single': [33.12, 34.16, 34.94, 34.89, 35.17, 35.05],
  'pruned': [35.43, 35.39, 35.29, 35.10, 35.09, 35.05],
  'psi': PAPER_WEIGHTS,
}
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
  """Return psi = softmax(w / temperature); Yang et al. (2022), Eq. 6."""
  temperature = config.decoder.gtrans.temperature or math.sqrt(config.width)
  weights = parameters['decoder']['prediction']['group_weights']
  return jnp.exp(log_group_weights(weights, temperature)).tolist()


def group_weights(analysed: RunWithText) -> Numbers:
  """Read the weights of groups and of the layers in them."""
  config, parameters = analysed.run.config.model, analysed.run.parameters
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
    'training': _over_training(analysed),
    'paper': PAPER_WEIGHTS,
  }


def _over_training(analysed: RunWithText) -> dict[str, Any] | None:
  try:
    rows = analysed.of_kind('fusion')
  except InputError as error:
    logger.warning('%s; the weights over the training are left out', error)
    return None
  found: dict[str, Any] = {'steps': [row['step'] for row in rows]}
  for logged, name in _LOGGED.items():
    if values := numbered(rows, f'{logged}_'):
      found[name] = list(values.values())
  return found


def draw_weights(numbers: Numbers) -> figures.Figure:
  """Draw bars of the weights; below, over the training if logged twice."""
  weights, training = numbers['weights'], numbers['training'] or {'steps': []}
  is_curve = len(training['steps']) > 1
  curves = [name for name in weights if is_curve and name in training]
  figure, axes = figures.panels(len(weights) + len(curves), len(weights))
  for panel, (name, values) in zip(axes, weights.items(), strict=False):
    _draw_bars(panel, name, values, numbers)
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


def _draw_bars(
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


def weights_summary(numbers: Numbers) -> str:
  """List the weights."""
  said = '; '.join(
    f'{_TITLES[name]}: ' + ', '.join(f'{value:.3f}' for value in values)
    for name, values in numbers['weights'].items()
  )
  return f'Weights from the lowest on: {said}.'


WEIGHTS = View(
  name='groups',
  title='Weights of groups of layers',
  source='Yang et al. 2022, Fig. 8 and 9, and Table VI',
  reading=(
    'Weights of the groups of the encoder, of the layers of the decoder, and '
    'psi, the share of every decoder group in the prediction.'
  ),
  measure=group_weights,
  draw=draw_weights,
  summary=weights_summary,
  applies=lambda config: bool(sides_of(config, 'gtrans')),
  needs='a model with groups (gtrans)',
  reads='parameters',
)


def with_groups(run: TrainedModel, groups: str) -> TrainedModel:
  """Return a run that translates with some of its decoder groups."""
  model = run.config.model
  gtrans = dataclasses.replace(model.decoder.gtrans, inference_groups=groups)
  decoder = dataclasses.replace(model.decoder, gtrans=gtrans)
  model = dataclasses.replace(model, decoder=decoder)
  return dataclasses.replace(
    run,
    config=dataclasses.replace(run.config, model=model),
    model=run.model.clone(config=model),
  )


def group_scores(analysed: RunWithText) -> Numbers:
  """Measure BLEU with every single group, and without the lowest groups."""
  run = analysed.run
  count = group_count(run.config.model, 'decoder')
  single = [f'{k}:{k}' for k in range(1, count + 1)]
  pruned = [f'{a}:{count}' for a in range(1, count + 1)]
  scores = {
    groups: _scores(analysed, groups)
    for groups in dict.fromkeys([*pruned, *single])
  }
  return {
    'single': [scores[groups].bleu for groups in single],
    'pruned': [scores[groups].bleu for groups in pruned],
    'psi': psi_of(run.parameters, run.config.model),
    'lines': len(analysed.lines),
    'signature': scores[single[0]].bleu_signature,
    'decoding': dataclasses.asdict(run.config.decoding),
    'paper': _PAPER,
  }


def _scores(analysed: RunWithText, groups: str) -> Scores:
  scores = analysed.scores(with_groups(analysed.run, groups))
  logger.info('groups %s: BLEU %.2f', groups, scores.bleu)
  return scores


def draw_bleu(numbers: Numbers) -> figures.Figure:
  """Draw BLEU of single and of several groups, and psi; the paper's below."""
  figure, axes = figures.panels(4)
  _draw_row(axes[:2], numbers, 'this run')
  _draw_row(axes[2:], numbers['paper'], 'Yang 2022, De-En, 6 + 18 layers')
  return figure


def _draw_row(
  axes: Sequence[figures.Axes], numbers: Mapping[str, Any], title: str
) -> None:
  count = len(numbers['single'])
  numbered = range(1, count + 1)
  curves = {
    'group k alone': (numbered, numbers['single']),
    f'groups k:{count}': (numbered, numbers['pruned']),
  }
  figures.draw_lines(axes[0], curves, 'k', 'BLEU')
  axes[0].set_ylim(bottom=0)
  names = [str(k) for k in numbered]
  figures.draw_bars(axes[1], names, {'psi': numbers['psi']}, 'group', 'psi')
  for panel in axes:
    panel.set_title(title)


def bleu_summary(numbers: Numbers) -> str:
  """Compare all groups with the best one."""
  best = max(numbers['single'])
  place = numbers['single'].index(best) + 1
  return (
    f'All groups together have BLEU {numbers["pruned"][0]:.2f}; the best one '
    f'alone, group {place} of {len(numbers["single"])}, has {best:.2f}.'
  )


BLEU = View(
  name='group_bleu',
  title='BLEU of groups of layers',
  source='Yang et al. 2022, Table VI',
  reading=(
    'BLEU of the text translated with one group of decoder layers alone, and '
    'with the highest groups together.'
  ),
  measure=group_scores,
  draw=draw_bleu,
  summary=bleu_summary,
  applies=lambda config: 'decoder' in sides_of(config, 'gtrans'),
  needs='a model with decoder groups (decoder.fusion=gtrans)',
  slow=True,
)
