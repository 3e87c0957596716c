"""Ablations of a model: the parts that can be left out one at a time."""

import dataclasses
from collections.abc import Iterable
from typing import Literal

import numpy as np

from fusion_jax import fusion
from fusion_jax.analysis.sides import SIDES
from fusion_jax.config import ModelConfig, Side
from fusion_jax.fusion.gtrans import group_count, groups_of
from fusion_jax.layers.ablation_masks import AblationMasks, with_masks
from fusion_jax.models.transformer import Parameters

Kind = Literal['layer', 'input', 'group']


@dataclasses.dataclass(frozen=True)
class Ablation:
  """A part that is left out; see `AblationMasks` for the effect.

  Attributes:
    side: Side of the stack.
    kind: Kind of part; 'input' is a layer as layer aggregation or a layer
      connection reads it.
    number: Number of the part. Layers count from 1, with 0 for the embedding;
      groups count from 1.
  """

  side: Side
  kind: Kind
  number: int


def ablations_of(config: ModelConfig) -> tuple[Ablation, ...]:
  """Return every part that can be left out alone and that the model reads."""
  return tuple(
    ablation for side in SIDES for ablation in _of_side(config, side)
  )


def ablated(
  parameters: Parameters, config: ModelConfig, ablation: Ablation | None
) -> Parameters:
  """Return parameters of a model without a part.

  Args:
    parameters: Parameters of the model.
    config: Model configuration.
    ablation: One of `ablations_of`; None leaves nothing out.

  Returns:
    The same arrays with masks beside them. The structure is the same for all
    ablations, so that one compiled program serves them all.
  """
  masks = {side: _whole(config, side) for side in SIDES}
  if ablation is not None:
    masks[ablation.side] = _without(masks[ablation.side], config, ablation)
  return with_masks(parameters, masks)


def _of_side(config: ModelConfig, side: Side) -> Iterable[Ablation]:
  grouped = config.side(side).fusion == 'gtrans'
  depth, (first, last) = config.layers(side), (0, 0)
  if grouped and side == 'decoder':
    depth = fusion.inference_depth(config)
    first, last = fusion.groups_kept(config)
  elif grouped:
    last = group_count(config, side)
  for number in range(1, depth + 1):
    yield Ablation(side, 'layer', number)
  read = [n for n in fusion.layers_fused(config, side) if n <= depth]
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
  grouped = config.side(side).fusion == 'gtrans'
  sizes = layers, layers + 1, group_count(config, side) if grouped else 0
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
