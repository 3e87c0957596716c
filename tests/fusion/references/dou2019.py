"""Dynamic layer aggregation with capsules (Dou et al. 2019)."""

import math

import numpy as np
from numpy_parts import (
  Function,
  Layers,
  concat,
  dense,
  layer_norm,
  log_sigmoid,
  relu,
  sigmoid,
  softmax,
)

from fusion_jax.fusion.capsules import (
  DynamicRoutingOptions,
  EmRoutingOptions,
  RoutingOptions,
)
from fusion_jax.fusion.linear import DynamicOptions


def dynamic_combination(
  parameters: dict, layers: Layers, options: DynamicOptions
) -> np.ndarray:
  """sum_l Wdyn[l] * H[l], Wdyn = FFN(concat(H[1..L])) (Eq. 4)."""
  hidden = relu(dense(parameters['hidden'], concat(layers[1:])))
  flat = dense(parameters['out'], hidden)
  weights = np.split(flat, len(layers) - 1, axis=-1)
  return sum(w * h for w, h in zip(weights, layers[1:], strict=True))


def capsule_count(options: RoutingOptions, width: int) -> int:
  return options.capsules or min(512, width)


def votes(
  parameters: dict, layers: Layers, options: RoutingOptions, act: Function
) -> np.ndarray:
  """V[l->n] = W_l F_l (Eq. 7-8), [B, T, L, N, C].

  Args:
    parameters: of the votes.
    layers: H[0..L].
    options: of the scheme.
    act: the activation between the maps.
  """
  inputs = layers[1:]
  shape = inputs[0].shape
  if options.vote_projection == 'dense':
    y = dense(
      parameters['out'], act(dense(parameters['hidden'], concat(inputs)))
    )
  else:
    y = concat(
      _block_vote(parameters, i, inputs, options.context, act)
      for i in range(len(inputs))
    )
  count = capsule_count(options, shape[-1])
  return y.reshape(*shape[:2], len(inputs), count, shape[-1] // count)


def _block_vote(parameters, i, inputs, context, act):
  read = concat(inputs) if context == 'all' else inputs[i]
  maps = [
    {'kernel': part['kernel'][i], 'bias': part['bias'][i]}
    for part in (parameters['context'], parameters['transform'])
  ]
  return dense(maps[1], act(dense(maps[0], read)))


def squash(s: np.ndarray) -> np.ndarray:
  """|s|^2 / (1 + |s|^2) s / |s|."""
  square = s @ s
  return s * math.sqrt(square) / (1 + square)


def route_dynamically(
  vote: np.ndarray, options: DynamicRoutingOptions
) -> np.ndarray:
  """Algorithm 1 at one position: [L, N, C] to [N, C]."""
  inputs, capsules, _ = vote.shape
  logits = np.zeros((inputs, capsules))
  outputs = np.zeros(vote.shape[1:])
  for _ in range(options.iterations):
    couplings = softmax(logits, axis=1)
    for n in range(capsules):
      total = sum(couplings[i, n] * vote[i, n] for i in range(inputs))
      by_mass = options.average == 'mass'
      outputs[n] = squash(total / couplings[:, n].sum() if by_mass else total)
    for i, n in np.ndindex(inputs, capsules):
      logits[i, n] += agreement(outputs[n], vote[i, n], options)
  return outputs


def agreement(
  output: np.ndarray, vote: np.ndarray, options: DynamicRoutingOptions
) -> float:
  """Of a capsule's output and the vote [C] of an input for it."""
  product = output @ vote
  if options.agreement == 'product':
    return product
  lengths = np.linalg.norm(output) * np.linalg.norm(vote)
  return product / lengths if lengths > 0 else 0.0


def sized(vote: np.ndarray, options: RoutingOptions) -> np.ndarray:
  """Votes [B, T, L, N, C] as they are routed."""
  if options.vote_norm == 'none':
    return vote
  result = np.zeros(vote.shape)
  for place in np.ndindex(*vote.shape[:3]):
    size = math.sqrt(np.square(vote[place]).mean() + 1e-6)
    result[place] = vote[place] / size
  return result


def dynamic_routing(
  parameters: dict,
  layers: Layers,
  options: DynamicRoutingOptions,
  epsilon: float = 1e-6,
) -> np.ndarray:
  """Eq. 5-9."""
  vote = sized(
    votes(parameters['votes'], layers, options, lambda x: x), options
  )
  y = np.zeros(layers[0].shape)
  for b, t in np.ndindex(*y.shape[:2]):
    y[b, t] = route_dynamically(vote[b, t], options).reshape(-1)
  return _capsule_output(parameters, y, layers, options, epsilon)


def _capsule_output(parameters, y, layers, options, epsilon):
  if options.residual == 'top':
    y = y + layers[-1]
  if options.residual == 'all':
    y = y + sum(layers[1:])
  return layer_norm(y, parameters['norm'], epsilon)


def input_activations(parameters: dict, layers: Layers) -> np.ndarray:
  """A_in of every input capsule, [B, T, L] (Eq. 10)."""
  hidden = relu(dense(parameters['activation_hidden'], concat(layers[1:])))
  return sigmoid(dense(parameters['activation_out'], hidden))


def maximise(vote, couplings, beta_a, beta_u, step, options: EmRoutingOptions):
  """M-step (Eq. 11-14): means, variances and log-activations."""
  inputs, capsules, size = vote.shape
  mean, variance = np.zeros((2, capsules, size))
  mass, cost = np.zeros((2, capsules))
  for n in range(capsules):
    # The floor of the mass is spread, so that the mean weights sum to 1.
    r = couplings[:, n] + 1e-9 / inputs
    mass[n] = r.sum()
    mean[n] = sum(r[i] * vote[i, n] for i in range(inputs)) / mass[n]
    spread = sum(r[i] * (vote[i, n] - mean[n]) ** 2 for i in range(inputs))
    variance[n] = spread / mass[n] + options.variance_floor
    nats = 0.5 * np.log(variance[n]) + 0.5 * (1 + math.log(2 * math.pi))
    cost[n] = nats.sum() * mass[n]
  scale = (1.0, 2.0, 3.0)[min(step, 2)]
  return mean, variance, log_sigmoid(scale * (beta_a - beta_u * mass - cost))


def expect(vote, mean, variance, log_activation):
  """E-step (Eq. 15-16): how much every input belongs to every output."""
  logits = np.zeros(vote.shape[:2])
  for i, n in np.ndindex(*logits.shape):
    square = (vote[i, n] - mean[n]) ** 2 / (2 * variance[n])
    density = -(square + 0.5 * np.log(2 * math.pi * variance[n])).sum()
    logits[i, n] = log_activation[n] + density
  return softmax(logits, axis=1)


def route_by_em(vote, activation, beta_a, beta_u, options: EmRoutingOptions):
  """Algorithm 2 at one position: [L, N, C] and [L] to [N, C]."""
  couplings = np.full(vote.shape[:2], 1 / vote.shape[1])
  iterations = options.iterations
  for step in range(iterations):
    mean, variance, log_activation = maximise(
      vote, couplings * activation[:, None], beta_a, beta_u, step, options
    )
    if step < iterations - 1:
      couplings = expect(vote, mean, variance, log_activation)
  return np.exp(log_activation)[:, None] * mean


def em_routing(
  parameters: dict,
  layers: Layers,
  options: EmRoutingOptions,
  epsilon: float = 1e-6,
) -> np.ndarray:
  """Eq. 10-16."""
  vote = sized(votes(parameters['votes'], layers, options, relu), options)
  activation = input_activations(parameters, layers)
  beta_a, beta_u = parameters['beta_a'], parameters['beta_u']
  y = np.zeros(layers[0].shape)
  for b, t in np.ndindex(*y.shape[:2]):
    y[b, t] = route_by_em(
      vote[b, t], activation[b, t], beta_a, beta_u, options
    ).reshape(-1)
  return _capsule_output(parameters, y, layers, options, epsilon)
