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

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from fusion_jax import figures
from fusion_jax.analysis.frequency import BINS, frequency_bins
from fusion_jax.analysis.probes.kept import KeptAnswers
from fusion_jax.analysis.probes.states import (
  PARTS,
  Classes,
  layer_states,
  make_classes,
  split,
  tokens_of,
)
from fusion_jax.analysis.probes.training import (
  KINDS,
  Examples,
  ProbeOptions,
  scored,
  trained,
)
from fusion_jax.analysis.run_with_text import RunWithText, TextPair
from fusion_jax.analysis.tags import TaggedText, tagged_text
from fusion_jax.analysis.view import SIDES, Numbers, View, nullable
from fusion_jax.config import Side
from fusion_jax.models.transformer import Parameters, initial_parameters
from fusion_jax.progress import Progress
from fusion_jax.runs.loading import TrainedModel

logger = logging.getLogger(__name__)

_EPSILON = 1e-6


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
  kept = KeptAnswers(analysed, options)
  layers = sum(run.config.model.layers(side) + 1 for side in SIDES)
  progress = Progress(2 * len(KINDS) * layers, 'probes')
  answers, others = (
    _answers(run, name, parameters, parts, sides, options, kept, progress)
    for name, parameters in (('trained', run.parameters), ('untrained', fresh))
  )
  numbers = {
    side: _numbers(own, answers[side], others[side])
    for side, own in sides.items()
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


# Whether the answer at each test position is right, by layer, and the number of
# epochs of each probe.
_Answers = tuple[Bool[np.ndarray, 'L n'], list[int]]


def _answers(
  run: TrainedModel,
  name: str,
  parameters: Parameters,
  parts: Mapping[str, Sequence[TextPair]],
  sides: Mapping[Side, _Side],
  options: ProbeOptions,
  kept: KeptAnswers,
  progress: Progress,
) -> dict[Side, dict[str, _Answers]]:
  """Train and test the probes of a model with these parameters."""
  pairs = [pair for part in PARTS for pair in parts[part]]
  found = {}
  for side, states in layer_states(run.model, parameters, pairs).items():
    classes = sides[side].classes
    labels = classes.of_token[tokens_of(pairs, side)]
    sizes = [len(tokens_of(parts[part], side)) for part in PARTS]
    ends = np.cumsum(sizes)[:-1]
    every: dict[str, Any] = {kind: ([], []) for kind in KINDS}
    for number, layer in enumerate(states):
      each = np.split(_standardised(layer, sizes[0]), ends)
      train, stop, test = map(Examples, each, np.split(labels, ends))
      for kind, (rows, epochs) in every.items():
        probe = f'{name}, {side}, H[{number}], {kind}'
        answer = kept.find(probe)
        if answer is None:
          weights, count = trained(
            kind, train, stop, len(classes.counts), options
          )
          answer = np.asarray(scored(weights, test, options.chunk)[1]), count
          kept.add(probe, answer)
          progress.add(1)
        else:
          progress.skip(1)
        rows.append(answer[0])
        epochs.append(answer[1])
        said = f'{probe}: {rows[-1].mean():.1%} right'
        logger.info('%s after %d epochs', said, answer[1])
    found[side] = {
      kind: (np.stack(rows), epochs) for kind, (rows, epochs) in every.items()
    }
  return found


def _standardised(
  states: Float[np.ndarray, 'n D'], train: int
) -> Float[Array, 'n D']:
  """Give each feature mean 0 and deviation 1 on the training positions."""
  known = states[:train]
  return jnp.asarray((states - known.mean(0)) / (known.std(0) + _EPSILON))


def _numbers(
  own: _Side, answers: Mapping[str, _Answers], others: Mapping[str, _Answers]
) -> dict[str, Any]:
  asked = own.groups.sum(0)
  groups = own.groups / np.where(asked, asked, np.nan)
  tagged = slice(BINS + 1, None)
  numbers: dict[str, Any] = {
    'positions': int(asked[0]),
    'bin_positions': asked[1 : BINS + 1].tolist(),
    'classes': len(own.classes.counts),
    'most_frequent': float(own.classes.counts[0] / own.classes.counts.sum()),
    'bin_types': own.bin_types,
  }
  if own.tags:
    counts = asked[tagged].tolist()
    numbers['tag_positions'] = dict(zip(own.tags, counts, strict=True))
  for kind in KINDS:
    correct, epochs = answers[kind]
    right = correct @ groups
    accuracy, untrained = right[:, 0], others[kind][0].mean(1)
    numbers[kind] = {
      'accuracy': accuracy.tolist(),
      'untrained': untrained.tolist(),
      'selectivity': (accuracy - untrained).tolist(),
      'bins': nullable(right[:, 1 : BINS + 1]),
      'epochs': epochs,
    }
    if own.tags:
      by_tag = nullable(right[:, tagged].T)
      numbers[kind]['tags'] = dict(zip(own.tags, by_tag, strict=True))
  return numbers


def draw(numbers: Numbers) -> figures.Figure:
  """Draw accuracy by layer of both stacks; of the MLP also by bin and tag."""
  tagged = [side for side in SIDES if 'tag_positions' in numbers[side]]
  figure, axes = figures.panels(4 + len(tagged), size=(5.2, 3.6))
  for side, lines, bins in zip(SIDES, axes[:2], axes[2:4], strict=True):
    own = numbers[side]
    layers = range(len(own['mlp']['accuracy']))
    named = {
      f'{kind}, {name}': (layers, own[kind][field])
      for kind in KINDS
      for name, field in (('trained', 'accuracy'), ('untrained', 'untrained'))
    }
    figures.draw_lines(lines, named, f'layer of the {side}', 'accuracy')
    lines.set_ylim(-0.02, 1.02)
    lines.set_title(side)
    names = [str(number) for number in range(1, BINS + 1)]
    x = 'tenth of the tokens, from the least frequent types'
    _draw_groups(bins, own['mlp']['bins'], names, f'{side}, by frequency', x)
  for panel, side in zip(axes[4:], tagged, strict=True):
    tags = numbers[side]['mlp']['tags']
    columns = list(zip(*tags.values(), strict=True))
    title = f'{side}, by word class'
    _draw_groups(panel, columns, list(tags), title, 'word class')
    panel.tick_params(axis='x', rotation=90)
  figures.share_legend(figure, axes[:2])
  return figure


def _draw_groups(
  panel: Any,
  rows: Sequence[Sequence[Any]],
  names: list[str],
  title: str,
  x: str,
) -> None:
  values = np.array(rows, np.float64)
  layers = [str(layer) for layer in range(len(values))]
  figures.draw_map(
    panel,
    values,
    layers,
    names,
    x,
    'layer',
    'accuracy of the MLP',
    (0.0, 1.0),
    upwards=True,
  )
  panel.set_title(title)


def summary(numbers: Numbers) -> str:
  """Compare the first and the last layer of both stacks."""
  parts = []
  for side in SIDES:
    own = numbers[side]['mlp']
    parts.append(
      f'{own["accuracy"][0]:.1%} of the tokens in H[0] and '
      f'{own["accuracy"][-1]:.1%} in the last layer of the {side} '
      f'({own["untrained"][-1]:.1%} before training)'
    )
  return f'MLP probes tell {" and ".join(parts)}.'


VIEW = View(
  name='probes',
  title='What the layers still tell of the tokens',
  source='Emelin et al. 2019, section on probing',
  reading=(
    'Accuracy of classifiers that say from the state of a layer which token '
    'stands at the position: where it falls, the layer has given up lexical '
    'content. Untrained: the same of the model before its training.'
  ),
  measure=measure,
  draw=draw,
  summary=summary,
  slow=True,
)
