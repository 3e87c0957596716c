"""What references are made of, in plain NumPy and float64."""

import math
from collections.abc import Callable, Sequence

import numpy as np

Layers = Sequence[np.ndarray]
Function = Callable[[np.ndarray], np.ndarray]


def sigmoid(x):
  return np.exp(-np.logaddexp(0, -x))


def log_sigmoid(x):
  return -np.logaddexp(0, -x)


def relu(x):
  return np.maximum(x, 0)


def softmax(x, axis=-1):
  e = np.exp(x - x.max(axis, keepdims=True))
  return e / e.sum(axis, keepdims=True)


def log_softmax(x, axis=-1):
  x = x - x.max(axis, keepdims=True)
  return x - np.log(np.exp(x).sum(axis, keepdims=True))


def logsumexp(x, axis):
  largest = x.max(axis, keepdims=True)
  return (largest + np.log(np.exp(x - largest).sum(axis, keepdims=True))).sum(
    axis
  )


def concat(arrays):
  return np.concatenate(list(arrays), axis=-1)


def dense(parameters: dict, x: np.ndarray) -> np.ndarray:
  y = x @ parameters['kernel']
  return y + parameters['bias'] if 'bias' in parameters else y


def layer_norm(x, parameters=None, epsilon=1e-6):
  """Without parameters: scale 1 and offset 0."""
  centred = x - x.mean(-1, keepdims=True)
  variance = (centred**2).mean(-1, keepdims=True)
  y = centred / np.sqrt(variance + epsilon)
  if parameters is None:
    return y
  return y * parameters['scale'] + parameters['bias']


def attend(query, keys, values, mask, heads: int) -> np.ndarray:
  """Attention of every head and position; [B, T, D], mask True keeps."""
  batch, length, width = query.shape
  keep = np.broadcast_to(mask, (batch, heads, length, keys.shape[1]))
  y = np.zeros(query.shape)
  size = width // heads
  for b, n, t in np.ndindex(batch, heads, length):
    part = slice(n * size, (n + 1) * size)
    scores = keys[b, :, part] @ query[b, t, part] / math.sqrt(size)
    weights = softmax(np.where(keep[b, n, t], scores, -np.inf))
    y[b, t, part] = weights @ values[b, :, part]
  return y


def multi_head_attention(parameters, x, source, mask, heads) -> np.ndarray:
  """Queries from x, keys and values from source."""
  y = attend(
    dense(parameters['query'], x),
    dense(parameters['key'], source),
    dense(parameters['value'], source),
    mask,
    heads,
  )
  return dense(parameters['out'], y)
