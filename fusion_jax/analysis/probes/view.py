"""Lexical probes: how well each layer still identifies the tokens.

Emelin et al. (2019), section on probing: on the frozen model, for each H[0..L]
of both stacks, a classifier predicts the token at a position: the source token
in the encoder, the input token in the decoder. Here these are an MLP (D to 512,
bias, ReLU, dropout 0.5; to the classes, no bias) and a linear classifier. Both
are trained on the labels and on control labels (Hewitt and Liang 2019); the
difference of the two accuracies is their selectivity.

Of every ten lines of the text, eight train, the ninth stops the training and
the tenth tests. Each probe is tested at its own best epoch, by its loss on the
ninth lines. Classes are the types of the training lines, the `MOST_CLASSES`
most frequent; another type is never answered right.

The paper trains for many passes on batches of about 4,096 tokens at a rate of
2e-4. Here the text is read three times or a little more, a quarter of its
positions each time, at ten times that rate: see `ProbeOptions`.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from fusion_jax.analysis.frequency import BINS, frequency_bins
from fusion_jax.analysis.probes.figure import draw
from fusion_jax.analysis.probes.passes import Answers, ProbeOptions, ProbePasses
from fusion_jax.analysis.probes.text import make_classes, split, token_counts
from fusion_jax.analysis.probes.training import KINDS, Weights, better
from fusion_jax.analysis.run_with_text import RunWithText, TextPair
from fusion_jax.analysis.sides import SIDES
from fusion_jax.analysis.tags import TaggedText, tagged_text
from fusion_jax.analysis.view_result import View, ViewResult
from fusion_jax.config import Side

_TEXT_SIDES = {'encoder': 'source', 'decoder': 'target'}


class Tested(NamedTuple):
  """Counts of test positions.

  Attributes:
    right: Right answers [K, L + 1, groups] by kind.
    asked: Number of positions of every group.
  """

  right: Mapping[str, Int[np.ndarray, 'K L g']]
  asked: Int[np.ndarray, ' g']


def trained(
  passes: ProbePasses,
  parts: Mapping[str, Sequence[TextPair]],
  options: ProbeOptions,
) -> tuple[dict[Side, Weights], int]:
  """Train all probes until none improves.

  Args:
    passes: Passes of the model.
    parts: Result of `split`.
    options: Options of the training.

  Returns:
    The weights of every probe at its best epoch, and the number of epochs.
  """
  probes = passes.start(parts['train'])
  best: Any = None
  lowest: Any = None
  waited, epoch = 0, 0
  for epoch in range(1, options.epochs(passes.batches(parts['train'])) + 1):
    probes = passes.train(probes, parts['train'], epoch)
    weights = {side: probes[side].weights for side in SIDES}
    losses = passes.losses(weights, parts['stop'])
    if best is None:
      best, lowest = jax.tree.map(jnp.copy, weights), losses
      continue
    improved = jax.tree.map(jnp.less, losses, lowest)
    best = {
      side: better(weights[side], best[side], improved[side]) for side in SIDES
    }
    lowest = jax.tree.map(jnp.minimum, losses, lowest)
    waited = (
      0 if any(x.any() for x in jax.tree.leaves(improved)) else waited + 1
    )
    if waited == options.patience:
      break
  return best, epoch


def tested(
  passes: ProbePasses,
  weights: Mapping[Side, Weights],
  pairs: Sequence[TextPair],
  bins: Mapping[Side, Int[np.ndarray, ' N']],
  tags: Mapping[str, TaggedText],
) -> dict[str, Tested]:
  """Count right answers: of all positions, of each bin and of each word class.

  Args:
    passes: Passes of the model.
    weights: Weights from `trained`.
    pairs: Test pairs.
    bins: Frequency bin of every id, for each side.
    tags: Word classes of the sides that have them.
  """
  sums: dict[str, Tested] = {}
  for batch, rows, answers in passes.answers(weights, pairs):
    for side in SIDES:
      own = answers[side]
      groups = [np.ones((len(own.keep), 1), bool)]
      groups.append(bins[side][own.token][:, None] == np.arange(BINS))
      if side in tags:
        length = batch[SIDES.index(side)].shape[1]
        lines = [pairs[row].line for row in rows]
        of_place = _tags_at(own, lines, length, tags[side], side)
        groups.append(of_place[:, None] == np.arange(len(tags[side].names)))
      member = (np.concatenate(groups, 1) & own.keep[:, None]).astype(np.int64)
      new = Tested(
        {kind: own.correct[kind].astype(np.int64) @ member for kind in KINDS},
        member.sum(0),
      )
      sums[side] = (
        jax.tree.map(np.add, sums[side], new) if side in sums else new
      )
  return sums


def _tags_at(
  answers: Answers,
  lines: Sequence[int],
  length: int,
  tags: TaggedText,
  side: str,
) -> Int[np.ndarray, ' n']:
  """Return the tag of every position asked, -1 for none.

  The decoder's input at position t is subword t - 1 of the target.
  """
  found = np.full(len(answers.place), -1)
  for index in np.flatnonzero(answers.keep):
    row, place = divmod(int(answers.place[index]), length)
    found[index] = tags.of_line[lines[row]][place - (side == 'decoder')]
  return found


def measure(
  subject: RunWithText, options: ProbeOptions | None = None
) -> Mapping[str, Any]:
  """Train and test the probes of all layers.

  Args:
    subject: Run and text to measure.
    options: Options of the training; None uses the defaults.

  Returns:
    'protocol', and for 'encoder' and 'decoder' by kind, H[0] first:
    'accuracy', 'control' and 'selectivity'; 'bins' and 'tags', the accuracies
    of each bin and word class, None where nothing was asked. Each side also
    has the number of positions asked of each.

  Raises:
    InputError: The text is too short, or as for `tagged_text`.
  """
  options = options or ProbeOptions()
  parts, tags = split(subject.pairs), _tags(subject)
  sizes = {
    'encoder': subject.run.model.source_vocabulary,
    'decoder': subject.run.model.target_vocabulary,
  }
  counts, classes = {}, {}
  for side, size in sizes.items():
    text = _TEXT_SIDES[side]
    counts[side] = token_counts(subject.pairs, text, size)
    classes[side] = make_classes(token_counts(parts['train'], text, size))
  passes = ProbePasses(subject, classes, options)
  weights, epochs = trained(passes, parts, options)
  bins = {side: frequency_bins(counts[side]) for side in SIDES}
  found = tested(passes, weights, parts['test'], bins, tags)
  numbers = {
    side: _numbers(found[side], tags.get(side))
    | {
      'classes': len(classes[side].shares),
      'most_frequent': float(classes[side].shares[0]),
      'bin_types': [
        int(((bins[side] == number) & (counts[side] > 0)).sum())
        for number in range(BINS)
      ],
    }
    for side in SIDES
  }
  protocol = {
    'lines': {part: len(pairs) for part, pairs in parts.items()},
    'epochs': epochs,
    **dataclasses.asdict(options),
  }
  return {'protocol': protocol} | numbers


def _tags(subject: RunWithText) -> dict[str, TaggedText]:
  tags = tagged_text(subject)
  side = 'encoder' if subject.choice.tags_side == 'source' else 'decoder'
  return {} if tags is None else {side: tags}


def _numbers(found: Tested, tags: TaggedText | None) -> dict[str, Any]:
  asked = found.asked
  numbers: dict[str, Any] = {
    'positions': int(asked[0]),
    'bin_positions': asked[1 : BINS + 1].tolist(),
  }
  if tags is not None:
    positions = asked[BINS + 1 :].tolist()
    numbers['tag_positions'] = dict(zip(tags.names, positions, strict=True))
  for kind in KINDS:
    label, control = found.right[kind] / np.where(asked, asked, np.nan)
    own = {
      'accuracy': label[:, 0].tolist(),
      'control': control[:, 0].tolist(),
      'selectivity': (label - control)[:, 0].tolist(),
      'bins': _nullable(label[:, 1 : BINS + 1]),
    }
    if tags is not None:
      by_tag = _nullable(label[:, BINS + 1 :].T)
      own['tags'] = dict(zip(tags.names, by_tag, strict=True))
    numbers[kind] = own
  return numbers


def _nullable(values: np.ndarray) -> list[list[float | None]]:
  return [
    [value if math.isfinite(value) else None for value in row]
    for row in values.tolist()
  ]


def look(subject: RunWithText) -> ViewResult:
  """Train and test the probes, and summarise and draw their accuracies."""
  numbers = measure(subject)
  parts = []
  for side in SIDES:
    own = numbers[side]['mlp']
    parts.append(
      f'{own["accuracy"][0]:.1%} of the tokens in H[0] and '
      f'{own["accuracy"][-1]:.1%} in the last layer of the {side}'
    )
  return ViewResult(
    numbers,
    lambda: draw(numbers),
    f'MLP probes tell {" and ".join(parts)}.',
  )


VIEW = View(
  name='probes',
  title='What the layers still tell of the tokens',
  source='Emelin et al. 2019, section on probing; Hewitt and Liang 2019',
  reading=(
    'Accuracy of classifiers that say from the state of a layer which token '
    'stands at the position: where it falls, the layer has given up lexical '
    'content. Control: the same with a random label for every type.'
  ),
  look=look,
  slow=True,
)
