"""Statistics that sacreBLEU counts in every sentence.

A corpus score depends only on the sums of these counts over its sentences, in
any order. All comparisons of systems therefore start here, and each line of
each file is counted only once.
"""

import concurrent.futures
import contextlib
import itertools
import multiprocessing
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from sacrebleu.metrics.base import Metric

from fusion_jax.languages import Words
from fusion_jax.metrics import metrics_for

# Statistics of one file, by metric. BLEU has K = 10: the lengths of translation
# and reference, the matching n-grams and all n-grams, n = 1 to 4.
Statistics = dict[str, Float[np.ndarray, 'S _']]

_CHUNK_LINES = 200


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
    [[each[start : start + _CHUNK_LINES] for each in texts] for start in starts]
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
  counted: list[Statistics] = [{} for _ in files]
  for name, metric in metrics_for(language).items():
    if names is not None and name not in names:
      continue
    metric._ref_cache = metric._cache_references(references)
    for lines, found in zip(files, counted, strict=True):
      counts = metric._extract_corpus_statistics(lines, None)
      found[name] = np.array(counts, np.float64)
  return counted


def score_of(metric: Metric, statistics: Float[np.ndarray, 'S K']) -> float:
  """Compute the corpus score of some sentences."""
  return float(metric._compute_score_from_stats(statistics.sum(axis=0)).score)
