"""Ablations: loss and BLEU of a model without one layer, group or fused layer.

Nothing is retrained: the part is left out at inference, in the teacher-forced
pass and in every step of the search. One program serves all ablations, because
the masks are inputs (`fusion_jax.layers.context`).
"""

import dataclasses
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from fusion_jax import figures
from fusion_jax.analysis.passes import sums_over_text
from fusion_jax.analysis.run_with_text import SIDES, Numbers, RunWithText
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
_KINDS = {'layer': 'layer', 'input': 'fused layer', 'group': 'group'}
_MEASURES = {
  'loss_change': 'change of the loss, nats per subword',
  'bleu_change': 'change of BLEU, points',
}

Kind = Literal['layer', 'input', 'group']


class Ablation(NamedTuple):
  """A part that is left out; see `AblationMasks` for the effect.

  Attributes:
    kind: Kind of part; 'input' is a layer as a fusion reads it.
    number: Number from 1; 0 is the embedding. With fusion='surface_fusion'
      group 2 is the prediction of the source's embeddings.
  """

  side: Side
  kind: Kind
  number: int

  def __str__(self) -> str:
    return f'{_KINDS[self.kind]} {self.number} of the {self.side}'


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


def _of_side(config: ModelConfig, side: Side) -> Iterator[Ablation]:
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
  if len(read) < least or (grouped and side == 'encoder'):
    read = []
  for number in read:
    yield Ablation(side, 'input', number)
  for number in range(first + 1, last + 1) if last - first > 1 else ():
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


def _losses(
  analysed: RunWithText, chosen: Sequence[Ablation | None]
) -> list[float | None]:
  """Measure the mean negative log-likelihood per target subword."""
  run = analysed.run

  def measure(parameters: Parameters, batch: Batch) -> LossSums:
    return batch_loss(run.model, parameters, batch, 0.0, _CHUNK_TOKENS)[0]

  models = (ablated(run.parameters, run.config.model, one) for one in chosen)
  losses = [
    float(sums.negative_log_likelihood) / int(sums.tokens)
    for sums in sums_over_text(analysed, measure, models)
  ]
  return [loss if math.isfinite(loss) else None for loss in losses]


def _scores(
  analysed: RunWithText, chosen: Sequence[Ablation | None]
) -> tuple[list[float], str]:
  """Measure BLEU under each ablation, with the search of the run's config."""
  run = analysed.run
  scores, signature = [], ''
  for number, ablation in enumerate(chosen, start=1):
    parameters = ablated(run.parameters, run.config.model, ablation)
    scored = analysed.scores(dataclasses.replace(run, parameters=parameters))
    scores.append(scored.bleu)
    signature = scored.bleu_signature
    what = f'without {ablation}' if ablation else 'of the whole model'
    done = f'{number} of {len(chosen)}'
    logger.info('translated %s: BLEU %.2f %s', done, scored.bleu, what)
  return scores, signature


def ablations(analysed: RunWithText) -> Numbers:
  """Measure loss and BLEU of the whole model and of every ablation."""
  chosen = ablations_of(analysed.run.config.model)
  whole, *losses = _losses(analysed, (None, *chosen))
  scores, signature = _scores(analysed, (None, *chosen))
  rows = []
  for ablation, loss, bleu in zip(chosen, losses, scores[1:], strict=True):
    changes = {
      'loss': loss,
      'loss_change': _difference(loss, whole),
      'bleu': bleu,
      'bleu_change': bleu - scores[0],
    }
    rows.append(ablation._asdict() | changes)
  return {
    'lines': len(analysed.lines),
    'bleu_signature': signature,
    'whole': {'loss': whole, 'bleu': scores[0]},
    'ablations': rows,
  }


def _difference(value: float | None, whole: float | None) -> float | None:
  return None if value is None or whole is None else value - whole


def draw_ablations(numbers: Numbers) -> figures.Figure:
  """Draw a row of bars for each side and kind: loss, then BLEU."""
  rows: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
  for row in numbers['ablations']:
    rows.setdefault((row['side'], row['kind']), []).append(row)
  panels = []
  for (side, kind), parts in rows.items():
    names = [str(row['number']) for row in parts]
    x = f'{_KINDS[kind]} that is left out'
    x += ' (0: embedding)' if kind == 'input' else ''
    title = f'{side}, without a {_KINDS[kind]}'
    for measured, label in _MEASURES.items():
      bars = {side: [row[measured] for row in parts]}
      given = names, bars, x, label
      panels.append(figures.Panel(title, figures.draw_bars, *given))
  return figures.draw_panels(panels)


def ablations_summary(numbers: Numbers) -> str:
  """Name the part that the model misses most."""
  whole = numbers['whole']
  worst = max(numbers['ablations'], key=_cost)
  missed = Ablation(worst['side'], worst['kind'], worst['number'])
  loss = 'no' if whole['loss'] is None else f'{whole["loss"]:.3f}'
  change = worst['loss_change']
  change = 'no finite loss' if change is None else f'{change:+.3f} nats'
  return (
    f'The whole model has a loss of {loss} nats and BLEU {whole["bleu"]:.2f}; '
    f'it suffers most without {missed}: {change}, '
    f'BLEU {worst["bleu_change"]:+.2f}.'
  )


def _cost(row: Mapping[str, Any]) -> float:
  return math.inf if row['loss_change'] is None else row['loss_change']
