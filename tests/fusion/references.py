"""Every fusion in plain NumPy and float64, loop by loop, as the papers have it.

A reference takes the parameters of a module (nested dictionaries of arrays),
the layers H[0..L], [B, T, D] each, and the options of the side. References of
connections take the layers as functions instead, H[0] before them.
"""

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np

from fusion_jax.config.fusion import (
  AggOptions,
  MlrfOptions,
  RoutingOptions,
  SideConfig,
)

Layers = Sequence[np.ndarray]
Function = Callable[[np.ndarray], np.ndarray]


# Parts.


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


# Dou et al. (2018).


def dense_connection(
  parameters: dict,
  embedding: np.ndarray,
  functions: Sequence[Function],
  options: SideConfig,
  epsilon: float = 1e-6,
) -> list[np.ndarray]:
  """H[l] = Layer_l(H[l-1]) + sum_{i<l} H[i] (Eq. 4); all of H[0..L]."""
  states = [embedding]
  for depth, function in enumerate(functions, start=1):
    y = function(states[depth - 1])
    terms = states[0 if options.dense.include_embedding else 1 :]
    for term in terms:
      y = y + term
    if options.dense.post_sum_norm and terms:
      y = layer_norm(y, parameters[f'sum_norm_{depth}'], epsilon)
    states.append(y)
  return states


def linear(
  parameters: dict, layers: Layers, options: SideConfig, epsilon: float = 1e-6
) -> np.ndarray:
  """sum_{l=1..L} W_l H[l] (Eq. 5), or concat(H[1..L]) A B."""
  if options.linear.factored:
    y = concat(layers[1:])
    y = dense(parameters['out'], dense(parameters['hidden'], y))
  else:
    y = np.zeros(layers[0].shape)
    for kernel, layer in zip(parameters['kernel'], layers[1:], strict=True):
      y = y + layer @ kernel
    if options.linear.bias:
      y = y + parameters['bias']
  if options.linear.output_norm:
    y = layer_norm(y, parameters['norm'], epsilon)
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
  options: SideConfig,
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
      options.agg,
      mask,
      heads,
      epsilon,
    )
  return node


def hierarchical(
  parameters: dict,
  embedding: np.ndarray,
  functions: Sequence[Function],
  options: SideConfig,
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
  states, node, size = [embedding], None, options.agg.group_size

  def normed(depth):
    if not input_norm:
      return states[depth]
    return layer_norm(states[depth], parameters[f'input_norm_{depth}'], epsilon)

  for start in range(1, len(functions) + 1, size):
    group = range(start, min(start + size, len(functions) + 1))
    for depth in group:
      fed = options.agg.feedback and node is not None and depth == start
      states.append(functions[depth - 1](node if fed else states[depth - 1]))
    below = [] if node is None else [node]
    if len(group) + len(below) == 1:
      node = states[start]
      continue
    node = agg(
      parameters[f'node_{(start - 1) // size + 1}'],
      [normed(depth) for depth in group] + below,
      len(group) - 1,
      options.agg,
      mask,
      heads,
      epsilon,
    )
  return node, states


def multi_layer_attention(
  parameters: dict,
  layers: Layers,
  options: SideConfig,
  mask: np.ndarray,
  heads: int,
  epsilon: float = 1e-6,
) -> np.ndarray:
  """AGG(C_1..C_k), C_i from H[l-1] to H[l-i] (Eq. 8).

  Args:
    parameters: of the attention of layer l.
    layers: H[0..l-1].
    options: of the side.
    mask: of the self-attention.
    heads: of every source.
    epsilon: of the node's norm.

  Returns:
    What the sublayer gives to its residual.
  """
  depth, k = len(layers), options.multi_layer.layers
  available = max(depth - 1, 1)  # H[l-1..1]; the first layer reads H[0].
  if available < k:
    k = available if options.multi_layer.partial else 1
  query = layers[depth - 1]
  contexts = [multi_head_attention(parameters, query, query, mask, heads)]
  for i in range(2, k + 1):
    source = parameters[f'source_{i}']
    contexts.append(
      multi_head_attention(source, query, layers[depth - i], mask, heads)
    )
  if k == 1:
    return contexts[0]
  return agg(parameters['agg'], contexts, 0, options.agg, mask, heads, epsilon)


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


def diversity_reward(
  sides: Sequence[tuple[Layers, np.ndarray]], reduce: str
) -> float:
  """Of both stacks, as H[0..L] and True at tokens."""
  total = sum(layer_diversity(layers, keep) for layers, keep in sides)
  return total if reduce == 'sum' else total / len(sides)


# Wang et al. (2018).


def fused_layers(
  layers: Layers, options: MlrfOptions, table: np.ndarray | None
) -> list[np.ndarray]:
  """z~[l] = z[l] + E[l] (Eq. 4)."""
  first = 0 if options.include_embedding else 1
  if table is None:
    return list(layers[first:])
  return [layers[depth] + table[depth] for depth in range(first, len(layers))]


def fusion_norm(parameters, x, options: MlrfOptions, epsilon) -> np.ndarray:
  if options.norm == 'none':
    return x
  return layer_norm(
    x, parameters['norm'] if options.norm == 'affine' else None, epsilon
  )


def average(
  parameters: dict, layers: Layers, options: SideConfig, epsilon: float = 1e-6
) -> np.ndarray:
  """LN(mean of z[0..L])."""
  terms = fused_layers(layers, options.mlrf, None)
  y = sum(terms) / len(terms)
  return fusion_norm(parameters, y, options.mlrf, epsilon)


def feed_forward(
  parameters: dict,
  layers: Layers,
  options: SideConfig,
  table: np.ndarray | None,
  epsilon: float = 1e-6,
) -> np.ndarray:
  """LN(relu(concat(z~) W1 + b1) W2 + b2)."""
  z = concat(fused_layers(layers, options.mlrf, table))
  y = dense(parameters['out'], relu(dense(parameters['hidden'], z)))
  return fusion_norm(parameters, y, options.mlrf, epsilon)


def hops(
  parameters: dict,
  layers: Layers,
  options: SideConfig,
  table: np.ndarray | None,
  epsilon: float = 1e-6,
) -> np.ndarray:
  """Attention over depth, hop by hop (Eq. 5-7)."""
  mlrf = options.mlrf
  terms = fused_layers(layers, mlrf, table)
  act = {'tanh': np.tanh, 'relu': relu}[mlrf.scorer_activation]
  first = parameters['scorer_hidden']['kernel']
  second = parameters['scorer_out']['kernel']
  columns = terms[0].shape[-1] if mlrf.feature_wise else 1
  summaries = []
  for p in range(mlrf.hops):
    energies = []
    for depth, z in enumerate(terms):
      index = {'none': ..., 'per_layer': depth, 'per_hop': p}[mlrf.independent]
      hidden = act(z @ first[index])
      energies.append(hidden @ second[:, p * columns : (p + 1) * columns])
    weights = softmax(np.stack(energies), axis=0)
    summaries.append(sum(a * z for a, z in zip(weights, terms, strict=True)))
  hidden = relu(dense(parameters['hidden'], concat(summaries)))
  y = dense(parameters['out'], hidden)
  return fusion_norm(parameters, y, mlrf, epsilon)


# Dou et al. (2019).


def dynamic_combination(
  parameters: dict, layers: Layers, options: SideConfig, epsilon: float = 1e-6
) -> np.ndarray:
  """sum_l Wdyn[l] * H[l], Wdyn = FFN(concat(H[1..L])) (Eq. 4)."""
  width, count = layers[0].shape[-1], len(layers) - 1
  hidden = relu(dense(parameters['hidden'], concat(layers[1:])))
  flat = dense(parameters['out'], hidden)
  weights = np.stack(
    [flat[..., depth * width : (depth + 1) * width] for depth in range(count)]
  )
  if options.dynamic.normalize == 'softmax':
    weights = softmax(weights, axis=0)
  y = sum(w * h for w, h in zip(weights, layers[1:], strict=True))
  if options.dynamic.output_norm:
    y = layer_norm(y, parameters['norm'], epsilon)
  return y


def capsule_count(options: SideConfig, width: int) -> int:
  return options.routing.capsules or min(512, width)


def votes(
  parameters: dict, layers: Layers, options: SideConfig, default: str
) -> np.ndarray:
  """V[l->n] = W_l F_l (Eq. 7-8), [B, T, L, N, C].

  Args:
    parameters: of the votes.
    layers: H[0..L].
    options: of the side.
    default: the activation between the maps, where it is 'auto'.
  """
  routing, inputs = options.routing, layers[1:]
  name = routing.vote_activation
  name = default if name == 'auto' else name
  act = {'none': lambda x: x, 'relu': relu}[name]
  shape = inputs[0].shape
  if routing.vote_projection == 'dense':
    y = dense(
      parameters['out'], act(dense(parameters['hidden'], concat(inputs)))
    )
  else:
    y = concat(
      _block_vote(parameters, i, inputs, routing.context, act)
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


def route_dynamically(vote: np.ndarray, options: RoutingOptions) -> np.ndarray:
  """Algorithm 1 at one position: [L, N, C] to [N, C]."""
  inputs, capsules, _ = vote.shape
  logits = np.zeros((inputs, capsules))
  outputs = np.zeros(vote.shape[1:])
  over = 1 if options.route_axis == 'output' else 0
  mean = capsules / inputs if over == 1 else 1
  for _ in range(options.iterations):
    couplings = softmax(logits, axis=over)
    for n in range(capsules):
      total = sum(couplings[i, n] * vote[i, n] for i in range(inputs))
      if options.average == 'mass':
        outputs[n] = squash(total / couplings[:, n].sum())
      else:
        outputs[n] = squash((options.route_gain or mean) * total)
    for i, n in np.ndindex(inputs, capsules):
      logits[i, n] += agreement(outputs[n], vote[i], n, options)
  return outputs


def agreement(
  output: np.ndarray, vote: np.ndarray, n: int, options: RoutingOptions
) -> float:
  """Of a capsule's output and the vote [N, C] of an input for it."""
  product = options.agreement_scale * (output @ vote[n])
  if options.agreement == 'cosine':
    lengths = np.linalg.norm(output) * np.linalg.norm(vote[n])
    return product / lengths if lengths > 0 else 0.0
  if options.agreement == 'scaled':
    size = np.sqrt(np.square(vote).mean() + 1e-6)
    return product / size / math.sqrt(vote.shape[1])
  return product


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
  parameters: dict, layers: Layers, options: SideConfig, epsilon: float = 1e-6
) -> np.ndarray:
  """Eq. 5-9."""
  routing = options.routing
  vote = sized(votes(parameters['votes'], layers, options, 'none'), routing)
  y = np.zeros(layers[0].shape)
  for b, t in np.ndindex(*y.shape[:2]):
    y[b, t] = route_dynamically(vote[b, t], routing).reshape(-1)
  return _capsule_output(parameters, y, layers, options, epsilon)


def _capsule_output(parameters, y, layers, options, epsilon):
  if options.routing.residual == 'top':
    y = y + layers[-1]
  if options.routing.residual == 'all':
    y = y + sum(layers[1:])
  if options.routing.output_norm:
    y = layer_norm(y, parameters['norm'], epsilon)
  return y


def input_activations(
  parameters: dict, layers: Layers, options: SideConfig, capsules: int
) -> np.ndarray:
  """A_in of every input and output capsule, [B, T, L, N] (Eq. 10)."""
  z, inputs = concat(layers[1:]), len(layers) - 1
  shape = (*z.shape[:2], inputs, capsules)
  if options.routing.activation == 'none':
    return np.ones(shape)
  if options.routing.activation == 'per_output':
    return sigmoid(dense(parameters['activation_out'], z)).reshape(shape)
  hidden = relu(dense(parameters['activation_hidden'], z))
  a = sigmoid(dense(parameters['activation_out'], hidden))
  return np.broadcast_to(a[..., None], shape)


def inverse_temperature(iteration: int, schedule: str) -> float:
  if schedule == 'linear':
    return (1.0, 2.0, 3.0)[min(iteration, 2)]
  return 0.01 * (1 - 0.95 ** (iteration + 1))


def standardise(x: np.ndarray) -> np.ndarray:
  deviation = x.std()
  return (x - x.mean()) / deviation if deviation > 0 else x * 0


def maximise(vote, couplings, beta_a, beta_u, step, options: SideConfig):
  """M-step (Eq. 11-14): means, variances and log-activations."""
  inputs, capsules, size = vote.shape
  mean, variance = np.zeros((2, capsules, size))
  mass, cost = np.zeros((2, capsules))
  floor = options.routing.variance_floor
  if options.routing.floor == 'relative':
    floor = floor * np.square(vote).mean() + 1e-9
  for n in range(capsules):
    # The floor of the mass is spread, so that the mean weights sum to 1.
    r = couplings[:, n] + 1e-9 / inputs
    mass[n] = r.sum()
    mean[n] = sum(r[i] * vote[i, n] for i in range(inputs)) / mass[n]
    spread = sum(r[i] * (vote[i, n] - mean[n]) ** 2 for i in range(inputs))
    variance[n] = spread / mass[n] + floor
    nats = 0.5 * np.log(variance[n]) + 0.5 * (1 + math.log(2 * math.pi))
    cost[n] = nats.sum() * mass[n]
  if options.routing.cost_norm:
    cost = standardise(cost)
  scale = inverse_temperature(step, options.routing.temperature)
  return mean, variance, log_sigmoid(scale * (beta_a - beta_u * mass - cost))


def expect(vote, mean, variance, log_activation, options: SideConfig):
  """E-step (Eq. 15-16): how much every input belongs to every output."""
  logits = np.zeros(vote.shape[:2])
  for i, n in np.ndindex(*logits.shape):
    square = (vote[i, n] - mean[n]) ** 2 / (2 * variance[n])
    density = -(square + 0.5 * np.log(2 * math.pi * variance[n])).sum()
    logits[i, n] = (
      log_activation[n] + options.routing.log_density_scale * density
    )
  return softmax(logits, axis=1)


def route_by_em(vote, activation, beta_a, beta_u, options: SideConfig):
  """Algorithm 2 at one position: [L, N, C] and [L, N] to [N, C]."""
  couplings = np.full(vote.shape[:2], 1 / vote.shape[1])
  iterations = options.routing.iterations
  for step in range(iterations):
    mean, variance, log_activation = maximise(
      vote, couplings * activation, beta_a, beta_u, step, options
    )
    if step < iterations - 1:
      couplings = expect(vote, mean, variance, log_activation, options)
  if options.routing.emit == 'mean':
    return mean
  return np.exp(log_activation)[:, None] * mean


def em_routing(
  parameters: dict, layers: Layers, options: SideConfig, epsilon: float = 1e-6
) -> np.ndarray:
  """Eq. 10-16."""
  vote = votes(parameters['votes'], layers, options, 'relu')
  vote = sized(vote, options.routing)
  capsules = vote.shape[3]
  activation = input_activations(parameters, layers, options, capsules)
  beta_a = beta_u = np.zeros(capsules)
  if options.routing.betas == 'learned':
    beta_a, beta_u = parameters['beta_a'], parameters['beta_u']
  y = np.zeros(layers[0].shape)
  for b, t in np.ndindex(*y.shape[:2]):
    y[b, t] = route_by_em(
      vote[b, t], activation[b, t], beta_a, beta_u, options
    ).reshape(-1)
  return _capsule_output(parameters, y, layers, options, epsilon)


# Emelin et al. (2019).


def shortcut_keys_values(
  parameters: dict, shortcut: np.ndarray, h: np.ndarray, feature_fusion: bool
) -> tuple[np.ndarray, np.ndarray]:
  """K' = r Ks + (1 - r) Kh, r = sigmoid(Ks + Kh + b); V' alike (Eq. 5-14)."""
  return tuple(
    _gated(parameters, name, shortcut, h, feature_fusion)
    for name in ('key', 'value')
  )


def _gated(parameters, name, shortcut, h, feature_fusion):
  if feature_fusion:
    both = dense(parameters[f'fused_{name}'], concat([shortcut, h]))
    ours, plain = np.split(both, 2, axis=-1)
  else:
    ours = dense(parameters[f'shortcut_{name}'], shortcut)
    plain = dense(parameters[name], h)
  gate = sigmoid(ours + plain + parameters[f'{name}_gate_bias'])
  return gate * ours + (1 - gate) * plain


def shortcut_source(layers: Layers, options: SideConfig) -> np.ndarray:
  """H[0], or H[l-2] and in layers 1 and 2 H[0]; from H[0..l-1], pre-norm."""
  shortcut = options.shortcut
  number = 0 if shortcut.source == 'lexical' else max(len(layers) - 2, 0)
  auto = shortcut.source == 'non_lexical' and not shortcut.author_compat
  if shortcut.source_norm == 'plain' or (
    shortcut.source_norm == 'auto' and auto
  ):
    width = layers[number].shape[-1]
    plain = {'scale': np.ones(width), 'bias': np.zeros(width)}
    return layer_norm(layers[number], plain)
  return layers[number]


def shortcut_attention(
  parameters: dict,
  layers: Layers,
  options: SideConfig,
  h: np.ndarray,
  mask: np.ndarray,
  heads: int,
) -> tuple[np.ndarray, np.ndarray]:
  """Self-attention of layer l.

  Args:
    parameters: of the attention.
    layers: H[0..l-1].
    options: of the side.
    h: H[l-1] after the norm before attention, if there is one.
    mask: of the self-attention.
    heads: of the attention.

  Returns:
    What the sublayer gives to its residual, and what it is added to.
  """
  compatible = options.shortcut.author_compat
  keys, values = shortcut_keys_values(
    parameters,
    shortcut_source(layers, options),
    layers[-1] if compatible else h,
    options.shortcut.feature_fusion,
  )
  query = dense(parameters['query'], h)
  y = dense(parameters['out'], attend(query, keys, values, mask, heads))
  return y, h if compatible else layers[-1]


def shortcut_cross_attention(
  parameters: dict,
  x: np.ndarray,
  features: np.ndarray,
  embedding: np.ndarray,
  options: SideConfig,
  mask: np.ndarray,
  heads: int,
) -> np.ndarray:
  """From x to the encoder's features, its H[0] being the shortcut."""
  keys, values = shortcut_keys_values(
    parameters, embedding, features, options.shortcut.feature_fusion
  )
  query = dense(parameters['query'], x)
  return dense(parameters['out'], attend(query, keys, values, mask, heads))


# Yang et al. (2022).


def layer_groups(count: int, options: SideConfig, default: int) -> list[range]:
  """The layers of every group, counted from 1."""
  size = options.gtrans.group_size or default
  groups = [
    range(first, min(first + size, count + 1))
    for first in range(1, count + 1, size)
  ]
  if options.gtrans.last_group == 'floor':
    groups = [group for group in groups if len(group) == size]
  return groups


def encoder_groups(
  parameters: dict, layers: Layers, options: SideConfig, epsilon: float = 1e-6
) -> np.ndarray:
  """LN(1/M sum_i sigmoid(w_i) H[alpha_i]) (Eq. 2)."""
  groups = layer_groups(len(layers) - 1, options, 3)
  y = np.zeros(layers[0].shape)
  for weight, group in zip(parameters['weights'], groups, strict=True):
    y = y + sigmoid(weight) * layers[group[-1]] / len(groups)
  if len(groups) > 1 or options.gtrans.single_group_norm:
    y = layer_norm(y, parameters['norm'], epsilon)
  return y


def decoder_groups(
  parameters: dict, layers: Layers, options: SideConfig, epsilon: float = 1e-6
) -> tuple[np.ndarray, np.ndarray]:
  """G[k] = sum over the group of sigmoid(w_l) H[l], log psi (Eq. 4-5).

  All groups: `prune` is what `inference_groups` does to them.
  """
  gtrans = options.gtrans
  features = []
  groups = layer_groups(len(layers) - 1, options, 2)
  for k, group in enumerate(groups, start=1):
    if gtrans.mode == 'last':
      y = layers[group[-1]]
    else:
      y = sum(
        sigmoid(parameters['layer_weights'][depth - 1]) * layers[depth]
        for depth in group
      )
    if gtrans.mode == 'weighted_mean':
      y = y / len(group)
    if gtrans.group_norm:
      y = layer_norm(y, parameters[f'group_norm_{k}'], epsilon)
    features.append(y)
  temperature = gtrans.temperature or math.sqrt(layers[0].shape[-1])
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


# Baselines.


def transparent_attention(
  parameters: dict,
  layers: Layers,
  options: SideConfig,
  epsilon: float = 1e-6,
) -> list[np.ndarray]:
  """memory_j = sum_{i=0..L} softmax_i(W[:, j]) H[i] (Bapna et al. 2018).

  H[0] gets the norm that the outputs of post-norm layers have had.
  """
  terms = [layer_norm(layers[0], parameters['embedding_norm'], epsilon)]
  terms += layers[1:]
  memories = []
  for column in np.swapaxes(parameters['weights'], 0, 1):
    weights = softmax(column, axis=0)
    memories.append(sum(w * h for w, h in zip(weights, terms, strict=True)))
  return memories


def dlcl(
  parameters: dict,
  embedding: np.ndarray,
  functions: Sequence[Function],
  options: SideConfig,
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
  depth, given = len(outputs) - 1, options.dlcl
  norm = norm if given.norms == 'auto' else 'none'
  if depth % given.period or (depth == 0 and norm in ('post', 'none')):
    return outputs[-1]
  first = max(0, depth + 1 - given.window) if given.window else 0
  seen = list(range(depth, first - 1, -given.dilation))[::-1]
  weights = parameters['weights'][depth][seen]
  if given.normalize == 'softmax':
    weights = softmax(weights, axis=0)
  y = np.zeros(outputs[0].shape)
  for k, weight in zip(seen, weights, strict=True):
    term = outputs[k]
    if norm == 'pre' and k > 0:
      term = layer_norm(term, parameters[f'norm_{k}'], epsilon)
    y = y + weight * term
  if norm == 'post':
    y = layer_norm(y, parameters[f'norm_{depth}'], epsilon)
  return y
