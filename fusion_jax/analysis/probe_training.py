"""Classifiers on the states of one layer, and the states of all layers.

A classifier has a softmax over all classes; its memory is bounded by the logits
of a chunk of positions.

Axis letters: L layers (H[0..L]), n positions of the text, D model width, V
classes.
"""

import dataclasses
import functools
import math
import os
import tempfile
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int

from fusion_jax.analysis.passes import text_batches, text_shapes, watched
from fusion_jax.analysis.run_with_text import TextPair
from fusion_jax.analysis.view import SIDES
from fusion_jax.config import Side
from fusion_jax.errors import InputError
from fusion_jax.models.transformer import Parameters, Transformer

KINDS = 'mlp', 'linear'
_SEED = 0
# Bytes; larger states lie in a temporary file.
_MOST_MEMORY = 2**30

# 'out' and 'out_bias'; an MLP also has 'hidden' and 'hidden_bias'.
Weights = dict[str, Float[Array, '...']]


@dataclasses.dataclass(frozen=True)
class ProbeOptions:
  """Options of the training of probes.

  Attributes:
    hidden: Width of the hidden layer of an MLP.
    chunk: Positions of an update.
    patience: Epochs without a gain that end the training.
    gain: Fall of the validation loss that counts, in nats a position.
  """

  hidden: int = 512
  rate: float = 1e-3
  chunk: int = 512
  patience: int = 3
  gain: float = 1e-3
  most_epochs: int = 200


class Examples(NamedTuple):
  """States of a layer, and classes; V for none, which is never answered."""

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
    loss = float(scored(weights, stop, options.chunk)[0].mean())
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


def layer_states(
  model: Transformer, parameters: Parameters, pairs: Sequence[TextPair]
) -> dict[Side, Float[np.ndarray, 'L n D']]:
  """Compute H[0..L] of both stacks at all positions of a text."""

  @jax.jit
  def states_of(parameters, batch):
    output = watched(model, parameters, batch).output
    both = output.encoder_layers, output.decoder_layers
    return [jnp.stack(layers).astype(jnp.float32) for layers in both]

  config, ends, states = model.config, {}, {}
  for side in SIDES:
    lengths = [len(pair.ids(side)) - 1 for pair in pairs]
    ends[side] = np.cumsum([0, *lengths])
    shape = config.layers(side) + 1, int(ends[side][-1]), config.width
    states[side] = _room(shape)
  for batch, rows in text_batches(pairs, text_shapes(pairs)):
    both = jax.device_get(states_of(parameters, batch))
    for side, rows_of in zip(SIDES, both, strict=True):
      # The decoder reads a token one position later than it predicts it.
      first = int(side == 'decoder')
      for place, row in enumerate(rows):
        begin, end = ends[side][row : row + 2]
        inside = slice(first, first + end - begin)
        states[side][:, begin:end] = rows_of[:, place, inside]
  return states


def _room(shape: tuple[int, ...]) -> Float[np.ndarray, '...']:
  """Return an array to fill, in a file that nobody else sees if it is large."""
  size = 4 * math.prod(shape)
  if size <= _MOST_MEMORY:
    return np.empty(shape, np.float32)
  try:
    with tempfile.TemporaryFile() as file:
      os.posix_fallocate(file.fileno(), 0, size)
      # The map outlives the closed file.
      return np.memmap(file, np.float32, 'r+', shape=shape)
  except OSError as error:
    raise InputError(
      f'{tempfile.gettempdir()}: no room for {size / 2**30:.1f} GiB of states '
      f'({error.strerror}); give fewer --lines, or another TMPDIR'
    ) from error
