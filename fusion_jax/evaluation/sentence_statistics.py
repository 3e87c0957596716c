"""What sacreBLEU counts in every sentence.

The sums of these counts over sentences, any sentences and in any order, decide
a corpus score: everything that compares systems begins here, and each line of
each file is counted once.
"""

import concurrent.futures
import contextlib
import itertools
import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from sacrebleu.metrics.base import Metric

from fusion_jax.metrics import metrics_for

# Of one file, by metric. BLEU has K = 10: the lengths of translation and
# reference, the n-grams that match and all n-grams, n = 1 to 4.
Statistics = Mapping[str, Float[np.ndarray, 'S _']]

_CHUNK_LINES = 200


Map = Callable[..., Iterable[Any]]


@contextlib.contextmanager
def in_processes(count: int) -> Iterator[Map]:
  """A `map` whose calls are made in several processes.

  Processes are started anew and not forked: JAX has threads of its own.

  Args:
    count: of the processes; 1: all is done in this one.

  Yields:
    Takes a function of the top of a module and its arguments, as `map` does,
    and gives the answers in order.
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
  language: str,
  run: Map = map,
) -> list[Statistics]:
  """Counts in every line of every file.

  Args:
    files: the lines of each.
    references: one or more translations of the lines, by other people.
    language: of all of them; decides the tokenizers.
    run: as `in_processes` yields it.

  Returns:
    Of each file, by the names of `metrics_for`.
  """
  starts = range(0, len(references[0]), _CHUNK_LINES)
  parts = [
    [[each[start : start + _CHUNK_LINES] for each in texts] for start in starts]
    for texts in (files, references)
  ]
  chunks = list(run(_count, *parts, itertools.repeat(language)))
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
  language: str,
) -> list[Statistics]:
  counted = [{} for _ in files]
  for name, metric in metrics_for(language).items():
    metric._ref_cache = metric._cache_references(references)
    for lines, found in zip(files, counted, strict=True):
      counts = metric._extract_corpus_statistics(lines, None)
      found[name] = np.array(counts, np.float64)
  return counted


def score_of(metric: Metric, statistics: Float[np.ndarray, 'S K']) -> float:
  """The corpus score of some sentences.

  Args:
    metric: whose statistics they are.
    statistics: of the sentences; at least one.

  Returns:
    The score, as sacreBLEU computes it from the lines.
  """
  return float(metric._compute_score_from_stats(statistics.sum(axis=0)).score)
