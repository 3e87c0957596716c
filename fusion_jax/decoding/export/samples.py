"""Sentences that an export and its run are compared on."""

from collections.abc import Sequence

import numpy as np

from fusion_jax.data.tokenizer import Vocabulary


def random_sentences(
  vocabulary: Vocabulary,
  lengths: Sequence[int] | np.ndarray,
  rng: np.random.Generator,
) -> list[list[int]]:
  """Ordinary tokens, then the end symbol.

  Args:
    vocabulary: of one side.
    lengths: of the sentences, the end symbols included.
    rng: draws the tokens.

  Returns:
    The ids of each sentence.
  """
  special = vocabulary.start, vocabulary.end, vocabulary.unknown
  ordinary = np.setdiff1d(np.arange(vocabulary.size), special)
  return [
    [*rng.choice(ordinary, length - 1).tolist(), vocabulary.end]
    for length in lengths
  ]
