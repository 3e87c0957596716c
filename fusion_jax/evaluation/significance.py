"""Scores of many samples of lines, and the significance tests made of them.

A corpus score depends only on the sums of counts over its sentences, in any
order, so that each line of each file is counted only once. sacreBLEU scores one
corpus at a time, but the tests need thousands: the formulas here take many.

Bootstrap resampling (Koehn 2004, https://aclanthology.org/W04-3250) and
approximate randomisation (Riezler and Maxwell 2005,
https://aclanthology.org/W05-0908), with the random numbers of sacreBLEU, so
that its command line prints the same p-values. There are two exceptions, and in
both the p-value here is the larger one:

- sacreBLEU counts the trials that differ by more than the systems do. Trials
  that differ by as much are counted here too. The definition of a p-value
  requires this, and only then do equal outputs have p = 1.
- If d sentences differ, swapping outputs gives at least 2 of 2^d assignments a
  difference as large, so that no paired test of them can have a p-value below
  2^(1 - d). The bootstrap ignores this limit: from a single sentence it draws
  the same sample every time.

sacreBLEU's bootstrap compares the sizes of differences, without their sign, so
that its p-value is that of a one-sided test: between systems that do not
differ, about one in ten is below 0.05. The randomisation is two-sided.
"""

import concurrent.futures
import contextlib
import itertools
import math
import multiprocessing
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import stats

from fusion_jax.metrics import Words, metrics_for, signature_of

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
  names: Sequence[str] = (),
) -> list[Statistics]:
  """Count the statistics of every line of every file, or the named ones."""
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
  names: Sequence[str],
) -> list[Statistics]:
  """Count with sacreBLEU, which has no public function of its counts."""
  counted: list[Statistics] = [{} for _ in files]
  for name, metric in metrics_for(language).items():
    if names and name not in names:
      continue
    metric._ref_cache = metric._cache_references(references)
    for lines, of_file in zip(files, counted, strict=True):
      counts = metric._extract_corpus_statistics(lines, None)
      of_file[name] = np.array(counts, np.float64)
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
  share = edits / np.where(length > 0, length, 1)
  return 100 * np.where(length > 0, share, edits > 0)


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


# Differences between scores up to this size are rounding.
ROUNDING = 1e-9

# The default of sacreBLEU.
_SEED = 12345
# Number of random selections that are multiplied at a time.
_CHUNK = 256


class Paired(NamedTuple):
  """One system in a paired test; what there is none of is None.

  Attributes:
    mean: Mean of the scores of the bootstrap samples.
    interval: Half-width of their 95 % interval: mean ± interval.
    p_value: p-value of no difference to the baseline.
    difference_interval: Half-width of the 95 % interval of the difference to
      the baseline, by the bootstrap.
  """

  score: float
  mean: float | None = None
  interval: float | None = None
  p_value: float | None = None
  difference_interval: float | None = None


def paired_test(
  name: str,
  language: str | Words,
  references: int,
  systems: Mapping[str, Float[np.ndarray, 'S K']],
  kind: Literal['bs', 'ar'],
  samples: int,
) -> tuple[str, dict[str, Paired]]:
  """Test systems against a baseline, as sacreBLEU does."""
  signed = signature_of(metrics_for(language)[name], references)
  signed.update('seed', str(_SEED))
  signed.update(kind, samples)
  test = _bootstrap if kind == 'bs' else _randomisation
  counts = np.stack(list(systems.values()))
  tested = test(CORPUS_SCORES[name], counts, samples)
  return signed.format(), dict(zip(systems, tested, strict=True))


def _bootstrap(
  score: CorpusScore, counts: Float[np.ndarray, 'N S K'], samples: int
) -> Iterator[Paired]:
  """Test against the first of N systems."""
  lines, drawn = counts.shape[1], []
  generator = np.random.default_rng(_SEED)
  for start in range(0, samples, _CHUNK):
    size = min(_CHUNK, samples - start), lines
    indices = generator.choice(lines, size=size, replace=True)
    times = [np.bincount(row, minlength=lines) for row in indices]
    drawn.append(np.matmul(np.array(times, np.float64), counts))
  sampled = [score(of_system) for of_system in np.concatenate(drawn, 1)]
  whole = score(counts.sum(axis=1))
  yield Paired(float(whole[0]), *_interval(sampled[0]))
  for index in range(1, len(counts)):
    difference = sampled[index] - sampled[0]
    change = np.abs(difference)
    p_value = max(
      _p_value(change - change.mean(), abs(whole[index] - whole[0])),
      least_p_value(counts[0], counts[index]),
    )
    mean, interval = _interval(sampled[index])
    _, spread = _interval(difference)
    yield Paired(float(whole[index]), mean, interval, p_value, spread)


def _randomisation(
  score: CorpusScore, counts: Float[np.ndarray, 'N S K'], trials: int
) -> Iterator[Paired]:
  """Test against the first of N systems."""
  totals, size = counts.sum(axis=1), (trials, counts.shape[1])
  whole = score(totals)
  swaps = np.random.default_rng(_SEED).integers(2, size=size, dtype=bool)
  yield Paired(float(whole[0]))
  for index in range(1, len(counts)):
    # Counts of both systems after random swaps of their outputs.
    change = counts[0] - counts[index]
    starts = range(0, trials, _CHUNK)
    chunks = (swaps[n : n + _CHUNK].astype(np.float64) for n in starts)
    one = totals[index] + np.concatenate([chunk @ change for chunk in chunks])
    other = totals[0] + totals[index] - one
    differences = np.abs(score(one) - score(other))
    p_value = _p_value(differences, abs(whole[index] - whole[0]))
    yield Paired(float(whole[index]), p_value=p_value)


def _p_value(values: Float[np.ndarray, ' N'], difference: float) -> float:
  """Return the share of trials that differ by as much, with the real one."""
  count = int((values >= difference - ROUNDING).sum())
  return (count + 1) / (len(values) + 1)


def least_p_value(
  baseline: Float[np.ndarray, 'S K'], system: Float[np.ndarray, 'S K']
) -> float:
  """Return 2^(1 - d) for d sentences that differ, but at most 1."""
  differing = int((baseline != system).any(axis=1).sum())
  return min(1.0, 2.0 ** (1 - differing))


def _interval(scores: Float[np.ndarray, ' N']) -> tuple[float, float]:
  """Return the mean and half the 95 % interval, as sacreBLEU computes them."""
  ordered, tail = np.sort(scores), len(scores) // 40
  half = (ordered[len(scores) - tail - 1] - ordered[tail]) / 2
  return float(scores.mean()), float(half)


def sign_test(
  baseline: Float[np.ndarray, 'S 10'], system: Float[np.ndarray, 'S 10']
) -> dict[str, int | float]:
  """Run the sign test of Collins, Koehn and Kucerova 2005.

  Each sentence of the baseline's output in turn is replaced by the system's,
  and only this one: BLEU of the whole rises (b+) or falls (b-). With no
  difference between the systems, b+ is binomial: b+ + b- draws with probability
  1/2. https://aclanthology.org/P05-1066
  """
  whole = baseline.sum(axis=0, keepdims=True)
  change = corpus_bleu(whole - baseline + system) - corpus_bleu(whole)
  better = int((change > ROUNDING).sum())
  worse = int((change < -ROUNDING).sum())
  drawn = better + worse
  p_value = float(stats.binomtest(better, drawn).pvalue) if drawn else 1.0
  same = len(change) - drawn
  return {'better': better, 'worse': worse, 'same': same, 'p_value': p_value}


def deviation(scores: Sequence[float]) -> float | None:
  """Return the sample standard deviation (n - 1); None for one score."""
  return statistics.stdev(scores) if len(scores) > 1 else None


def welch(baseline: Sequence[float], system: Sequence[float]) -> float | None:
  """Run Welch's t-test over seeds: two-sided, variances may differ."""
  one, other = (
    (statistics.fmean(x), deviation(x), len(x)) for x in (baseline, system)
  )
  if one[1] is None or other[1] is None:
    return None
  if not (one[1] or other[1]):
    return 1.0 if one[0] == other[0] else None
  test = stats.ttest_ind_from_stats(*one, *other, equal_var=False)
  return float(test.pvalue)


class Pooled(NamedTuple):
  """Deviation of a run over seeds, of all systems together.

  sqrt(sum (x - mean of its system)^2 / freedom), freedom = sum (n - 1).
  """

  deviation: float
  freedom: int

  @classmethod
  def of(cls, systems: Iterable[Sequence[float]]) -> 'Pooled | None':
    """Pool the systems that have several seeds; None where none has."""
    groups = [scores for scores in systems if len(scores) > 1]
    freedom = sum(len(scores) - 1 for scores in groups)
    if not freedom:
      return None
    squares = sum((len(x) - 1) * statistics.variance(x) for x in groups)
    return cls(math.sqrt(squares / freedom), freedom)

  def interval(self, seeds: int) -> float:
    """Return half of the 95 % interval of a difference of so many seeds each.

    It is also the smallest difference that a t-test finds at p < 0.05.
    """
    quantile = stats.t.ppf(0.975, self.freedom)
    return float(quantile * self.deviation * math.sqrt(2 / seeds))

  def p_value(self, difference: float, seeds: int) -> float:
    """Run a two-sided t-test of a mean difference of so many seeds each."""
    if not self.deviation:
      return float(difference == 0)
    t = abs(difference) / (self.deviation * math.sqrt(2 / seeds))
    return float(2 * stats.t.sf(t, self.freedom))


def holm(p_values: Sequence[float]) -> list[float]:
  """Correct p-values for their number; Holm (1979).

  The i-th smallest of m is multiplied by m - i + 1, and none is below one that
  was smaller.
  """
  order = np.argsort(p_values, kind='stable')
  factors = np.arange(len(order), 0, -1)
  raised = np.maximum.accumulate(factors * np.array(p_values)[order])
  corrected = np.empty(len(order))
  corrected[order] = np.minimum(raised, 1)
  return corrected.tolist()


class LossDifference(NamedTuple):
  """In nats a subword, with its standard error over lines."""

  nats: float
  error: float

  @property
  def p_value(self) -> float:
    """Two-sided, of a normal distribution around 0."""
    if self.error == 0:
      return float(self.nats == 0)
    return 2 * statistics.NormalDist().cdf(-abs(self.nats) / self.error)


def paired_losses(
  system: Float[np.ndarray, ' L'],
  baseline: Float[np.ndarray, ' L'],
  subwords: Float[np.ndarray, ' L'],
) -> LossDifference:
  """Compare the losses of two models in nats, line by line.

  r = sum d / sum n, for the differences d and the subwords n of L lines, has
  the error sqrt(L / (L - 1) sum (d - r n)^2) / sum n (the ratio estimator of a
  sample; Cochran 1977, section 2.11).
  """
  apart = np.subtract(system, baseline, dtype=np.float64)
  total, lines = subwords.sum(dtype=np.float64), len(subwords)
  ratio = apart.sum() / total
  squares = np.square(apart - ratio * subwords).sum()
  error = math.sqrt(lines / (lines - 1) * squares) / total if lines > 1 else 0.0
  return LossDifference(float(ratio), float(error))
