"""Ablations: loss and BLEU of a model without one layer, group or fused layer.

Nothing is retrained: the part is left out at inference, in the teacher-forced
pass and in every step of the search. One program serves all ablations, because
the masks are inputs (`fusion_jax.layers.context`).

Of the groups of GTRANS also BLEU of every single group k:k, and of the mixtures
a:N of the highest groups; Yang et al. (TASLP 2022), Table VI.
"""

import dataclasses
import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from fusion_jax import figures
from fusion_jax.analysis.passes import sums_over_text
from fusion_jax.analysis.run_with_text import RunWithText
from fusion_jax.analysis.sown_quantities import PAPER, psi_of
from fusion_jax.analysis.view import SIDES, Numbers
from fusion_jax.cli.request import with_groups
from fusion_jax.config import ModelConfig, Side
from fusion_jax.data.batching import Batch
from fusion_jax.fusion.gtrans import groups_of
from fusion_jax.fusion.scheme import predictions_of, scheme_of
from fusion_jax.layers.context import AblationMasks, with_masks
from fusion_jax.models.losses import LossSums
from fusion_jax.models.transformer import Parameters
from fusion_jax.training.gradients import batch_loss

logger = logging.getLogger(__name__)

_CHUNK_TOKENS = 1_024
_FIELDS = 'side', 'kind', 'number'
_KINDS = {'layer': 'layer', 'input': 'fused layer', 'group': 'group'}
# Table VI of Yang et al. (2022): De-En, 6 + 18 layers, groups of 3. The text of
# the paper gives 35.02 for the last group.
_PAPER_GROUPS = {
  'single': [33.12, 34.16, 34.94, 34.89, 35.17, 35.05],
  'pruned': [35.43, 35.39, 35.29, 35.10, 35.09, 35.05],
  'psi': PAPER['groups'],
}
_MEASURES = {
  'loss_change': 'change of the loss, nats per subword',
  'bleu_change': 'change of BLEU, points',
}

Kind = Literal['layer', 'input', 'group']


@dataclasses.dataclass(frozen=True)
class Ablation:
  """A part that is left out; see `AblationMasks` for the effect.

  Attributes:
    kind: Kind of part; 'input' is a layer as a fusion reads it.
    number: Number from 1; 0 is the embedding. With fusion='surface_fusion'
      group 2 is the prediction of the source's embeddings.
  """

  side: Side
  kind: Kind
  number: int


def ablations_of(config: ModelConfig) -> tuple[Ablation, ...]:
  """Return every part that can be left out alone and that the model reads."""
  return tuple(part for side in SIDES for part in _of_side(config, side))


def ablated(
  parameters: Parameters, config: ModelConfig, ablation: Ablation | None
) -> Parameters:
  """Return parameters of a model without a part."""
  masks = {side: _whole(config, side) for side in SIDES}
  if ablation is not None:
    masks[ablation.side] = _without(masks[ablation.side], config, ablation)
  return with_masks(parameters, masks)


def _of_side(config: ModelConfig, side: Side) -> Iterable[Ablation]:
  grouped = config.side(side).fusion == 'gtrans'
  depth, (first, last) = config.layers(side), (0, 0)
  mixed = predictions_of(config) if side == 'decoder' else None
  if mixed is not None:
    depth, (first, last) = mixed.layers, mixed.kept
  elif grouped:
    last = len(groups_of(config, side))
  for number in range(1, depth + 1):
    yield Ablation(side, 'layer', number)
  numbers = scheme_of(config, side).layers_read(config, side)
  read = [n for n in numbers if n <= depth]
  # A layer that is read alone is not aggregated, but a dense connection adds it
  # to the layer's own output. A group of the encoder is read as its last layer.
  least = 1 if config.side(side).fusion == 'dense' else 2
  if len(read) >= least and not (grouped and side == 'encoder'):
    for number in read:
      yield Ablation(side, 'input', number)
  if last - first > 1:
    for number in range(first + 1, last + 1):
      yield Ablation(side, 'group', number)


def _whole(config: ModelConfig, side: Side) -> AblationMasks:
  layers = config.layers(side)
  mixed = predictions_of(config) if side == 'decoder' else None
  sizes = layers, layers + 1, 0 if mixed is None else mixed.total
  return AblationMasks(*(np.ones(size, bool) for size in sizes))


def _without(
  keep: AblationMasks, config: ModelConfig, ablation: Ablation
) -> AblationMasks:
  field, place = f'{ablation.kind}s', ablation.number
  if ablation.kind == 'group' and ablation.side == 'encoder':
    field = 'inputs'
    place = groups_of(config, 'encoder')[place - 1][-1]
  elif ablation.kind != 'input':
    place -= 1
  mask = getattr(keep, field).copy()
  mask[place] = False
  return keep._replace(**{field: mask})


def ablation_losses(
  analysed: RunWithText, chosen: Sequence[Ablation | None]
) -> list[float | None]:
  """Measure the mean negative log-likelihood per target subword."""
  run = analysed.run

  def measure(parameters: Parameters, batch: Batch) -> LossSums:
    return batch_loss(run.model, parameters, batch, 0.0, _CHUNK_TOKENS)[0]

  models = (
    ablated(run.parameters, run.config.model, ablation) for ablation in chosen
  )
  losses = [
    float(sums.negative_log_likelihood) / int(sums.tokens)
    for sums in sums_over_text(analysed, measure, models)
  ]
  return [loss if math.isfinite(loss) else None for loss in losses]


def ablation_scores(
  analysed: RunWithText, chosen: Sequence[Ablation | None]
) -> tuple[list[float], str]:
  """Measure BLEU under each ablation, with the search of the run's config."""
  run = analysed.run
  scores, signature = [], ''
  for ablation in chosen:
    parameters = ablated(run.parameters, run.config.model, ablation)
    scored = analysed.scores(dataclasses.replace(run, parameters=parameters))
    scores.append(scored.bleu)
    signature = scored.bleu_signature
    what = f'without {_name(ablation)}' if ablation else 'of the whole model'
    done = f'{len(scores)} of {len(chosen)}'
    logger.info('translated %s: BLEU %.2f %s', done, scored.bleu, what)
  return scores, signature


def measure(analysed: RunWithText) -> Numbers:
  """Measure loss and BLEU of the whole model and of every ablation."""
  chosen = ablations_of(analysed.run.config.model)
  losses = ablation_losses(analysed, (None, *chosen))
  scores, signature = ablation_scores(analysed, (None, *chosen))
  rows = [
    dataclasses.asdict(ablation)
    | {
      'loss': loss,
      'loss_change': _difference(loss, losses[0]),
      'bleu': bleu,
      'bleu_change': bleu - scores[0],
    }
    for ablation, loss, bleu in zip(chosen, losses[1:], scores[1:], strict=True)
  ]
  return {
    'lines': len(analysed.lines),
    'bleu_signature': signature,
    'whole': {'loss': losses[0], 'bleu': scores[0]},
    'ablations': rows,
  }


def draw(numbers: Numbers) -> figures.Figure:
  """Draw a row of bars for each side and kind: loss, then BLEU."""
  rows: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
  for row in numbers['ablations']:
    rows.setdefault((row['side'], row['kind']), []).append(row)
  panels = []
  for (side, kind), parts in rows.items():
    for measured, label in _MEASURES.items():
      heights = [row[measured] for row in parts]
      names = [str(row['number']) for row in parts]
      x = f'{_KINDS[kind]} that is left out'
      x += ' (0: embedding)' if kind == 'input' else ''
      given = names, {side: heights}, x, label
      title = f'{side}, without a {_KINDS[kind]}'
      panels.append(figures.Panel(figures.draw_bars, given, title))
  return figures.draw_panels(panels)[0]


def summary(numbers: Numbers) -> str:
  """Name the part that the model misses most."""
  whole = numbers['whole']
  worst = max(numbers['ablations'], key=_cost)
  loss = 'no' if whole['loss'] is None else f'{whole["loss"]:.3f}'
  change = worst['loss_change']
  change = 'no finite loss' if change is None else f'{change:+.3f} nats'
  return (
    f'The whole model has a loss of {loss} nats and BLEU {whole["bleu"]:.2f}; '
    f'it suffers most without {_name(Ablation(*map(worst.get, _FIELDS)))}: '
    f'{change}, BLEU {worst["bleu_change"]:+.2f}.'
  )


def _name(ablation: Ablation) -> str:
  return f'{_KINDS[ablation.kind]} {ablation.number} of the {ablation.side}'


def _difference(value: float | None, whole: float | None) -> float | None:
  return None if value is None or whole is None else value - whole


def _cost(row: Mapping[str, Any]) -> float:
  return math.inf if row['loss_change'] is None else row['loss_change']


def group_scores(analysed: RunWithText) -> Numbers:
  """Measure BLEU with every single group, and without the lowest groups."""
  run = analysed.run
  count = len(groups_of(run.config.model, 'decoder'))
  single = [f'{k}:{k}' for k in range(1, count + 1)]
  pruned = [f'{a}:{count}' for a in range(1, count + 1)]
  scores = {}
  for groups in dict.fromkeys([*pruned, *single]):
    scores[groups] = analysed.scores(with_groups(run, groups))
    logger.info('groups %s: BLEU %.2f', groups, scores[groups].bleu)
  return {
    'single': [scores[groups].bleu for groups in single],
    'pruned': [scores[groups].bleu for groups in pruned],
    'psi': psi_of(run.parameters, run.config.model),
    'lines': len(analysed.lines),
    'signature': scores[single[0]].bleu_signature,
    'decoding': dataclasses.asdict(run.config.decoding),
    'paper': _PAPER_GROUPS,
  }


def draw_groups(numbers: Numbers) -> figures.Figure:
  """Draw BLEU of single and of several groups, and psi; the paper's below."""
  panels = []
  for title, row in (
    ('this run', numbers),
    ('Yang 2022, De-En, 6 + 18 layers', numbers['paper']),
  ):
    groups = range(1, len(row['single']) + 1)
    curves = {
      'group k alone': (groups, row['single']),
      f'groups k:{len(groups)}': (groups, row['pruned']),
    }
    psi = [*map(str, groups)], {'psi': row['psi']}, 'group', 'psi'
    panels.append(
      figures.Panel(figures.draw_lines, (curves, 'k', 'BLEU'), title)
    )
    panels.append(figures.Panel(figures.draw_bars, psi, title))
  figure, axes = figures.draw_panels(panels)
  for panel in axes[::2]:
    panel.set_ylim(bottom=0)
  return figure


def groups_summary(numbers: Numbers) -> str:
  """Compare all groups with the best one."""
  best = max(numbers['single'])
  place = numbers['single'].index(best) + 1
  return (
    f'All groups together have BLEU {numbers["pruned"][0]:.2f}; the best one '
    f'alone, group {place} of {len(numbers["single"])}, has {best:.2f}.'
  )
