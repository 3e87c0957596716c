"""Classifiers on the states of all layers, trained side by side.

Axis letters: K tasks (the label, and its control), L layers (H[0..L]), n
positions, D model width, F hidden width, V classes, C candidates.
A softmax over all classes would cost more than the model. An update scores
only the classes that its own positions have, with the logarithm of the chance
that each is among them taken off (Bengio and Senecal 2003), and moves only
their rows and moments.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

KINDS = 'mlp', 'linear'
_DROPOUT = 0.5
_LITTLE = 1e-9
# Finite, so that a batch without any label has no NaN.
_MASKED = -1e9

# By kind: 'out' [K L V F], and of an MLP 'hidden' [K L D F] and 'bias' [K L F].
Weights = dict[str, dict[str, Float[Array, 'K L ...']]]


class Probes(NamedTuple):
  """Of one stack, with Adam's moments.

  weights, first, second: alike; see `Weights`.
  count: int32 updates.
  """

  weights: Weights
  first: Weights
  second: Weights
  count: Int[Array, '']


class Asked(NamedTuple):
  """Some positions and what is asked there.

  states: of every layer.
  labels: for each task a class; V: none, which no answer gets right.
  keep: True at positions that count.
  """

  states: Float[Array, 'L n D']
  labels: Int[Array, 'K n']
  keep: Bool[Array, ' n']


def start(
  key: Array, tasks: int, layers: int, width: int, hidden: int, classes: int
) -> Probes:
  """Fresh probes.

  Args:
    key: of the hidden layers; output rows start as 0.
    tasks: K.
    layers: L + 1.
    width: D.
    hidden: F.
    classes: V.

  Returns:
    Probes without updates.
  """
  shape = tasks, layers
  weights = {
    'mlp': {
      'hidden': _glorot(key, (*shape, width, hidden)),
      'bias': jnp.zeros((*shape, hidden)),
      'out': jnp.zeros((*shape, classes, hidden)),
    },
    'linear': {'out': jnp.zeros((*shape, classes, width))},
  }
  first, second = (jax.tree.map(jnp.zeros_like, weights) for _ in range(2))
  return Probes(weights, first, second, jnp.int32(0))


def update(
  probes: Probes,
  asked: Asked,
  shares: Float[Array, 'K V'],
  rate: float,
  key: Array,
) -> Probes:
  """One step of Adam on one set of positions, for all tasks and layers.

  Args:
    probes: of a stack.
    asked: of that stack.
    shares: of the classes, by which they come to be candidates.
    rate: of learning.
    key: of the dropout.

  Returns:
    The probes; rows of classes that are no candidates are as before.
  """
  rows = _candidates(asked, shares.shape[-1])
  trees = probes.weights, probes.first, probes.second
  weights, first, second = (_gathered(tree, rows) for tree in trees)
  gradients = jax.grad(
    lambda own: _losses(own, asked, rows, shares, key)['sum']
  )(weights)
  adam = optax.scale_by_adam()
  state = optax.ScaleByAdamState(probes.count, first, second)
  steps, state = adam.update(gradients, state)
  weights = jax.tree.map(lambda w, s: w - rate * s, weights, steps)
  new = weights, state.mu, state.nu
  return Probes(
    *(_scattered(old, rows, own) for old, own in zip(trees, new, strict=True)),
    state.count,
  )


def candidate_losses(
  weights: Weights, asked: Asked, shares: Float[Array, 'K V']
) -> dict[str, Float[Array, 'K L']]:
  """The sums of the losses that `update` lowers, without dropout, by kind."""
  rows = _candidates(asked, shares.shape[-1])
  own = _gathered(weights, rows)
  losses = _losses(own, asked, rows, shares, None)
  return {kind: losses[kind] for kind in KINDS}


def answers(weights: Weights, asked: Asked) -> dict[str, Bool[Array, 'K L n']]:
  """Whether the most probable of all classes is the label, by kind."""

  def one(probe, states, labels):
    chosen = (_features(probe, states, None) @ probe['out'].T).argmax(-1)
    return chosen == labels

  layers = jax.vmap(one, (0, 0, None))
  tasks = jax.vmap(layers, (0, None, 0))
  return {
    kind: tasks(weights[kind], asked.states, asked.labels) for kind in KINDS
  }


def better(
  new: Weights,
  old: Weights,
  improved: dict[str, Bool[Array, 'K L']],
) -> Weights:
  """Of every probe the new weights where it improved, else the old ones."""

  def choose(mask):
    return lambda one, other: jnp.where(
      mask.reshape(*mask.shape, *(1,) * (one.ndim - 2)), one, other
    )

  return {
    kind: jax.tree.map(choose(improved[kind]), new[kind], old[kind])
    for kind in KINDS
  }


def _glorot(key: Array, shape: tuple[int, ...]) -> Float[Array, '...']:
  """Glorot's uniform start of the matrices in the last two axes."""
  limit = (6 / sum(shape[-2:])) ** 0.5
  return jax.random.uniform(key, shape, minval=-limit, maxval=limit)


def _candidates(asked: Asked, classes: int) -> Int[Array, 'K C']:
  """The classes among the labels of each task, then V."""
  size = asked.labels.shape[-1]
  labels = jnp.where(asked.keep, asked.labels, classes)

  def one(own):
    return jnp.unique(own, size=size, fill_value=classes)

  return jax.vmap(one)(labels)


def _features(
  probe: dict[str, Array], states: Float[Array, 'n D'], key: Array | None
) -> Float[Array, 'n F']:
  if 'hidden' not in probe:
    return states
  hidden = jax.nn.relu(states @ probe['hidden'] + probe['bias'])
  if key is None:
    return hidden
  keep = jax.random.bernoulli(key, 1 - _DROPOUT, hidden.shape)
  return jnp.where(keep, hidden / (1 - _DROPOUT), 0)


def _losses(
  weights: Weights,
  asked: Asked,
  rows: Int[Array, 'K C'],
  shares: Float[Array, 'K V'],
  key: Array | None,
) -> dict[str, Array]:
  """Sums by kind, task and layer; 'sum': their sum a position, to minimise."""
  classes, positions = shares.shape[-1], asked.keep.shape[0]

  def one(probe, states, labels, own, shares):
    logits = _features(probe, states, key) @ probe['out'].T
    # log(1 - (1 - p)^n): the chance to be among n positions.
    p = shares[jnp.minimum(own, classes - 1)]
    chance = -jnp.expm1(positions * jnp.log1p(-jnp.minimum(p, 1 - 1e-6)))
    logits -= jnp.log(jnp.maximum(chance, _LITTLE))
    log_p = jax.nn.log_softmax(jnp.where(own < classes, logits, _MASKED))
    place = jnp.searchsorted(own, labels)
    chosen = jnp.take_along_axis(log_p, place[:, None], 1)[:, 0]
    counted = asked.keep & (labels < classes)
    return -jnp.where(counted, chosen, 0).sum()

  layers = jax.vmap(one, (0, 0, None, None, None))
  tasks = jax.vmap(layers, (0, None, 0, 0, 0))
  losses = {
    kind: tasks(weights[kind], asked.states, asked.labels, rows, shares)
    for kind in KINDS
  }
  total = sum(each.sum() for each in losses.values())
  return losses | {'sum': total / jnp.maximum(asked.keep.sum(), 1)}


def _gathered(weights: Weights, rows: Int[Array, 'K C']) -> Weights:
  """The same with only the output rows of the candidates."""

  def one(table, own):
    return table.at[own].get(mode='clip')

  gather = jax.vmap(jax.vmap(one, (0, None)))
  return {
    kind: tree | {'out': gather(tree['out'], rows)}
    for kind, tree in weights.items()
  }


def _scattered(old: Weights, rows: Int[Array, 'K C'], new: Weights) -> Weights:
  """The new weights, with those output rows put back among the others."""

  def one(table, own, values):
    return table.at[own].set(values, mode='drop')

  scatter = jax.vmap(jax.vmap(one, (0, None, 0)))
  return {
    kind: tree | {'out': scatter(old[kind]['out'], rows, tree['out'])}
    for kind, tree in new.items()
  }
