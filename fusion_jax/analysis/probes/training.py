"""Classifiers on the states of one layer, with a softmax over all classes.

Memory is bounded by the logits of a chunk of positions.

Axis letters: n positions, D model width, V classes.
"""

import dataclasses
import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int

KINDS = 'mlp', 'linear'
_SEED = 0

# 'out' and 'out_bias'; an MLP also has 'hidden' and 'hidden_bias'.
Weights = dict[str, Float[Array, '...']]


@dataclasses.dataclass(frozen=True)
class ProbeOptions:
  """Options of the training of probes.

  Attributes:
    hidden: Width of the hidden layer of an MLP.
    rate: Adam's learning rate.
    chunk: Positions of an update.
    patience: Number of epochs that end the training if the validation loss
      did not fall in them.
    gain: Fall of the validation loss that counts, in nats a position.
    most_epochs: Most passes over the training positions.
  """

  hidden: int = 512
  rate: float = 1e-3
  chunk: int = 512
  patience: int = 3
  gain: float = 1e-3
  most_epochs: int = 200


class Examples(NamedTuple):
  """Positions and the questions asked there.

  Attributes:
    states: States of a layer.
    labels: Classes; V for none, which is not learned and never answered.
  """

  states: Float[Array | np.ndarray, '*n D']
  labels: Int[Array | np.ndarray, '*n']


def trained(
  kind: str,
  train: Examples,
  stop: Examples,
  classes: int,
  options: ProbeOptions,
) -> tuple[Weights, int]:
  """Train a probe until its validation loss stops improving."""
  weights = _start(kind, train.states.shape[1], classes, options.hidden)
  moments = optax.adam(options.rate).init(weights)
  random = np.random.default_rng(_SEED)
  best, lowest, reached = weights, math.inf, math.inf
  waited = epoch = 0
  while waited < options.patience and epoch < options.most_epochs:
    epoch += 1
    order = _chunks(random.permutation(len(train.labels)), options.chunk)
    weights, moments = _epoch(weights, moments, train, order, options.rate)
    loss = float(_mean_loss(weights, stop, options.chunk))
    waited += 1
    if loss < lowest:
      best, lowest = weights, loss
    if loss < reached - options.gain:
      reached, waited = loss, 0
  return best, epoch


@functools.partial(jax.jit, static_argnames='chunk')
def scored(
  weights: Weights, examples: Examples, chunk: int
) -> tuple[Float[Array, ' n'], Bool[Array, ' n']]:
  """Return the loss in nats and whether the answer is right, by position."""
  one = functools.partial(_scored, weights)
  return jax.lax.map(one, examples, batch_size=chunk)


@functools.partial(jax.jit, static_argnames='chunk')
def _mean_loss(
  weights: Weights, examples: Examples, chunk: int
) -> Float[Array, '']:
  return scored(weights, examples, chunk)[0].mean()


def _start(kind: str, width: int, classes: int, hidden: int) -> Weights:
  weights = {}
  if kind == 'mlp':
    draw = jax.nn.initializers.glorot_uniform()
    weights['hidden'] = draw(jax.random.key(_SEED), (width, hidden))
    weights['hidden_bias'] = jnp.zeros(hidden)
    width = hidden
  out = jnp.zeros((width, classes))
  return weights | {'out': out, 'out_bias': jnp.zeros(classes)}


def _scored(
  weights: Weights, example: Examples
) -> tuple[Float[Array, ''], Bool[Array, '']]:
  states, label = example
  if 'hidden' in weights:
    states = states @ weights['hidden'] + weights['hidden_bias']
    states = jax.nn.relu(states)
  logits = states @ weights['out'] + weights['out_bias']
  loss = jax.nn.logsumexp(logits) - jnp.take(logits, label, mode='clip')
  return jnp.where(label < len(logits), loss, 0), logits.argmax() == label


def _chunks(
  order: Int[np.ndarray, ' n'], chunk: int
) -> Int[np.ndarray, 'chunks c']:
  """Cut an order into equal chunks; n, which is no position, fills the last."""
  size = min(chunk, len(order))
  return np.pad(
    order, (0, -len(order) % size), constant_values=len(order)
  ).reshape(-1, size)


@functools.partial(jax.jit, static_argnames='rate', donate_argnums=1)
def _epoch(
  weights: Weights,
  moments: optax.OptState,
  train: Examples,
  order: Int[Array, 'chunks c'],
  rate: float,
) -> tuple[Weights, optax.OptState]:
  """Make an Adam step on the mean loss of each chunk."""
  adam = optax.adam(rate)

  def loss(weights, rows):
    states = jnp.take(train.states, rows, 0, mode='fill', fill_value=0)
    classes = len(weights['out_bias'])
    labels = jnp.take(train.labels, rows, 0, mode='fill', fill_value=classes)
    one = functools.partial(_scored, weights)
    losses, _ = jax.vmap(one)(Examples(states, labels))
    return losses.sum() / jnp.maximum((labels < classes).sum(), 1)

  def update(carry, rows):
    weights, moments = carry
    steps, moments = adam.update(jax.grad(loss)(weights, rows), moments)
    return (optax.apply_updates(weights, steps), moments), None

  return jax.lax.scan(update, (weights, moments), order)[0]
