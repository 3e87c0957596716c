"""Subwords in bins of equal mass, from the least to the most frequent."""

from collections.abc import Iterable

import numpy as np
from jaxtyping import Int

from fusion_jax.data.tokenizer import Tokenizer

# Number of bins that Emelin et al. (2019) use for their probes.
BINS = 10
# Bin of subwords that are in no bin.
NONE = -1


def frequency_bins(
  counts: Int[np.ndarray, ' V'], bins: int = BINS
) -> Int[np.ndarray, ' V']:
  """Return the bins of subwords, numbered as by Emelin et al. (2019).

  From the most frequent, number n is floor(bins (mass above it + half its
  own)), and the bin is bins - 1 - n.
  """
  order = np.argsort(-counts, kind='stable')
  own = counts[order].astype(np.float64)
  middle = (np.cumsum(own) - own / 2) / max(own.sum(), 1)
  found = np.empty(len(counts), np.int32)
  found[order] = bins - 1 - np.minimum(np.int32(bins * middle), bins - 1)
  return np.where(counts > 0, found, np.int32(NONE))


def subword_counts(
  sentences: Iterable[Int[np.ndarray, ' T']], tokenizer: Tokenizer
) -> Int[np.ndarray, ' V']:
  """Count every subword of a text, except end symbols and tags."""
  vocabulary = tokenizer.vocabulary
  counts = np.zeros(vocabulary.size, np.int64)
  for ids in sentences:
    np.add.at(counts, ids, 1)
  counts[[vocabulary.end, *tokenizer.tags]] = 0
  return counts
