"""Classifiers on the states of all layers, trained side by side.

A softmax over all classes would cost more than the model. An update scores
only the classes that occur at its own positions, subtracts from each logit the
logarithm of the chance that the class is among them (Bengio and Senecal 2003),
and changes only the rows and moments of these classes.

Axis letters: K tasks (the label, and its control), L layers (H[0..L]), n
positions, D model width, F hidden width, V classes, C candidates.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

KINDS = 'mlp', 'linear'
_DROPOUT = 0.5
_LITTLE = 1e-9
# Finite, so that a batch without any label gives no NaN.
_MASKED = -1e9

# By kind: 'out' [K L V F]; an MLP also has 'hidden' [K L D F], 'bias' [K L F].
Weights = dict[str, dict[str, Float[Array, 'K L ...']]]


class Probes(NamedTuple):
  """Probes of one stack, with Adam's moments.

  Attributes:
    weights: Weights; see `Weights`.
    first: First moments, of the same structure.
    second: Second moments, of the same structure.
    count: int32 number of updates.
  """

  weights: Weights
  first: Weights
  second: Weights
  count: Int[Array, '']  # type: ignore[assignment]


class Asked(NamedTuple):
  """Some positions and the questions asked there.

  Attributes:
    states: States of every layer.
    labels: Class for each task; V for none, which no answer gets right.
    keep: True at positions that count.
  """

  states: Float[Array, 'L n D']
  labels: Int[Array, 'K n']
  keep: Bool[Array, ' n']


def start(
  key: Array, tasks: int, layers: int, width: int, hidden: int, classes: int
) -> Probes:
  """Initialise probes.

  Args:
    key: Random key for the hidden layers; output rows start as 0.
    tasks: Number of tasks K.
    layers: Number of layers L + 1.
    width: Model width D.
    hidden: Hidden width F.
    classes: Number of classes V.

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
  """Make one Adam step on one set of positions, for all tasks and layers.

  Args:
    probes: Probes of a stack.
    asked: Positions of that stack.
    shares: Shares of the classes, which give their chance to be candidates.
    rate: Learning rate.
    key: Random key for the dropout.

  Returns:
    The new probes; rows of classes that are no candidates are unchanged.
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
  pairs = zip(trees, new, strict=True)
  return Probes._make(
    (*(_scattered(old, rows, own) for old, own in pairs), state.count)
  )


def candidate_losses(
  weights: Weights, asked: Asked, shares: Float[Array, 'K V']
) -> dict[str, Float[Array, 'K L']]:
  """Sum the losses that `update` lowers, without dropout, by kind."""
  rows = _candidates(asked, shares.shape[-1])
  own = _gathered(weights, rows)
  losses = _losses(own, asked, rows, shares, None)
  return {kind: losses[kind] for kind in KINDS}


def answers(weights: Weights, asked: Asked) -> dict[str, Bool[Array, 'K L n']]:
  """Return whether the most probable of all classes is the label, by kind."""

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
  """Return the new weights of probes that improved, else the old ones."""

  def choose(mask):
    return lambda one, other: jnp.where(
      mask.reshape(*mask.shape, *(1,) * (one.ndim - 2)), one, other
    )

  return {
    kind: jax.tree.map(choose(improved[kind]), new[kind], old[kind])
    for kind in KINDS
  }


def _glorot(key: Array, shape: tuple[int, ...]) -> Float[Array, '...']:
  """Draw Glorot-uniform matrices in the last two axes."""
  limit = (6 / sum(shape[-2:])) ** 0.5
  return jax.random.uniform(key, shape, minval=-limit, maxval=limit)


def _candidates(asked: Asked, classes: int) -> Int[Array, 'K C']:
  """Return the classes among the labels of each task, then V."""
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
  """Return sums by kind, task and layer; 'sum' is their total per position."""
  classes, positions = shares.shape[-1], asked.keep.shape[0]

  def one(probe, states, labels, own, shares):
    logits = _features(probe, states, key) @ probe['out'].T
    # 1 - (1 - p)^n is the chance to be among n positions.
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
  """Return the weights with only the output rows of the candidates."""

  def one(table, own):
    return table.at[own].get(mode='clip')

  gather = jax.vmap(jax.vmap(one, (0, None)))
  return {
    kind: tree | {'out': gather(tree['out'], rows)}
    for kind, tree in weights.items()
  }


def _scattered(old: Weights, rows: Int[Array, 'K C'], new: Weights) -> Weights:
  """Return the new weights with their output rows put back into the old."""

  def one(table, own, values):
    return table.at[own].set(values, mode='drop')

  scatter = jax.vmap(jax.vmap(one, (0, None, 0)))
  return {
    kind: tree | {'out': scatter(old[kind]['out'], rows, tree['out'])}
    for kind, tree in new.items()
  }
