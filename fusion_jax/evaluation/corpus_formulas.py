"""BLEU, chrF2 and TER of many corpora at once, from sacreBLEU's statistics.

sacreBLEU scores one corpus at a time, but the significance tests need
thousands.
"""

from collections.abc import Callable, Mapping

import numpy as np
from jaxtyping import Float

_BETA = 2


def corpus_bleu(counts: Float[np.ndarray, 'N 10']) -> Float[np.ndarray, ' N']:
  """Compute BLEU with sacreBLEU's default, exponential smoothing.

  BLEU = 100 BP (p_1 p_2 p_3 p_4)^(1/4); BP = min(1, exp(1 - r / h)). The k-th
  order without a match, k from 1, has p = 1 / (2^k n-grams).
  """
  length, reference = counts[:, 0], counts[:, 1]
  right, total = counts[:, 2:6], counts[:, 6:]
  smoothed = 0.5 ** np.cumsum(right == 0, axis=1)
  precision = np.where(right > 0, right, smoothed) / np.maximum(total, 1)
  ratio = reference / np.maximum(length, 1)
  penalty = np.exp(np.minimum(1 - ratio, 0))
  mean = np.exp(np.log(precision).mean(axis=1))
  scored = (total > 0).all(axis=1) & (right > 0).any(axis=1)
  return np.where(scored, 100 * penalty * mean, 0.0)


def corpus_chrf(counts: Float[np.ndarray, 'N 18']) -> Float[np.ndarray, ' N']:
  """Compute chrF2: characters, orders 1 to 6, beta 2 (Popović 2015).

  chrF = 100 (1 + 4) P R / (4 P + R); P and R are means over the orders for
  which both translation and reference have n-grams.
  """
  translation, reference, right = (counts[:, start::3] for start in range(3))
  counted = (translation > 0) & (reference > 0)
  orders = np.maximum(counted.sum(axis=1), 1)
  right = np.where(counted, right, 0)
  precision = (right / np.maximum(translation, 1)).sum(axis=1) / orders
  recall = (right / np.maximum(reference, 1)).sum(axis=1) / orders
  weighted = _BETA**2 * precision + recall
  both = (1 + _BETA**2) * precision * recall
  return 100 * both / np.where(weighted > 0, weighted, 1)


def corpus_ter(counts: Float[np.ndarray, 'N 2']) -> Float[np.ndarray, ' N']:
  """Compute TER = 100 edits / words of the reference (Snover et al. 2006)."""
  edits, length = counts.T
  of_nothing = np.where(edits > 0, 1.0, 0.0)
  return 100 * np.where(
    length > 0, edits / np.where(length > 0, length, 1), of_nothing
  )


# Formulas by the names of `metrics_for`.
CORPUS_SCORES: Mapping[
  str, Callable[[Float[np.ndarray, 'N K']], Float[np.ndarray, ' N']]
] = {'BLEU': corpus_bleu, 'chrF2': corpus_chrf, 'TER': corpus_ter}
