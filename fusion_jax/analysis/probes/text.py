"""Data of lexical probes: parts of a text, classes, and control classes.

Axis letters: N token ids, V classes.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from fusion_jax.analysis.run_with_text import TextPair
from fusion_jax.errors import InputError

PARTS = 'train', 'stop', 'test'
# Rarer types have no class; more would not fit beside a base-size model.
MOST_CLASSES = 16_384
_SEED = 0


class Classes(NamedTuple):
  """Classes of the probes of one side: types of the training lines.

  Attributes:
    of_token: Class of every id; V if it has none.
    control: Another class for every class, V for V; see `control_classes`.
    shares: Share of the training positions, by class.
    control_shares: Share of the training positions, by control class.
  """

  of_token: Int[np.ndarray, ' N']
  control: Int[np.ndarray, ' V+1']
  shares: Float[np.ndarray, ' V']
  control_shares: Float[np.ndarray, ' V']


def split(pairs: Sequence[TextPair]) -> dict[str, list[TextPair]]:
  """Split lines into parts: of every ten, the ninth stops, the tenth tests.

  Args:
    pairs: Pairs of a text; their line numbers decide.

  Returns:
    The pairs of each of `PARTS`.

  Raises:
    InputError: A part is empty.
  """
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


def token_counts(
  pairs: Sequence[TextPair], side: str, size: int
) -> Int[np.ndarray, ' {size}']:
  """Count how often every id is a label; end symbols never are.

  Args:
    pairs: Pairs of a text.
    side: 'source' or 'target'.
    size: Size of the vocabulary.
  """
  ids = np.concatenate([getattr(pair, side)[:-1] for pair in pairs])
  return np.bincount(ids, minlength=size)


def make_classes(
  counts: Int[np.ndarray, ' N'], most: int = MOST_CLASSES
) -> Classes:
  """Make the classes of a side.

  Args:
    counts: Counts of the training lines.
    most: Largest number of classes; only the most frequent types have one.

  Returns:
    Classes in order of frequency, the most frequent first.
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
  """Draw a random but fixed class for every class; Hewitt and Liang (2019).

  Each type draws its own label from the distribution of the labels, as in
  their section 2. A permutation of the types would be no control: a softmax
  with a row for each class learns it exactly as well.

  Args:
    shares: Shares of the labels.

  Returns:
    One class each, and V for V (no class).
  """
  size = len(shares)
  drawn = np.random.default_rng(_SEED).choice(size, size, p=shares)
  return np.append(drawn, size).astype(np.int32)
