"""GTRANS (Yang et al. 2022)."""

import math

import numpy as np
from numpy_parts import Layers, layer_norm, log_softmax, logsumexp, sigmoid

from fusion_jax.fusion.gtrans import GtransOptions


def layer_groups(
  count: int, options: GtransOptions, default: int
) -> list[range]:
  """The layers of every group, counted from 1."""
  size = options.group_size or default
  groups = [
    range(first, min(first + size, count + 1))
    for first in range(1, count + 1, size)
  ]
  if options.last_group == 'floor':
    groups = [group for group in groups if len(group) == size]
  return groups


def encoder_groups(
  parameters: dict,
  layers: Layers,
  options: GtransOptions,
  epsilon: float = 1e-6,
) -> np.ndarray:
  """LN(1/M sum_i sigmoid(w_i) H[alpha_i]) (Eq. 2)."""
  groups = layer_groups(len(layers) - 1, options, 3)
  y = np.zeros(layers[0].shape)
  for weight, group in zip(parameters['weights'], groups, strict=True):
    y = y + sigmoid(weight) * layers[group[-1]] / len(groups)
  if len(groups) > 1 or options.single_group_norm:
    y = layer_norm(y, parameters['norm'], epsilon)
  return y


def decoder_groups(
  parameters: dict, layers: Layers, options: GtransOptions
) -> tuple[np.ndarray, np.ndarray]:
  """G[k] = sum over the group of sigmoid(w_l) H[l], log psi (Eq. 4-5).

  All groups: `prune` is what `inference_groups` does to them.
  """
  features = []
  groups = layer_groups(len(layers) - 1, options, 2)
  for group in groups:
    if options.mode == 'last':
      y = layers[group[-1]]
    else:
      y = sum(
        sigmoid(parameters['layer_weights'][depth - 1]) * layers[depth]
        for depth in group
      )
    if options.mode == 'weighted_mean':
      y = y / len(group)
    features.append(y)
  temperature = options.temperature or math.sqrt(layers[0].shape[-1])
  log_psi = log_softmax(parameters['group_weights'] / temperature)
  return np.stack(features), log_psi


def prune(
  features: np.ndarray, log_psi: np.ndarray, first: int, last: int
) -> tuple[np.ndarray, np.ndarray]:
  """Groups first..last, counted from 1; psi sums to 1 over them."""
  kept = log_psi[first - 1 : last]
  return features[first - 1 : last], log_softmax(kept)


def group_log_probabilities(
  features: np.ndarray, table: np.ndarray, bias: np.ndarray | None = None
) -> np.ndarray:
  """log P_k of every group, [G, B, T, V]."""
  logits = features @ table.T
  return log_softmax(logits if bias is None else logits + bias)


def mixture(
  log_psi: np.ndarray, log_probabilities: np.ndarray, combine: str
) -> np.ndarray:
  """log sum_k psi_k P_k (Eq. 5-6), or sum_k psi_k log P_k; [B, T, V]."""
  weights = log_psi[:, None, None, None]
  if combine == 'geometric':
    return (np.exp(weights) * log_probabilities).sum(0)
  return logsumexp(weights + log_probabilities, axis=0)


def group_loss(
  log_psi: np.ndarray,
  log_probabilities: np.ndarray,
  targets: np.ndarray,
  keep: np.ndarray,
  smoothing: float,
) -> float:
  """sum_k psi_k CE_k, summed over the tokens (Eq. 7)."""
  total = 0.0
  for psi, groups in zip(np.exp(log_psi), log_probabilities, strict=True):
    for b, t in zip(*np.nonzero(keep), strict=True):
      right = -groups[b, t, targets[b, t]]
      uniform = -groups[b, t].mean()
      total += psi * ((1 - smoothing) * right + smoothing * uniform)
  return total
