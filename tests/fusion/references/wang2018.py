"""Multi-layer representation fusion (Wang et al. 2018)."""

import numpy as np
from numpy_parts import Layers, concat, dense, layer_norm, relu, softmax

from fusion_jax.fusion.average import AverageOptions
from fusion_jax.fusion.feed_forward import FeedForwardOptions
from fusion_jax.fusion.hops import HopsOptions


def fused_layers(
  layers: Layers, options: AverageOptions, table: np.ndarray | None
) -> list[np.ndarray]:
  """z~[l] = z[l] + E[l] (Eq. 4)."""
  first = 0 if options.include_embedding else 1
  if table is None:
    return list(layers[first:])
  return [layers[depth] + table[depth] for depth in range(first, len(layers))]


def fusion_norm(parameters, x, options: AverageOptions, epsilon) -> np.ndarray:
  if options.norm == 'none':
    return x
  return layer_norm(
    x, parameters['norm'] if options.norm == 'affine' else None, epsilon
  )


def average(
  parameters: dict,
  layers: Layers,
  options: AverageOptions,
  epsilon: float = 1e-6,
) -> np.ndarray:
  """LN(mean of z[0..L])."""
  terms = fused_layers(layers, options, None)
  y = sum(terms) / len(terms)
  return fusion_norm(parameters, y, options, epsilon)


def feed_forward(
  parameters: dict,
  layers: Layers,
  options: FeedForwardOptions,
  table: np.ndarray | None,
  epsilon: float = 1e-6,
) -> np.ndarray:
  """LN(relu(concat(z~) W1 + b1) W2 + b2)."""
  z = concat(fused_layers(layers, options, table))
  y = dense(parameters['out'], relu(dense(parameters['hidden'], z)))
  return fusion_norm(parameters, y, options, epsilon)


def hops(
  parameters: dict,
  layers: Layers,
  options: HopsOptions,
  table: np.ndarray | None,
  epsilon: float = 1e-6,
) -> np.ndarray:
  """Attention over depth, hop by hop (Eq. 5-7)."""
  terms = fused_layers(layers, options, table)
  first = parameters['scorer_hidden']['kernel']
  second = parameters['scorer_out']['kernel']
  summaries = []
  for p in range(options.hops):
    energies = []
    for depth, z in enumerate(terms):
      index = {'none': ..., 'per_layer': depth, 'per_hop': p}[
        options.independent
      ]
      hidden = np.tanh(z @ first[index])
      energies.append(hidden @ second[:, p : p + 1])
    weights = softmax(np.stack(energies), axis=0)
    summaries.append(sum(a * z for a, z in zip(weights, terms, strict=True)))
  hidden = relu(dense(parameters['hidden'], concat(summaries)))
  y = dense(parameters['out'], hidden)
  return fusion_norm(parameters, y, options, epsilon)
