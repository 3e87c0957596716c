"""Deep representations (Dou et al. 2018)."""

import itertools
from collections.abc import Sequence

import numpy as np
from numpy_parts import (
  Function,
  Layers,
  concat,
  dense,
  layer_norm,
  multi_head_attention,
  relu,
  sigmoid,
)

from fusion_jax.fusion.linear import LinearOptions
from fusion_jax.fusion.multi_layer import MultiLayerOptions
from fusion_jax.fusion.tree import AggOptions, HierarchicalOptions


def dense_connection(
  embedding: np.ndarray, functions: Sequence[Function]
) -> list[np.ndarray]:
  """H[l] = Layer_l(H[l-1]) + sum_{i<l} H[i] (Eq. 4); all of H[0..L]."""
  states = [embedding]
  for function in functions:
    states.append(function(states[-1]) + sum(states[1:]))
  return states


def linear(
  parameters: dict, layers: Layers, options: LinearOptions
) -> np.ndarray:
  """sum_{l=1..L} W_l H[l] (Eq. 5), or concat(H[1..L]) A B."""
  if options.factored:
    y = concat(layers[1:])
    y = dense(parameters['out'], dense(parameters['hidden'], y))
  else:
    y = np.zeros(layers[0].shape)
    for kernel, layer in zip(parameters['kernel'], layers[1:], strict=True):
      y = y + layer @ kernel
    y = y + parameters['bias']
  return y


def agg(
  parameters: dict,
  inputs: Layers,
  top: int,
  options: AggOptions,
  mask: np.ndarray,
  heads: int,
  epsilon: float = 1e-6,
) -> np.ndarray:
  """LN(FF(concat(inputs)) + sum of the residual inputs) (Eq. 7)."""
  z = concat(inputs)
  if options.activation == 'attention':
    y = multi_head_attention(parameters, z, z, mask, heads)
  else:
    act = {'sigmoid': sigmoid, 'relu': relu}[options.activation]
    y = dense(parameters['out'], act(dense(parameters['hidden'], z)))
  if options.residual == 'all':
    for x in inputs:
      y = y + x
  if options.residual == 'top':
    y = y + inputs[top]
  return layer_norm(y, parameters['norm'], epsilon)


def iterative(
  parameters: dict,
  layers: Layers,
  options: AggOptions,
  mask: np.ndarray,
  heads: int,
  epsilon: float = 1e-6,
) -> np.ndarray:
  """A[1] = H[1]; A[l] = AGG(H[l], A[l-1]); gives A[L] (Eq. 6)."""
  node = layers[1]
  for depth in range(2, len(layers)):
    node = agg(
      parameters[f'node_{depth}'],
      [layers[depth], node],
      0,
      options,
      mask,
      heads,
      epsilon,
    )
  return node


def hierarchical(
  parameters: dict,
  embedding: np.ndarray,
  functions: Sequence[Function],
  options: HierarchicalOptions,
  mask: np.ndarray,
  heads: int,
  epsilon: float = 1e-6,
  input_norm: bool = False,
) -> tuple[np.ndarray, list[np.ndarray]]:
  """A[i] = AGG(H[gi-g+1], .., H[gi], A[i-1]) (section 3.1.1).

  With feedback the first layer of a group reads the node of the group before.
  A layer that is alone, with no node below, needs no node.

  Returns:
    The last node and H[0..L].
  """
  states, node, size = [embedding], None, options.group_size

  def normed(depth):
    if not input_norm:
      return states[depth]
    return layer_norm(states[depth], parameters[f'input_norm_{depth}'], epsilon)

  for start in range(1, len(functions) + 1, size):
    group = range(start, min(start + size, len(functions) + 1))
    for depth in group:
      fed = options.feedback and node is not None and depth == start
      states.append(functions[depth - 1](node if fed else states[depth - 1]))
    below = [] if node is None else [node]
    if len(group) + len(below) == 1:
      node = states[start]
      continue
    node = agg(
      parameters[f'node_{(start - 1) // size + 1}'],
      [normed(depth) for depth in group] + below,
      len(group) - 1,
      options,
      mask,
      heads,
      epsilon,
    )
  return node, states


def multi_layer_attention(
  parameters: dict,
  layers: Layers,
  query: np.ndarray,
  options: MultiLayerOptions,
  mask: np.ndarray,
  heads: int,
  epsilon: float = 1e-6,
  input_norm: bool = False,
) -> np.ndarray:
  """AGG(C_1..C_k), C_i from H[l-1] to H[l-i] (Eq. 8).

  Args:
    parameters: of the attention of layer l.
    layers: H[0..l-1].
    query: H[l-1] after the norm before attention, if there is one.
    options: of the scheme.
    mask: of the self-attention.
    heads: of every source.
    epsilon: of the norms.
    input_norm: whether the other layers have norms, too.

  Returns:
    What the sublayer gives to its residual.
  """
  depth, k = len(layers), options.layers
  if depth - 1 < k:  # There are fewer layers above H[0].
    k = 1
  contexts = [multi_head_attention(parameters, query, query, mask, heads)]
  for i in range(2, k + 1):
    own, source = parameters[f'source_{i}'], layers[depth - i]
    if input_norm:
      norm = parameters[f'source_norm_{i}']
      source = layer_norm(source, norm, epsilon)
    contexts.append(multi_head_attention(own, query, source, mask, heads))
  if k == 1:
    return contexts[0]
  return agg(parameters['agg'], contexts, 0, options, mask, heads, epsilon)


def layer_diversity(layers: Layers, keep: np.ndarray) -> float:
  """Mean over l = 1..L-1 and tokens of 1 - cos(H[l], H[l+1])^2 (Eq. 9-10)."""
  distances = []
  for lower, upper in itertools.pairwise(layers[1:]):
    at_tokens = [
      1 - (a @ b) ** 2 / (a @ a * (b @ b) + 1e-12)
      for a, b in zip(lower[keep], upper[keep], strict=True)
    ]
    distances.append(np.mean(at_tokens))
  return float(np.mean(distances)) if distances else 0.0


def diversity_reward(sides: Sequence[tuple[Layers, np.ndarray]]) -> float:
  """Of both stacks, as H[0..L] and True at tokens."""
  return sum(layer_diversity(layers, keep) for layers, keep in sides)
