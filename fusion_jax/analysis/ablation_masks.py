"""What can be left out of a model, one part at a time."""

import dataclasses
from collections.abc import Iterable
from typing import Literal

import numpy as np

from fusion_jax import fusion
from fusion_jax.analysis.sides import SIDES
from fusion_jax.config import ModelConfig, Side
from fusion_jax.fusion.groups import group_count, groups_of
from fusion_jax.layers.ablation_masks import AblationMasks, with_masks
from fusion_jax.models.transformer import Parameters

Kind = Literal['layer', 'input', 'group']


@dataclasses.dataclass(frozen=True)
class Ablation:
  """A part that is left out; `AblationMasks` says what that means.

  Attributes:
    side: of the stack.
    kind: 'input': a layer as a fusion reads it.
    number: layers count from 1, 0 is the embedding; groups count from 1.
  """

  side: Side
  kind: Kind
  number: int


def lesions_of(config: ModelConfig) -> tuple[Ablation, ...]:
  """Every part that can be left out alone; what nothing reads is none."""
  return tuple(lesion for side in SIDES for lesion in _of_side(config, side))


def lesioned(
  parameters: Parameters, config: ModelConfig, lesion: Ablation | None
) -> Parameters:
  """Parameters of a model without a part.

  Args:
    parameters: of the model.
    config: of the model.
    lesion: of `lesions_of`; None: nothing is left out.

  Returns:
    The same arrays with masks beside them, of one structure for all lesions:
    what is compiled for one serves all.
  """
  masks = {side: _whole(config, side) for side in SIDES}
  if lesion is not None:
    masks[lesion.side] = _without(masks[lesion.side], config, lesion)
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
  # What is read alone is no aggregation, but a dense connection adds it to the
  # layer's own output; an encoder's group is its last layer.
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
  keep: AblationMasks, config: ModelConfig, lesion: Ablation
) -> AblationMasks:
  field, place = f'{lesion.kind}s', lesion.number
  if lesion.kind == 'group' and lesion.side == 'encoder':
    field = 'inputs'
    place = groups_of(config, 'encoder')[place - 1][-1]
  elif lesion.kind != 'input':
    place -= 1
  mask = getattr(keep, field).copy()
  mask[place] = False
  return keep._replace(**{field: mask})
