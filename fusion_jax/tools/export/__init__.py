"""Export of runs to the formats of other programs, and what all check."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fusion_jax.data.tokenizer import Vocabulary


def random_sentences(
  vocabulary: Vocabulary,
  lengths: Sequence[int] | np.ndarray,
  rng: np.random.Generator,
) -> list[list[int]]:
  """Draw sentences of ordinary tokens that end in the end symbol."""
  special = vocabulary.start, vocabulary.end, vocabulary.unknown
  ordinary = np.setdiff1d(np.arange(vocabulary.size), special)
  return [
    [*rng.choice(ordinary, length - 1).tolist(), vocabulary.end]
    for length in lengths
  ]


def check_difference(output: Path, difference: float, allowed: float) -> None:
  """Refuse to write a model that does not compute what its run computes."""
  if not difference <= allowed:
    raise RuntimeError(
      f'{output}: what was exported differs by {difference:.1e} for each unit '
      f'of a log-probability, more than the {allowed:.1e} of rounding; not '
      'exported'
    )
