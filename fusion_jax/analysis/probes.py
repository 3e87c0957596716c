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
most frequent; another type is never answered right.
"""

import contextlib
import dataclasses
import hashlib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from fusion_jax import figures
from fusion_jax.analysis.passes import BINS, frequency_bins
from fusion_jax.analysis.probe_training import (
  KINDS,
  Examples,
  ProbeOptions,
  layer_states,
  scored,
  trained,
)
from fusion_jax.analysis.run_with_text import RunWithText, TextPair
from fusion_jax.analysis.tags import TaggedText, tagged_text
from fusion_jax.analysis.view import SIDES, Numbers, finite_or_nan, nullable
from fusion_jax.config import Side
from fusion_jax.errors import InputError
from fusion_jax.files import AppendedFile, parse_json, write_errors
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
# File of the answers of finished probes, until all are finished.
KEPT = 'probes.part.jsonl'
_EPSILON = 1e-6


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
  """Classes of the probes of one side: types of the training lines.

  Attributes:
    of_token: Class of every id; V if it has none.
    counts: Number of training positions, by class, the largest first.
  """

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


class _Answer(NamedTuple):
  """Whether each test position is answered right, and the number of epochs."""

  right: Bool[np.ndarray, ' n']
  epochs: int


class _KeptAnswers:
  """The answers of finished probes by name, also of an interrupted call."""

  def __init__(self, analysed: RunWithText, options: ProbeOptions):
    self._path = analysed.folder and analysed.folder / KEPT
    self._key, self._answers = '', dict[str, _Answer]()
    if self._path:
      about = f'{analysed.digest} {options}'
      self._key = hashlib.sha256(about.encode()).hexdigest()
      self._answers = dict(_finished(self._path, self._key))

  def find(self, probe: str) -> _Answer | None:
    return self._answers.get(probe)

  def add(self, probe: str, answer: _Answer) -> None:
    if not self._path:
      return
    with write_errors(self._path):
      self._path.parent.mkdir(parents=True, exist_ok=True)
    values = {
      'key': self._key,
      'probe': probe,
      'accuracy': float(answer.right.mean()),
      'epochs': answer.epochs,
      'right': ''.join('01'[right] for right in answer.right.astype(int)),
    }
    file = AppendedFile(self._path)
    file.append(json.dumps(values).encode() + b'\n')
    file.close()

  def remove(self) -> None:
    if self._path:
      with write_errors(self._path):
        self._path.unlink(missing_ok=True)


def _finished(path: Path, key: str) -> Iterator[tuple[str, _Answer]]:
  """Yield the answers with this key; lines that are damaged have none."""
  lines = path.read_bytes().splitlines() if path.is_file() else []
  for line in lines:
    with contextlib.suppress(InputError):
      values = parse_json(line, str(path), dict[str, Any])
      if values.get('key') == key:
        right = np.array([*values['right']]) == '1'
        yield values['probe'], _Answer(right, values['epochs'])


def measure(
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
  kept = _KeptAnswers(analysed, options)
  layers = sum(run.config.model.layers(side) + 1 for side in SIDES)
  progress = Progress(2 * len(KINDS) * layers, 'probes')
  probing = _Probing(run.model, parts, sides, options, kept, progress)
  answers = probing.answers('trained', run.parameters)
  others = probing.answers('untrained', fresh)
  numbers = {
    side: _numbers(sides[side], answers[side], others[side]) for side in sides
  }
  lines = {part: len(pairs) for part, pairs in parts.items()}
  kept.remove()
  protocol = {'lines': lines, **dataclasses.asdict(options)}
  return {'protocol': protocol} | numbers


class _Side(NamedTuple):
  """What is asked of one side.

  Attributes:
    classes: Classes of the side.
    groups: True where a test position is in a group: in all, in each
      frequency bin, in each word class.
    bin_types: Number of types in each bin.
    tags: Names of the word classes; () if they are those of the other side.
  """

  classes: Classes
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
  groups = [
    np.ones((len(test), 1), bool),
    bins[test][:, None] == np.arange(BINS),
  ]
  names = () if tags is None else tags.names
  if tags is not None:
    of_line = [tags.of_line[pair.line] for pair in parts['test']]
    groups.append(np.concatenate(of_line)[:, None] == np.arange(len(names)))
  types = np.bincount(bins[counts > 0], minlength=BINS).tolist()
  return _Side(make_classes(train), np.concatenate(groups, 1), types, names)


# Answers of the probes of each kind, from H[0] on.
_Answers = Mapping[str, Sequence[_Answer]]


@dataclasses.dataclass(frozen=True)
class _Probing:
  """What the probes of the trained and the untrained model have in common."""

  model: Transformer
  parts: Mapping[str, Sequence[TextPair]]
  sides: Mapping[Side, _Side]
  options: ProbeOptions
  kept: _KeptAnswers
  progress: Progress

  def answers(self, name: str, parameters: Parameters) -> dict[Side, _Answers]:
    """Train and test the probes of a model with these parameters."""
    pairs = [pair for part in PARTS for pair in self.parts[part]]
    states = layer_states(self.model, parameters, pairs)
    return {
      side: self._of_side(side, f'{name}, {side}', layers)
      for side, layers in states.items()
    }

  def _of_side(
    self, side: Side, name: str, layers: Float[np.ndarray, 'L n D']
  ) -> _Answers:
    classes = self.sides[side].classes
    tokens = [tokens_of(self.parts[part], side) for part in PARTS]
    labels = [classes.of_token[ids] for ids in tokens]
    ends = np.cumsum([*map(len, tokens)])[:-1]
    answers: dict[str, list[_Answer]] = {kind: [] for kind in KINDS}
    for number, layer in enumerate(layers):
      states = np.split(_standardised(layer, len(tokens[0])), ends)
      examples = [*map(Examples, states, labels)]
      for kind, of_kind in answers.items():
        probe = f'{name}, H[{number}], {kind}'
        of_kind.append(self._answer(probe, examples, len(classes.counts)))
    return answers

  def _answer(
    self, probe: str, examples: Sequence[Examples], classes: int
  ) -> _Answer:
    """Return the answer that was kept, or train the probe and test it."""
    train, stop, test = examples
    answer = self.kept.find(probe)
    if answer is None:
      kind = probe.rpartition(' ')[2]
      weights, epochs = trained(kind, train, stop, classes, self.options)
      right = np.asarray(scored(weights, test, self.options.chunk)[1])
      answer = _Answer(right, epochs)
      self.kept.add(probe, answer)
      self.progress.add(1)
    else:
      self.progress.skip(1)
    said = f'{probe}: {answer.right.mean():.1%} right'
    logger.info('%s after %d epochs', said, answer.epochs)
    return answer


def _standardised(
  states: Float[np.ndarray, 'n D'], train: int
) -> Float[Array, 'n D']:
  """Give each feature mean 0 and deviation 1 on the training positions."""
  known = states[:train]
  return jnp.asarray((states - known.mean(0)) / (known.std(0) + _EPSILON))


def _numbers(
  side: _Side, answers: _Answers, others: _Answers
) -> dict[str, Any]:
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
    right = np.stack([answer.right for answer in answers[kind]]) @ groups
    untrained = np.array([answer.right.mean() for answer in others[kind]])
    accuracy = right[:, 0]
    numbers[kind] = {
      'accuracy': accuracy.tolist(),
      'untrained': untrained.tolist(),
      'selectivity': (accuracy - untrained).tolist(),
      'bins': nullable(right[:, 1 : BINS + 1]),
      'epochs': [answer.epochs for answer in answers[kind]],
    }
    if side.tags:
      by_tag = nullable(right[:, BINS + 1 :].T)
      numbers[kind]['tags'] = dict(zip(side.tags, by_tag, strict=True))
  return numbers


def draw(numbers: Numbers) -> figures.Figure:
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
  figure, axes = figures.draw_panels(panels, size=(5.2, 3.6))
  for panel in axes[:2]:
    panel.set_ylim(-0.02, 1.02)
  for panel in axes[4:]:
    panel.tick_params(axis='x', rotation=90)
  figures.share_legend(figure, axes[:2])
  return figure


def _accuracies(side: Side, numbers: Mapping[str, Any]) -> figures.Panel:
  layers = range(len(numbers['mlp']['accuracy']))
  named = {
    f'{kind}, {name}': (layers, numbers[kind][field])
    for kind in KINDS
    for name, field in (('trained', 'accuracy'), ('untrained', 'untrained'))
  }
  given = named, f'layer of the {side}', 'accuracy'
  return figures.Panel(figures.draw_lines, given, side)


def _group_map(
  rows: Sequence[Sequence[Any]], names: list[str], title: str, x: str
) -> figures.Panel:
  layers = [str(layer) for layer in range(len(rows))]
  labels, limits = (x, 'layer', 'accuracy of the MLP'), (0.0, 1.0)
  given = finite_or_nan(rows), layers, names, *labels, limits
  return figures.Panel(figures.draw_map, given, title)


def summary(numbers: Numbers) -> str:
  """Compare the first and the last layer of both stacks."""
  parts = []
  for side in SIDES:
    mlp = numbers[side]['mlp']
    parts.append(
      f'{mlp["accuracy"][0]:.1%} of the tokens in H[0] and '
      f'{mlp["accuracy"][-1]:.1%} in the last layer of the {side} '
      f'({mlp["untrained"][-1]:.1%} before training)'
    )
  return f'MLP probes tell {" and ".join(parts)}.'
