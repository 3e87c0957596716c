"""Group fusion and probability fusion of GTRANS; Yang et al. (TASLP 2022).

Consecutive layers form groups. The encoder's groups are fused into one tensor.
Each of the decoder's groups predicts, and the predictions are mixed with the
weights psi.

Axis letters: B batch, T positions, D model width, L layers, G groups, n layers
of one group, M rows, V vocabulary.
"""

import math
from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from fusion_jax.config import ModelConfig, Side
from fusion_jax.fusion.inputs import Layers, weighted_sum
from fusion_jax.fusion.scheme import (
  Scheme,
)
from fusion_jax.layers.context import Context
from fusion_jax.layers.parameter import parameter
from fusion_jax.layers.residual import layer_norm
from fusion_jax.layers.sow import sow


def groups_of(config: ModelConfig, side: Side) -> tuple[range, ...]:
  """Return the layer numbers of every group of a stack."""
  return config.side(side).gtrans.groups(config.layers(side), side)


def group_count(config: ModelConfig, side: Side) -> int:
  """Return the number of groups of a stack."""
  return len(groups_of(config, side))


def layers_in_groups(config: ModelConfig, side: Side) -> tuple[int, ...]:
  """Return the numbers of the layers that the groups of a stack read."""
  last = side == 'encoder' or config.side(side).gtrans.mode == 'last'
  groups = groups_of(config, side)
  return tuple(n for group in groups for n in (group[-1:] if last else group))


def group_sum(
  layers: Layers,
  group: range,
  weights: Float[Array, ' L'],
  mode: Literal['weighted_sum', 'weighted_mean'],
) -> Float[Array, 'B T D']:
  """Return sum_{l in group} w_l H[l]; Yang et al. (2022), Eq. 4.

  Args:
    layers: Layers H[0..L].
    group: Numbers of the layers of the group.
    weights: Weights w_1..w_L, float32.
    mode: Whether to divide by the number of layers ('weighted_mean').

  Returns:
    The group's features, in the layers' dtype.
  """
  own = weights[group.start - 1 : group.stop - 1]
  if mode == 'weighted_mean':
    own = own / len(group)
  return weighted_sum(own, tuple(layers[number] for number in group))


def log_group_weights(
  weights: Float[Array, ' G'], temperature: float
) -> Float[Array, ' G']:
  """Return log psi, psi = softmax(w / temperature); Yang (2022), Eq. 5."""
  return jax.nn.log_softmax(weights.astype(jnp.float32) / temperature)


def keep_groups(
  features: Float[Array, 'G *rest'],
  log_weights: Float[Array, 'G *positions'],
  first: int,
  last: int,
) -> tuple[Float[Array, 'K *rest'], Float[Array, 'K *positions']]:
  """Return the groups first..last - 1, counted from 0.

  Args:
    features: Features of all groups.
    log_weights: Logarithms of psi, float32.
    first: First group to keep; see `parse_groups`.
    last: Group after the last one to keep.

  Returns:
    Features of those groups, and log psi, where psi sums to 1 over them.
  """
  kept = slice(first, last)
  return features[kept], jax.nn.log_softmax(log_weights[kept], axis=0)


def at_positions(
  log_weights: Float[Array, 'G *positions'], shape: tuple[int, ...]
) -> Float[Array, 'G *rest']:
  """Return log psi at every position, where it may be one for all of them.

  Args:
    log_weights: Logarithms of psi, [G] or [G, *shape].
    shape: Axes of the positions.
  """
  ones = (1,) * (len(shape) + 1 - log_weights.ndim)
  return jnp.broadcast_to(
    log_weights.reshape(*log_weights.shape, *ones), (len(log_weights), *shape)
  )


def token_mixture(
  log_p: Float[Array, 'G *rest'],
  log_weights: Float[Array, 'G *positions'],
  combine: Literal['arithmetic', 'geometric'],
) -> Float[Array, '*rest']:
  """Return the mixture of the groups' log-probabilities of given tokens.

  Args:
    log_p: Log-probabilities of the tokens in every group.
    log_weights: Logarithms of psi, float32, [G] or those of every token.
    combine: Mixture: 'arithmetic' is log sum_k psi_k p_k, 'geometric' is
      sum_k psi_k log p_k.

  Returns:
    Log-probabilities, float32.
  """
  weights = at_positions(log_weights, log_p.shape[1:])
  if combine == 'arithmetic':
    return jax.nn.logsumexp(weights + log_p, axis=0)
  return (jnp.exp(weights) * log_p).sum(0)


def mixture_log_probabilities(
  features: Float[Array, 'G M D'],
  log_weights: Float[Array, 'G *positions'],
  logits: Callable[[Float[Array, 'M D']], Float[Array, 'M V']],
  combine: Literal['arithmetic', 'geometric'],
) -> Float[Array, 'M V']:
  """Return the logarithm of the mixture of all groups' predictions.

  'arithmetic': log sum_k psi_k P_k, Yang et al. (2022), Eq. 6.
  'geometric': sum_k psi_k log P_k, as in the released code; its exponentials
  sum to 1 or less.

  Args:
    features: Features of the groups.
    log_weights: Logarithms of psi, float32, [G] or those of all M rows.
    logits: Output layer; only the logits of one group exist at a time.
    combine: Mixture, one of the two above.

  Returns:
    Log-probabilities, float32.
  """

  def log_p(group_features):
    return jax.nn.log_softmax(logits(group_features).astype(jnp.float32))

  def add_group(mixture, group):
    group_features, log_weight = group
    if combine == 'arithmetic':
      return jnp.logaddexp(mixture, log_weight + log_p(group_features)), None
    return mixture + jnp.exp(log_weight) * log_p(group_features), None

  shape = jax.eval_shape(logits, features[0]).shape
  start = -jnp.inf if combine == 'arithmetic' else 0.0
  return jax.lax.scan(
    add_group,
    jnp.full(shape, start, jnp.float32),
    (features, log_weights.reshape(len(log_weights), -1, 1)),
  )[0]


def _zero_weights(
  module: nn.Module, name: str, axis: str, count: int
) -> Float[Array, ' {count}']:
  zeros = nn.initializers.zeros_init()
  return parameter(module, name, zeros, (axis,), (count,))


class EncoderGroups(nn.Module):
  """Fusion of the encoder's groups; Yang et al. (2022), Eq. 2.

  LN(1 / G sum_k sigmoid(w_k) H[last layer of k]). Where all layers are one
  group there is no norm, as in the paper's formula, unless `single_group_norm`
  asks for it, as in the released code.
  """

  config: ModelConfig
  side: Side

  def setup(self):
    options = self.config.side(self.side).gtrans
    count = group_count(self.config, self.side)
    self.weights = _zero_weights(self, 'weights', 'groups', count)
    self.has_norm = count > 1 or options.single_group_norm
    if self.has_norm:
      self.norm = layer_norm(self.config)

  def __call__(self, layers: Layers, context: Context) -> Float[Array, 'B T D']:
    del context
    weights = jax.nn.sigmoid(self.weights)
    sow(self, 'telemetry', 'group_weights', weights)
    groups = groups_of(self.config, self.side)
    fused = weighted_sum(
      weights / len(groups), tuple(layers[group[-1]] for group in groups)
    )
    return self.norm(fused) if self.has_norm else fused


class DecoderGroups(nn.Module):
  """Features and weights of the decoder's groups; Yang (2022), Eq. 4-5.

  G[k] = sum_{l in k} sigmoid(w_l) H[l], with the weights psi.
  mode='weighted_mean' divides by the number of layers of the group; mode='last'
  takes the group's last layer as it is. Both come from the released code.
  Layers that belong to no group have no weight.
  """

  config: ModelConfig
  side: Side

  def setup(self):
    config, options = self.config, self.config.side(self.side).gtrans
    groups = groups_of(config, self.side)
    if options.mode != 'last':
      self.layer_weights = _zero_weights(
        self, 'layer_weights', 'layers', groups[-1][-1]
      )
    self.group_weights = _zero_weights(
      self, 'group_weights', 'groups', len(groups)
    )
    if options.group_norm:
      numbers = range(1, len(groups) + 1)
      self.group_norm = {str(k): layer_norm(config) for k in numbers}

  def __call__(
    self, layers: Layers, context: Context
  ) -> tuple[Float[Array, 'G B T D'], Float[Array, ' G']]:
    """Return the features of the groups, and their log psi.

    Args:
      layers: Layers H[0..L], or the lowest of them: only groups that are
        complete are returned.
      context: Context of the pass.

    Returns:
      The features of those groups, and their log psi among all groups, float32.
    """
    del context
    config, options = self.config, self.config.side(self.side).gtrans
    features = self._features(layers)
    if options.group_norm:
      features = [self.group_norm[str(k)](x) for k, x in enumerate(features, 1)]
    log_weights = log_group_weights(
      self.group_weights, options.temperature or math.sqrt(config.width)
    )
    sow(self, 'telemetry', 'group_weights', jnp.exp(log_weights))
    return jnp.stack(features), log_weights[: len(features)]

  def _features(self, layers: Layers) -> list[Float[Array, 'B T D']]:
    groups = [
      group
      for group in groups_of(self.config, self.side)
      if group[-1] < len(layers)
    ]
    mode = self.config.side(self.side).gtrans.mode
    if mode == 'last':
      return [layers[group[-1]] for group in groups]
    weights = jax.nn.sigmoid(self.layer_weights)
    sow(self, 'telemetry', 'layer_weights', weights)
    return [group_sum(layers, group, weights, mode) for group in groups]


SCHEME = Scheme(
  'gtrans',
  'Yang et al. 2022, Eq. 2-7',
  'gtrans',
  {'encoder': EncoderGroups, 'decoder': DecoderGroups},
  {'encoder': 'layer aggregation', 'decoder': 'prediction'},
  layers_read=layers_in_groups,
)
