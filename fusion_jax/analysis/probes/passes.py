"""Passes of the frozen model that feed its probes, batch by batch.

One pass of the model serves all probes of both stacks. Its states are computed
again in each epoch, and only those of the drawn positions leave the model. The
largest array is that of the answers, tasks x layers x positions of an update x
classes: 4 bytes x 2 x 7 x 256 x 16,384 = 235 MB for 6 layers. Weights, moments
and the best weights of both stacks of 6 layers of width 512 take 7.5 GB with
this number of classes, and proportionally less with fewer.

Axis letters: K tasks, L layers (H[0..L]), n positions, B rows, D model width.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from fusion_jax.analysis.passes import text_batches, text_shapes
from fusion_jax.analysis.probes import training
from fusion_jax.analysis.probes.text import Classes
from fusion_jax.analysis.probes.training import Asked, Probes, Weights
from fusion_jax.analysis.run_with_text import RunWithText, TextPair
from fusion_jax.analysis.sides import SIDES
from fusion_jax.config import Side
from fusion_jax.data.batching import Batch
from fusion_jax.models.transformer import Parameters, shift_right

TASKS = 'label', 'control'
_SEED = 0
_LITTLE = 1e-6


@dataclasses.dataclass(frozen=True)
class ProbeOptions:
  """Options of the training of probes.

  Attributes:
    tokens: Token slots of a batch on one side.
    updates: Number of updates on one batch.
    positions: Positions of one update, drawn from the batch in every epoch.
    rate: Adam's learning rate at width 512; scaled by 512 / D at other widths,
      so that an update changes a logit by the same amount.
    least_updates: Number of updates that the number of epochs must allow,
      unless the training stops before.
    least_epochs: Least number of epochs allowed, however long the text is.
    most_epochs: Most epochs allowed, however short the text is.
    hidden: Width of the hidden layer of an MLP.
    patience: Number of epochs without a better loss of any probe that end the
      training.
  """

  tokens: int = 4_096
  updates: int = 4
  positions: int = 256
  rate: float = 2e-3
  least_updates: int = 600
  least_epochs: int = 3
  most_epochs: int = 50
  hidden: int = 512
  patience: int = 2

  def epochs(self, batches: int) -> int:
    """Return the most epochs for this number of batches in each."""
    wanted = -(-self.least_updates // (batches * self.updates))
    return min(max(wanted, self.least_epochs), self.most_epochs)


class Answers(NamedTuple):
  """Answers of the probes of one side on a batch.

  Attributes:
    correct: Whether the answer is right, by kind and task, for every layer and
      position.
    token: Id asked for at each position.
    place: Index of each position in the flattened batch.
    keep: True at positions that count.
  """

  correct: Mapping[str, Bool[Array | np.ndarray, 'K L n']]
  token: Int[Array | np.ndarray, ' n']
  place: Int[Array | np.ndarray, ' n']
  keep: Bool[Array | np.ndarray, ' n']


class _Drawn(NamedTuple):
  asked: Asked
  token: Int[Array, ' n']
  place: Int[Array, ' n']


class ProbePasses:
  """Passes over parts of a text; each program is compiled once per shape."""

  def __init__(
    self,
    subject: RunWithText,
    classes: Mapping[str, Classes],
    options: ProbeOptions,
  ):
    self._subject = subject
    self._model = subject.run.model
    self._options = options
    self._classes = jax.tree.map(jnp.asarray, dict(classes))
    self._rate = options.rate * 512 / self._model.config.width
    self._shapes = text_shapes(subject.pairs, options.tokens)
    self._scales = {side: jnp.ones(()) for side in SIDES}
    self._train = jax.jit(self._train_step, donate_argnums=0)
    self._losses = jax.jit(self._loss_step, donate_argnums=0)
    self._answers = jax.jit(self._answer_step)

  def batches(self, pairs: Sequence[TextPair]) -> int:
    """Return the number of batches of a part."""
    return sum(1 for _ in text_batches(pairs, self._shapes))

  def start(self, pairs: Sequence[TextPair]) -> dict[Side, Probes]:
    """Initialise probes, and scale every layer by the first batch."""
    batch = next(text_batches(pairs, self._shapes)).batch
    self._scales = jax.jit(self._root_mean_squares)(
      self._subject.run.parameters, batch
    )
    config, probes = self._model.config, {}
    for number, side in enumerate(SIDES):
      probes[side] = training.start(
        jax.random.key(_SEED + number),
        len(TASKS),
        config.layers(side) + 1,
        config.width,
        self._options.hidden,
        len(self._classes[side].shares),
      )
    return probes

  def train(
    self, probes: dict[Side, Probes], pairs: Sequence[TextPair], epoch: int
  ) -> dict[Side, Probes]:
    """Train one epoch in its own order; the old probes are donated."""
    order = np.random.default_rng((_SEED, epoch)).permutation(len(pairs))
    shuffled = [pairs[index] for index in order]
    key = jax.random.fold_in(jax.random.key(_SEED), epoch)
    for number, (batch, _) in enumerate(text_batches(shuffled, self._shapes)):
      probes = self._train(
        probes, self._inputs, batch, jax.random.fold_in(key, number)
      )
    return probes

  def losses(
    self, weights: Mapping[Side, Weights], pairs: Sequence[TextPair]
  ) -> dict[Side, Any]:
    """Sum losses over the same positions in every epoch, by side and kind."""
    shape = {side: weights[side]['linear']['out'].shape[:2] for side in SIDES}
    sums = {
      side: {kind: jnp.zeros(shape[side]) for kind in training.KINDS}
      for side in SIDES
    }
    for batch, _ in text_batches(pairs, self._shapes):
      sums = self._losses(sums, weights, self._inputs, batch)
    return sums

  def answers(self, weights: Mapping[Side, Weights], pairs: Sequence[TextPair]):
    """Yield each batch with its rows and the answers of both sides."""
    for batch, rows in text_batches(pairs, self._shapes):
      found = self._answers(weights, self._inputs, batch)
      yield batch, rows, jax.device_get(found)

  @property
  def _inputs(self) -> tuple[Any, ...]:
    return self._subject.run.parameters, self._scales, self._classes

  def _train_step(self, probes, inputs, batch, key):
    _, _, classes = inputs
    drawn = self._draw(inputs, batch, key)
    for side, classes_of in classes.items():
      shares = jnp.stack([classes_of.shares, classes_of.control_shares])

      def body(own, each, shares=shares):
        asked, key = each
        return training.update(own, asked, shares, self._rate, key), None

      asked = _parts(drawn[side].asked, self._options.updates)
      keys = jax.random.split(key, self._options.updates)
      own, _ = jax.lax.scan(body, probes[side], (asked, keys))
      probes = probes | {side: own}
    return probes

  def _loss_step(self, sums, weights, inputs, batch):
    drawn = self._draw(inputs, batch, jax.random.key(_SEED))
    found = {}
    for side, own in inputs[2].items():
      shares = jnp.stack([own.shares, own.control_shares])
      body = functools.partial(
        training.candidate_losses, weights[side], shares=shares
      )
      parts = jax.lax.map(
        body, _parts(drawn[side].asked, self._options.updates)
      )
      found[side] = jax.tree.map(lambda x: x.sum(0), parts)
    return jax.tree.map(jnp.add, sums, found)

  def _answer_step(self, weights, inputs, batch):
    drawn = self._draw(inputs, batch, jax.random.key(_SEED))
    found = {}
    for side, own in drawn.items():
      body = functools.partial(training.answers, weights[side])
      parts = jax.lax.map(body, _parts(own.asked, self._options.updates))
      correct = jax.tree.map(
        lambda x: jnp.moveaxis(x, 0, 2).reshape(*x.shape[1:3], -1), parts
      )
      found[side] = Answers(correct, own.token, own.place, own.asked.keep)
    return found

  def _draw(self, inputs, batch: Batch, key: Array) -> dict[Side, _Drawn]:
    """Draw random positions of a batch, none of them twice."""
    parameters, scales, classes = inputs
    states, tokens, inside = self._states(parameters, batch)
    slots = min(x.size for x in inside.values())
    updates = self._options.updates
    count = min(self._options.positions, slots // updates) * updates
    drawn = {}
    for side in SIDES:
      order = jax.random.uniform(key, inside[side].shape)
      order = jnp.where(inside[side], order, -1).reshape(-1)
      best, place = jax.lax.top_k(order, count)
      layers = [x.reshape(-1, x.shape[-1])[place] for x in states[side]]
      token = tokens[side].reshape(-1)[place]
      label = classes[side].of_token[token]
      labels = jnp.stack([label, classes[side].control[label]])
      scaled = jnp.stack(layers).astype(jnp.float32) / scales[side]
      drawn[side] = _Drawn(Asked(scaled, labels, best >= 0), token, place)
    return drawn

  def _states(self, parameters: Parameters, batch: Batch):
    """Return H[0..L], the ids asked for, and the positions that count.

    The encoder is asked for the token of the position, except end symbols; the
    decoder for the input token of the position, except start symbols.
    """
    output: Any = self._model.apply(
      {'params': parameters}, batch.source, batch.source_lengths, batch.target
    )
    source, target = (jnp.arange(x.shape[1]) for x in batch[:2])
    inside = {
      'encoder': source < batch.source_lengths[:, None] - 1,
      'decoder': (target > 0) & (target < batch.target_lengths[:, None]),
    }
    shifted = shift_right(jnp.asarray(batch.target), self._model.start_id)
    tokens = {'encoder': jnp.asarray(batch.source), 'decoder': shifted}
    states = output.encoder_layers, output.decoder_layers
    return dict(zip(SIDES, states, strict=True)), tokens, inside

  def _root_mean_squares(
    self, parameters: Parameters, batch: Batch
  ) -> dict[str, Float[Array, 'L 1 1']]:
    """Return the root mean square of every layer; one rate then suits all."""
    states, _, inside = self._states(parameters, batch)
    return {
      side: jnp.stack([_scale(x, inside[side]) for x in states[side]]).reshape(
        -1, 1, 1
      )
      for side in SIDES
    }


def _scale(
  states: Float[Array, 'B T D'], inside: Bool[Array, 'B T']
) -> Float[Array, '']:
  squares = jnp.square(states.astype(jnp.float32)).mean(-1)
  mean = jnp.where(inside, squares, 0).sum() / jnp.maximum(inside.sum(), 1)
  return jnp.sqrt(mean) + _LITTLE


def _parts(asked: Asked, count: int) -> Asked:
  """Split the positions into equal parts along a new first axis."""

  def cut(x: Array) -> Array:
    return jnp.moveaxis(
      x.reshape(*x.shape[: axis_of(x)], count, -1, *x.shape[axis_of(x) + 1 :]),
      axis_of(x),
      0,
    )

  def axis_of(x: Array) -> int:
    return 0 if x.ndim == 1 else 1

  return jax.tree.map(cut, asked)
