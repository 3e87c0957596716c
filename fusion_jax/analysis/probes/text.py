"""What lexical probes are asked: parts of a text, classes, controls, bins.

Axis letters: N token ids, V classes.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from fusion_jax.analysis.run_with_text import TextPair
from fusion_jax.errors import InputError

PARTS = 'train', 'stop', 'test'
# Rarer types have no class; more would not fit beside a model of base size.
MOST_CLASSES = 16_384
_SEED = 0


class Classes(NamedTuple):
  """What the probes of one side choose from: types of the training lines.

  of_token: the class of every id, V where it has none.
  control: another class for every class, V for V; see `control_classes`.
  shares: of the training positions, by class.
  control_shares: likewise by control class.
  """

  of_token: Int[np.ndarray, ' N']
  control: Int[np.ndarray, ' V+1']
  shares: Float[np.ndarray, ' V']
  control_shares: Float[np.ndarray, ' V']


def split(pairs: Sequence[TextPair]) -> dict[str, list[TextPair]]:
  """The lines of each part: of ten lines the ninth stops, the tenth tests.

  Args:
    pairs: of a text; their line numbers decide.

  Returns:
    For each of `PARTS` its pairs.

  Raises:
    InputError: a part is empty.
  """
  parts = {name: [] for name in PARTS}
  for pair in pairs:
    place = (pair.line - 1) % 10
    parts[PARTS[max(place - 7, 0)]].append(pair)
  if not all(parts.values()):
    raise InputError(
      f'probes: {len(pairs)} lines are too few; of every ten, eight train, one '
      'stops the training and one tests: give some tens of lines or more'
    )
  return parts


def token_counts(
  pairs: Sequence[TextPair], side: str, size: int
) -> Int[np.ndarray, ' {size}']:
  """How often every id is a label: end symbols never are.

  Args:
    pairs: of a text.
    side: 'source' or 'target'.
    size: of the vocabulary.
  """
  ids = np.concatenate([getattr(pair, side)[:-1] for pair in pairs])
  return np.bincount(ids, minlength=size)


def make_classes(
  counts: Int[np.ndarray, ' N'], most: int = MOST_CLASSES
) -> Classes:
  """The classes of a side.

  Args:
    counts: of the training lines.
    most: the most frequent types have classes, at most so many.

  Returns:
    Classes in the order of frequency.
  """
  order = np.argsort(-counts, kind='stable')[:most]
  order = order[counts[order] > 0]
  size = len(order)
  of_token = np.full(len(counts), size, np.int32)
  of_token[order] = np.arange(size)
  shares = counts[order] / counts[order].sum()
  control = control_classes(shares)
  control_shares = np.bincount(control[:-1], shares, minlength=size)
  return Classes(of_token, control, shares, control_shares)


def control_classes(shares: Float[np.ndarray, ' V']) -> Int[np.ndarray, ' W']:
  """A random but fixed class for every class; Hewitt and Liang (2019).

  Each type draws its own label from the distribution of the labels, as in
  their section 2. A permutation of the types would be no control: a softmax
  with a row for each class learns it exactly as well.

  Args:
    shares: of the labels.

  Returns:
    One class each, and V for V (no class).
  """
  size = len(shares)
  drawn = np.random.default_rng(_SEED).choice(size, size, p=shares)
  return np.append(drawn, size).astype(np.int32)
