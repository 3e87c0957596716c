"""Group fusion and probability fusion of GTRANS; Yang et al. (TASLP 2022).

Consecutive layers form groups. The encoder's groups are fused into one tensor.
Each of the decoder's groups predicts, and the predictions are mixed with the
weights psi.

Axis letters: B batch, T positions, D model width, L layers, G groups, n layers
of one group, M rows, V vocabulary.
"""

import math
import re
from typing import Annotated, Literal

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from fusion_jax.bounds import NotNegative, SizeOrZero, Text
from fusion_jax.config import ModelConfig, Side
from fusion_jax.config.fusion import Only
from fusion_jax.config.section import section
from fusion_jax.errors import require
from fusion_jax.fusion.inputs import FusionModule, weighted_sum
from fusion_jax.fusion.scheme import Predictions, Scheme
from fusion_jax.layers.context import Context, Layers, States
from fusion_jax.layers.dense import parameter
from fusion_jax.layers.residual import layer_norm
from fusion_jax.layers.sow import sow


def partition(
  layers: int, size: int, last_group: Literal['ceil', 'floor']
) -> tuple[range, ...]:
  """Return the layer numbers of every group; Yang et al. (2022), sec. III."""
  end = layers + 1 if last_group == 'ceil' else layers - size + 2
  return tuple(
    range(first, min(first + size, layers + 1)) for first in range(1, end, size)
  )


def parse_groups(text: str, groups: int, field: str) -> tuple[int, int]:
  """Read 'first:last', counted from 1, as a half-open range from 0."""
  match = re.fullmatch('([0-9]{1,9}):([0-9]{1,9})', text)
  first, last = map(int, match.groups()) if match else (0, 0)
  require(
    1 <= first <= last <= groups,
    field,
    f"must be 'first:last' within 1:{groups}, got {text!r}",
  )
  return first - 1, last


@section('model.*.options')
class GtransOptions:
  """Group fusion and probability fusion (Yang 2022, Eq. 2-7)."""

  group_size: SizeOrZero = 0
  """Layers of a group; 0: 3 in the encoder, 2 in the decoder."""

  last_group: Literal['ceil', 'floor'] = 'ceil'
  """'ceil': the last group may be short. 'floor': layers that are left over
  belong to no group."""

  single_group_norm: Annotated[bool, Only('encoder')] = False
  """Encoder: a norm even where all layers are one group, as released."""

  mode: Annotated[
    Literal['weighted_sum', 'weighted_mean', 'last'], Only('decoder')
  ] = 'weighted_sum'
  """Decoder: how the layers of a group become its features."""

  combine: Annotated[Literal['arithmetic', 'geometric'], Only('decoder')] = (
    'arithmetic'
  )
  """Decoder: log sum_k psi_k P_k, or sum_k psi_k log P_k."""

  temperature: Annotated[NotNegative, Only('decoder')] = 0.0
  """Decoder: psi = softmax(w / temperature); 0: sqrt(model.width)."""

  inference_groups: Annotated[Text, Only('decoder')] = ''
  """Decoder: groups that translate, 'first:last' counted from 1; '': all."""

  def layers_of_group(self, side: Side) -> int:
    """Return the number of layers of a whole group."""
    return self.group_size or (3 if side == 'encoder' else 2)

  def groups(self, layers: int, side: Side) -> tuple[range, ...]:
    """Return the layer numbers of every group of a stack."""
    return partition(layers, self.layers_of_group(side), self.last_group)


def groups_of(config: ModelConfig, side: Side) -> tuple[range, ...]:
  """Return the layer numbers of every group of a stack."""
  return config.side(side).options.groups(config.layers(side), side)


def layers_in_groups(config: ModelConfig, side: Side) -> tuple[int, ...]:
  """Return the numbers of the layers that the groups of a stack read."""
  last = side == 'encoder' or config.side(side).options.mode == 'last'
  groups = groups_of(config, side)
  return tuple(n for group in groups for n in (group[-1:] if last else group))


def group_sum(
  layers: Layers, group: range, weights: Float[Array, ' L']
) -> States:
  """Return sum_{l in group} w_l H[l]; Yang et al. (2022), Eq. 4.

  Args:
    weights: Weights w_1..w_L, float32.
  """
  weights = weights[group.start - 1 : group.stop - 1]
  return weighted_sum(weights, tuple(layers[number] for number in group))


def log_group_weights(
  weights: Float[Array, ' G'], temperature: float
) -> Float[Array, ' G']:
  """Return log psi, psi = softmax(w / temperature); Yang (2022), Eq. 5."""
  return jax.nn.log_softmax(weights.astype(jnp.float32) / temperature)


def _zero_weights(
  module: nn.Module, name: str, axis: str, count: int
) -> Float[Array, ' {count}']:
  zeros = nn.initializers.zeros_init()
  return parameter(module, name, zeros, (axis,), (count,))


class EncoderGroups(FusionModule):
  """Fusion of the encoder's groups; Yang et al. (2022), Eq. 2.

  LN(1 / G sum_k sigmoid(w_k) H[last layer of k]). Where all layers are one
  group there is no norm, as in the paper's formula, unless `single_group_norm`
  asks for it, as in the released code.
  """

  def setup(self):
    count = len(groups_of(self.config, self.side))
    self.weights = _zero_weights(self, 'weights', 'groups', count)
    always = self.options.single_group_norm
    normed = count > 1 or always
    self.norm = layer_norm(self.config) if normed else lambda x: x

  def __call__(self, layers: Layers, context: Context) -> States:
    del context
    weights = jax.nn.sigmoid(self.weights)
    sow(self, 'telemetry', 'group_weights', weights)
    groups = groups_of(self.config, self.side)
    fused = weighted_sum(
      weights / len(groups), tuple(layers[group[-1]] for group in groups)
    )
    return self.norm(fused)


class DecoderGroups(FusionModule):
  """Features and weights of the decoder's groups; Yang (2022), Eq. 4-5.

  G[k] = sum_{l in k} sigmoid(w_l) H[l], with the weights psi.
  mode='weighted_mean' divides by the number of layers of the group; mode='last'
  takes the group's last layer as it is. Both come from the released code.
  Layers that belong to no group have no weight.
  """

  def setup(self):
    groups = groups_of(self.config, self.side)
    if self.options.mode != 'last':
      self.layer_weights = _zero_weights(
        self, 'layer_weights', 'layers', groups[-1][-1]
      )
    self.group_weights = _zero_weights(
      self, 'group_weights', 'groups', len(groups)
    )

  def __call__(
    self, layers: Layers, context: Context
  ) -> tuple[Float[Array, 'G B T D'], Float[Array, ' G']]:
    """Return the features of the groups, and their log psi.

    Args:
      layers: Layers H[0..L], or the lowest of them: only groups that are
        complete are returned.

    Returns:
      The features of those groups, and their log psi among all groups, float32.
    """
    del context
    config, options = self.config, self.options
    features = self._features(layers)
    log_weights = log_group_weights(
      self.group_weights, options.temperature or math.sqrt(config.width)
    )
    sow(self, 'telemetry', 'group_weights', jnp.exp(log_weights))
    return jnp.stack(features), log_weights[: len(features)]

  def _features(self, layers: Layers) -> list[States]:
    groups = [
      group
      for group in groups_of(self.config, self.side)
      if group[-1] < len(layers)
    ]
    mode = self.options.mode
    if mode == 'last':
      return [layers[group[-1]] for group in groups]
    weights = jax.nn.sigmoid(self.layer_weights)
    sow(self, 'telemetry', 'layer_weights', weights)
    sums = [group_sum(layers, group, weights) for group in groups]
    if mode == 'weighted_sum':
      return sums
    return [x / len(group) for x, group in zip(sums, groups, strict=True)]


def _predictions(config: ModelConfig) -> Predictions:
  groups, text = (
    groups_of(config, 'decoder'),
    config.decoder.options.inference_groups,
  )
  kept = 0, len(groups)
  if text:
    field = 'model.decoder.options.inference_groups'
    kept = parse_groups(text, len(groups), field)
  return Predictions(len(groups), kept, groups[kept[1] - 1][-1])


def _check(config: ModelConfig, side: Side) -> None:
  options, path = config.side(side).options, f'model.{side}.options'
  layers = config.layers(side)
  groups = options.groups(layers, side)
  require(
    bool(groups),
    f'{path}.last_group',
    f"'floor' leaves no group of {options.layers_of_group(side)} among "
    f'{layers} layers',
  )
  if side == 'decoder':
    _predictions(config)


SCHEME = Scheme(
  'gtrans',
  'Yang et al. 2022, Eq. 2-7',
  GtransOptions,
  {'encoder': EncoderGroups, 'decoder': DecoderGroups},
  {'encoder': 'layer aggregation', 'decoder': 'prediction'},
  layers_read=layers_in_groups,
  check=_check,
  predictions=_predictions,
)
