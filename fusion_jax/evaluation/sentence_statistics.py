"""Statistics that sacreBLEU counts in every sentence, and scores of them.

A corpus score depends only on the sums of these counts over its sentences, in
any order. All comparisons of systems therefore start here, and each line of
each file is counted only once. sacreBLEU scores one corpus at a time, but the
significance tests need thousands: the formulas take many.
"""

import concurrent.futures
import contextlib
import itertools
import multiprocessing
from collections.abc import (
  Callable,
  Collection,
  Iterable,
  Iterator,
  Mapping,
  Sequence,
)
from typing import Any

import numpy as np
from jaxtyping import Float

from fusion_jax.metrics import Words, metrics_for

# Statistics of one file, by metric. BLEU has K = 10: the lengths of translation
# and reference, the matching n-grams and all n-grams, n = 1 to 4.
Statistics = dict[str, Float[np.ndarray, 'S _']]
# Scores of many corpora by the sums of their counts.
CorpusScore = Callable[[Float[np.ndarray, 'N K']], Float[np.ndarray, ' N']]

_CHUNK_LINES = 200
_BETA = 2

Map = Callable[..., Iterable[Any]]


@contextlib.contextmanager
def in_processes(count: int) -> Iterator[Map]:
  """Yield a `map` whose calls run in several processes.

  Processes are spawned and not forked, because JAX has its own threads.
  """
  if count == 1:
    yield map
    return
  context = multiprocessing.get_context('spawn')
  with concurrent.futures.ProcessPoolExecutor(count, context) as pool:
    yield pool.map


def statistics_of(
  files: Sequence[Sequence[str]],
  references: Sequence[Sequence[str]],
  language: str | Words,
  run: Map = map,
  names: Collection[str] | None = None,
) -> list[Statistics]:
  """Count the statistics of every line of every file."""
  starts = range(0, len(references[0]), _CHUNK_LINES)
  parts = [
    [[text[start : start + _CHUNK_LINES] for text in texts] for start in starts]
    for texts in (files, references)
  ]
  chunks = list(run(_count, *parts, *map(itertools.repeat, (language, names))))
  return [
    {
      name: np.concatenate([chunk[number][name] for chunk in chunks])
      for name in chunks[0][number]
    }
    for number in range(len(files))
  ]


def _count(
  files: Sequence[Sequence[str]],
  references: Sequence[Sequence[str]],
  language: str | Words,
  names: Collection[str] | None,
) -> list[Statistics]:
  """Count with sacreBLEU, which has no public function of its counts."""
  counted: list[Statistics] = [{} for _ in files]
  for name, metric in metrics_for(language).items():
    if names is not None and name not in names:
      continue
    metric._ref_cache = metric._cache_references(references)
    for lines, statistics in zip(files, counted, strict=True):
      counts = metric._extract_corpus_statistics(lines, None)
      statistics[name] = np.array(counts, np.float64)
  return counted


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
CORPUS_SCORES: Mapping[str, CorpusScore] = {
  'BLEU': corpus_bleu,
  'chrF2': corpus_chrf,
  'TER': corpus_ter,
}


def score_of(name: str, statistics: Float[np.ndarray, 'S K']) -> float:
  """Compute the corpus score of some sentences."""
  (score,) = CORPUS_SCORES[name](statistics.sum(axis=0, keepdims=True))
  return float(score)
