"""Transparent attention (Bapna et al. 2018) and DLCL (Wang et al. 2019)."""

from collections.abc import Sequence

import numpy as np
from numpy_parts import Function, Layers, layer_norm, softmax

from fusion_jax.fusion.dlcl import DlclOptions
from fusion_jax.fusion.transparent import TransparentOptions


def transparent_attention(
  parameters: dict,
  layers: Layers,
  options: TransparentOptions,
  epsilon: float = 1e-6,
) -> np.ndarray:
  """memory_j = sum_{i=0..L} softmax_i(W[:, j]) H[i] (Bapna et al. 2018).

  H[0] gets the norm that the outputs of post-norm layers have had.
  """
  terms = [layer_norm(layers[0], parameters['embedding_norm'], epsilon)]
  terms += layers[1:]
  memories = []
  for column in np.swapaxes(parameters['weights'], 0, 1):
    weights = softmax(column, axis=0)
    memories.append(sum(w * h for w, h in zip(weights, terms, strict=True)))
  return np.stack(memories)


def dlcl(
  parameters: dict,
  embedding: np.ndarray,
  functions: Sequence[Function],
  options: DlclOptions,
  norm: str,
  epsilon: float = 1e-6,
) -> tuple[list[np.ndarray], list[np.ndarray]]:
  """x[l+1] = sum_{k<=l} W[l+1, k] LN_k(y[k]) (Wang et al. 2019), pre-norm.

  Post-norm: x[l+1] = LN_{l+1}(sum_k W[l+1, k] y[k]) and x[1] = y[0].

  Returns:
    x[1..L+1], the last of which leaves the stack, and y[0..L].
  """
  outputs, inputs = [embedding], []
  for depth in range(len(functions) + 1):
    inputs.append(_dlcl_input(parameters, outputs, options, norm, epsilon))
    if depth < len(functions):
      outputs.append(functions[depth](inputs[depth]))
  return inputs, outputs


def _dlcl_input(parameters, outputs, options, norm, epsilon):
  depth = len(outputs) - 1
  norm = norm if options.norms == 'auto' else 'none'
  if depth == 0 and options.first == 'learned':
    return parameters['weights'][0, 0] * outputs[0]
  if depth % options.period or (depth == 0 and norm in ('post', 'none')):
    return outputs[-1]
  first = max(0, depth + 1 - options.window) if options.window else 0
  seen = list(range(depth, first - 1, -options.dilation))[::-1]
  weights = parameters['weights'][depth][seen]
  y = np.zeros(outputs[0].shape)
  for k, weight in zip(seen, weights, strict=True):
    term = outputs[k]
    if norm == 'pre' and k > 0:
      term = layer_norm(term, parameters[f'norm_{k}'], epsilon)
    y = y + weight * term
  if norm == 'post':
    y = layer_norm(y, parameters[f'norm_{depth}'], epsilon)
  return y
