"""Lexical probes: how well each layer still identifies the tokens.

Emelin et al. (2019), section on probing: on the frozen model, for each H[0..L]
of both stacks, a classifier predicts the token at a position: the source token
in the encoder, the input token in the decoder. Here these are an MLP (D to 512,
ReLU; to the classes) and a linear classifier, each with a softmax over all
classes, trained with Adam until its validation loss stops improving.

The same classifiers are trained on the states of the untrained model, with the
parameters that the training started from: what they reach needs no learning.
The difference of the two accuracies is called selectivity here. (Hewitt and
Liang 2019 subtract the accuracy on random labels; a random label for each type
asks for the same information as the type itself.)

Of every ten lines of the text, eight train, the ninth stops the training and
the tenth tests. Classes are the types of the training lines, the `MOST_CLASSES`
most frequent; another type is never answered right. The memory of a classifier
is bounded by the logits of a chunk of positions.

Axis letters: L layers (H[0..L]), n positions of the text, D model width, V
classes, g groups.
"""

import contextlib
import dataclasses
import functools
import json
import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int

from fusion_jax import figures
from fusion_jax.analysis.passes import (
  BINS,
  frequency_bins,
  text_batches,
  watched,
)
from fusion_jax.analysis.run_with_text import (
  SIDES,
  Numbers,
  RunWithText,
  TextPair,
  nullable,
)
from fusion_jax.analysis.tags import TaggedText, tagged_text
from fusion_jax.config import Side
from fusion_jax.errors import InputError
from fusion_jax.files import read_json, write_errors, write_whole
from fusion_jax.models.transformer import (
  Parameters,
  Transformer,
  initial_parameters,
)
from fusion_jax.startup import Progress

logger = logging.getLogger(__name__)

PARTS = 'train', 'stop', 'test'
# Rarer types have no class: the logits of a chunk would become too large.
MOST_CLASSES = 16_384
KINDS = 'mlp', 'linear'
# File of the answers of finished probes, until all are finished.
KEPT = 'probes.part.json'
_SEED = 0
_EPSILON = 1e-6

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
  size, count = min(chunk, len(order)), len(order)
  filled = np.pad(order, (0, -count % size), constant_values=count)
  return filled.reshape(-1, size)


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

  # By side, H[0..L] of each line.
  lines: dict[Side, dict[int, Float[np.ndarray, 'L T D']]]
  lines = {side: {} for side in SIDES}
  for batch, rows in text_batches(pairs):
    both = jax.device_get(states_of(parameters, batch))
    for side, rows_of in zip(SIDES, both, strict=True):
      # The decoder reads a token one position later than it predicts it.
      first = int(side == 'decoder')
      for place, row in enumerate(rows):
        inside = slice(first, first + len(pairs[row].ids(side)) - 1)
        lines[side][row] = rows_of[:, place, inside].copy()
  return {
    side: np.concatenate([of_line[n] for n in range(len(pairs))], 1)
    for side, of_line in lines.items()
  }


def split(pairs: Sequence[TextPair]) -> dict[str, list[TextPair]]:
  """Split lines into parts: of every ten, the ninth stops, the tenth tests."""
  parts: dict[str, list[TextPair]] = {name: [] for name in PARTS}
  for pair in pairs:
    place = (pair.line - 1) % 10
    parts[PARTS[max(place - 7, 0)]].append(pair)
  if not all(parts.values()):
    raise InputError(
      f'probes: {len(pairs)} lines are too few; of every ten, eight train, one '
      'stops the training and one tests: give some tens of lines or more'
    )
  return parts


def tokens_of(pairs: Sequence[TextPair], side: Side) -> Int[np.ndarray, ' n']:
  """Return the tokens at all positions, in the order of `layer_states`."""
  return np.concatenate([pair.ids(side)[:-1] for pair in pairs])


class Classes(NamedTuple):
  """The class of every id, V if it has none; training positions by class."""

  of_token: Int[np.ndarray, ' N']
  counts: Int[np.ndarray, ' V']


def make_classes(
  counts: Int[np.ndarray, ' N'], most: int = MOST_CLASSES
) -> Classes:
  """Make the classes of a side."""
  order = np.argsort(-counts, kind='stable')[:most]
  order = order[counts[order] > 0]
  of_token = np.full(len(counts), len(order), np.int32)
  of_token[order] = np.arange(len(order))
  return Classes(of_token, counts[order])


# Whether each test position is answered right, and the number of epochs.
_Answer = tuple[Bool[np.ndarray, ' test'], int]


class _Answers:
  """The answers of probes by name, also of an interrupted call."""

  def __init__(self, analysed: RunWithText, options: ProbeOptions, probes: int):
    self._options, about = options, f'{analysed.digest} {options}'
    self._path = analysed.folder and analysed.folder / KEPT
    self._kept: dict[str, Any] = {'about': about, 'finished': {}}
    if self._path and self._path.is_file():
      with contextlib.suppress(InputError):
        kept = read_json(self._path, dict[str, Any])
        self._kept = kept if kept.get('about') == about else self._kept
    self._finished = self._kept['finished']
    self._progress = Progress(probes - len(self._finished), 'probes')

  def get(
    self, probe: str, examples: Sequence[Examples], classes: int
  ) -> _Answer:
    """Return a finished answer, or train the probe and test it."""
    if probe not in self._finished:
      train, stop, test = examples
      kind = probe.rpartition(' ')[2]
      weights, epochs = trained(kind, train, stop, classes, self._options)
      right = np.asarray(scored(weights, test, self._options.chunk)[1])
      digits = ''.join(map(str, right.astype(int)))
      self._finished[probe] = digits, epochs
      if self._path:
        with write_errors(self._path):
          self._path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self._path, json.dumps(self._kept).encode())
      self._progress.add(1)
    digits, epochs = self._finished[probe]
    right = np.array([*digits]) == '1'
    said = f'{probe}: {right.mean():.1%} right'
    logger.info('%s after %d epochs', said, epochs)
    return right, epochs

  def remove(self) -> None:
    """Remove the file: all probes are finished."""
    if self._path:
      with write_errors(self._path):
        self._path.unlink(missing_ok=True)


def probes(
  analysed: RunWithText, options: ProbeOptions | None = None
) -> Mapping[str, Any]:
  """Train and test the probes of all layers."""
  options, run = options or ProbeOptions(), analysed.run
  parts, tags = split(analysed.pairs), tagged_text(analysed)
  tagged = 'encoder' if analysed.choice.tags_side == 'source' else 'decoder'
  sides = {
    side: _side(analysed, parts, side, tags if side == tagged else None)
    for side in SIDES
  }
  fresh = initial_parameters(run.model, run.config.training.seed)
  layers = sum(run.config.model.layers(side) + 1 for side in SIDES)
  answers = _Answers(analysed, options, 2 * len(KINDS) * layers)
  pairs = [pair for part in PARTS for pair in parts[part]]
  by_model: dict[str, dict[Side, _ByKind]] = {}
  for name, parameters in (('trained', run.parameters), ('untrained', fresh)):
    states = layer_states(run.model, parameters, pairs)
    by_model[name] = {
      side: _by_kind(f'{name}, {side}', of_side, sides[side], answers)
      for side, of_side in states.items()
    }
  numbers = {
    side: _numbers(x, *(by_side[side] for by_side in by_model.values()))
    for side, x in sides.items()
  }
  answers.remove()
  lines = {part: len(of_part) for part, of_part in parts.items()}
  protocol = {'lines': lines, **dataclasses.asdict(options)}
  return {'protocol': protocol} | numbers


class _Side(NamedTuple):
  """What is asked of one side.

  Attributes:
    labels: Classes of the positions of each part of the text.
    groups: True where a test position is in a group: in all, in each
      frequency bin, in each word class.
    bin_types: Number of types in each bin.
    tags: Names of the word classes; () if they are those of the other side.
  """

  classes: Classes
  labels: list[Int[np.ndarray, ' n']]
  groups: Bool[np.ndarray, 'n g']
  bin_types: list[int]
  tags: tuple[str, ...]


def _side(
  analysed: RunWithText,
  parts: Mapping[str, Sequence[TextPair]],
  side: Side,
  tags: TaggedText | None,
) -> _Side:
  model = analysed.run.model
  sizes = model.source_vocabulary, model.target_vocabulary
  size = sizes[SIDES.index(side)]
  counts, train = (
    np.bincount(tokens_of(pairs, side), minlength=size)
    for pairs in (analysed.pairs, parts['train'])
  )
  bins, test = frequency_bins(counts), tokens_of(parts['test'], side)
  groups = [np.ones((len(test), 1), bool)]
  groups.append(bins[test][:, None] == np.arange(BINS))
  names = () if tags is None else tags.names
  if tags is not None:
    of_line = [tags.of_line[pair.line] for pair in parts['test']]
    groups.append(np.concatenate(of_line)[:, None] == np.arange(len(names)))
  types = np.bincount(bins[counts > 0], minlength=BINS).tolist()
  classes = make_classes(train)
  labels = [classes.of_token[tokens_of(parts[part], side)] for part in PARTS]
  return _Side(classes, labels, np.concatenate(groups, 1), types, names)


# Answers of the probes of each kind, from H[0] on.
_ByKind = Mapping[str, Sequence[_Answer]]


def _by_kind(
  name: str, layers: Float[np.ndarray, 'L n D'], side: _Side, answers: _Answers
) -> _ByKind:
  """Train and test the probes of a side of one model."""
  ends = np.cumsum([*map(len, side.labels)])[:-1]
  by_kind: dict[str, list[_Answer]] = {kind: [] for kind in KINDS}
  for number, layer in enumerate(layers):
    # Mean 0 and deviation 1 on the training positions.
    known = layer[: ends[0]]
    states = (layer - known.mean(0)) / (known.std(0) + _EPSILON)
    parts = map(jnp.asarray, np.split(states, ends))
    examples = [*map(Examples, parts, side.labels)]
    for kind, of_kind in by_kind.items():
      probe = f'{name}, H[{number}], {kind}'
      of_kind.append(answers.get(probe, examples, len(side.classes.counts)))
  return by_kind


def _numbers(side: _Side, answers: _ByKind, others: _ByKind) -> dict[str, Any]:
  counts = side.groups.sum(0)
  groups = side.groups / np.where(counts, counts, np.nan)
  numbers: dict[str, Any] = {
    'positions': int(counts[0]),
    'bin_positions': counts[1 : BINS + 1].tolist(),
    'classes': len(side.classes.counts),
    'most_frequent': float(side.classes.counts[0] / side.classes.counts.sum()),
    'bin_types': side.bin_types,
  }
  if side.tags:
    tagged = counts[BINS + 1 :].tolist()
    numbers['tag_positions'] = dict(zip(side.tags, tagged, strict=True))
  for kind in KINDS:
    right = np.stack([right for right, _ in answers[kind]]) @ groups
    untrained = np.array([right.mean() for right, _ in others[kind]])
    accuracy = right[:, 0]
    numbers[kind] = {
      'accuracy': accuracy.tolist(),
      'untrained': untrained.tolist(),
      'selectivity': (accuracy - untrained).tolist(),
      'bins': nullable(right[:, 1 : BINS + 1]),
      'epochs': [epochs for _, epochs in answers[kind]],
    }
    if side.tags:
      by_tag = nullable(right[:, BINS + 1 :].T)
      numbers[kind]['tags'] = dict(zip(side.tags, by_tag, strict=True))
  return numbers


def draw_probes(numbers: Numbers) -> figures.Figure:
  """Draw accuracy by layer of both stacks; of the MLP also by bin and tag."""
  bins = [str(number) for number in range(1, BINS + 1)]
  x = 'tenth of the tokens, from the least frequent types'
  panels = [_accuracies(side, numbers[side]) for side in SIDES]
  for side in SIDES:
    rows = numbers[side]['mlp']['bins']
    panels.append(_group_map(rows, bins, f'{side}, by frequency', x))
  for side in SIDES:
    if tags := numbers[side]['mlp'].get('tags'):
      rows = [*zip(*tags.values(), strict=True)]
      title = f'{side}, by word class'
      panels.append(_group_map(rows, [*tags], title, 'word class'))
  figure = figures.draw_panels(panels, size=(5.2, 3.6))
  accuracies = figure.axes[:2]
  for panel in accuracies:
    panel.set_ylim(-0.02, 1.02)
  for panel in figure.axes[4 : len(panels)]:
    panel.tick_params(axis='x', rotation=90)
  figures.share_legend(figure, accuracies)
  return figure


def _accuracies(side: Side, numbers: Mapping[str, Any]) -> figures.Panel:
  layers = range(len(numbers['mlp']['accuracy']))
  named = {
    f'{kind}, {name}': (layers, numbers[kind][field])
    for kind in KINDS
    for name, field in (('trained', 'accuracy'), ('untrained', 'untrained'))
  }
  labels = f'layer of the {side}', 'accuracy'
  return figures.Panel(side, figures.draw_lines, named, *labels)


def _group_map(
  rows: Sequence[Sequence[Any]], names: list[str], title: str, x: str
) -> figures.Panel:
  values, layers = np.array(rows, float), [*map(str, range(len(rows)))]
  labels = x, 'layer', 'accuracy of the MLP', (0.0, 1.0)
  return figures.Panel(title, figures.draw_map, values, layers, names, *labels)


def probes_summary(numbers: Numbers) -> str:
  """Compare the first and the last layer of both stacks."""
  said = ' and '.join(
    f'{mlp["accuracy"][0]:.1%} of the tokens in H[0] and '
    f'{mlp["accuracy"][-1]:.1%} in the last layer of the {side} '
    f'({mlp["untrained"][-1]:.1%} before training)'
    for side in SIDES
    for mlp in [numbers[side]['mlp']]
  )
  return f'MLP probes tell {said}.'
