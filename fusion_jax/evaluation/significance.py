"""Whether systems differ by more than chance."""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from jaxtyping import Float
from sacrebleu.metrics.base import Metric, Score
from sacrebleu.significance import PairedTest
from scipy import stats

from fusion_jax.evaluation.metrics import metrics_for, signature

# Changes of BLEU by no more than this are rounding.
_ROUNDING = 1e-9


@dataclasses.dataclass(frozen=True)
class Paired:
  """One system in a paired test.

  Attributes:
    score: of all sentences.
    mean: of the scores of the bootstrap samples; None without them.
    interval: half of their 95 % interval: mean ± interval.
    p_value: of no difference to the baseline; None of the baseline.
  """

  score: float
  mean: float | None
  interval: float | None
  p_value: float | None


def paired_test(
  name: str,
  language: str,
  references: int,
  systems: Mapping[str, Float[np.ndarray, 'S K']],
  kind: Literal['bs', 'ar'],
  samples: int,
) -> tuple[str, dict[str, Paired]]:
  """sacreBLEU's paired test of systems against a baseline.

  Bootstrap resampling (Koehn 2004, https://aclanthology.org/W04-3250) or
  approximate randomisation (Riezler and Maxwell 2005,
  https://aclanthology.org/W05-0908).

  Args:
    name: of the metric, as in `metrics_for`.
    language: as for `metrics_for`.
    references: how many translations of every line, for the signature.
    systems: statistics of every sentence, of the baseline first.
    kind: 'bs' for the bootstrap, 'ar' for randomisation.
    samples: of the bootstrap, or trials.

  Returns:
    sacreBLEU's signature with samples and seed (SACREBLEU_SEED, by default
    12345), and what was found of each system.
  """
  metric = metrics_for(language)[name]
  signature(metric, references)
  _take_counts(metric)
  test = PairedTest(
    list(systems.items()),
    {name: metric},
    references=None,
    test_type=kind,
    n_samples=samples,
  )
  signatures, results = test()
  found = zip(systems, results[name], strict=True)
  return signatures[name].format(), {
    system: Paired(*map(_plain, (each.score, each.mean, each.ci, each.p_value)))
    for system, each in found
  }


def _take_counts(metric: Metric) -> None:
  """Makes PairedTest, which gives lines to a metric, give it counts."""
  metric._extract_corpus_statistics = lambda counts, references: counts
  compute = metric._compute_score_from_stats
  aggregate = metric._aggregate_and_compute

  def aggregated(counts: Float[np.ndarray, 'S K']) -> Score:
    # A trial of randomisation: Python's numbers, which are the same as
    # NumPy's, take half the time one by one.
    return (
      compute(counts[0].tolist()) if len(counts) == 1 else aggregate(counts)
    )

  metric._aggregate_and_compute = aggregated


def _plain(value: float | np.floating | None) -> float | None:
  return None if value is None else float(value)


@dataclasses.dataclass(frozen=True)
class SignTest:
  """How many sentences of a system better the baseline's output.

  Attributes:
    better: BLEU rises where this sentence takes the place of the baseline's.
    worse: it falls.
    same: it stays.
    p_value: two-sided, of no difference; None if BLEU always stays.
  """

  better: int
  worse: int
  same: int
  p_value: float | None


def sign_test(
  baseline: Float[np.ndarray, 'S 10'], system: Float[np.ndarray, 'S 10']
) -> SignTest:
  """The sign test of Collins, Koehn and Kucerova 2005.

  One sentence after the other of the baseline's output is replaced by the
  system's, and only this one: BLEU of the whole rises (b+) or falls (b-). With
  no difference between the systems b+ is binomial, of b+ + b- draws with
  probability 1/2. https://aclanthology.org/P05-1066

  Args:
    baseline: BLEU's statistics of every sentence.
    system: likewise.

  Returns:
    The counts, and the p-value of `scipy.stats.binomtest`.
  """
  whole = baseline.sum(axis=0, keepdims=True)
  change = corpus_bleu(whole - baseline + system) - corpus_bleu(whole)
  better = int((change > _ROUNDING).sum())
  worse = int((change < -_ROUNDING).sum())
  drawn = better + worse
  p_value = float(stats.binomtest(better, drawn).pvalue) if drawn else None
  return SignTest(better, worse, len(change) - drawn, p_value)


def corpus_bleu(counts: Float[np.ndarray, 'N 10']) -> Float[np.ndarray, ' N']:
  """BLEU of many corpora with sacreBLEU's default, exponential smoothing.

  BLEU = 100 BP (p_1 p_2 p_3 p_4)^(1/4); BP = min(1, exp(1 - r / h)); the k-th
  order without a match has p = 1 / (2^k n-grams), k from 1.

  Args:
    counts: sums of BLEU's statistics over the sentences of each corpus.

  Returns:
    From 0 to 100.
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


@dataclasses.dataclass(frozen=True)
class Seeds:
  """The scores of one system trained with several seeds.

  Attributes:
    scores: of each seed.
    mean: of them.
    deviation: the sample standard deviation (n - 1); None of one seed.
  """

  scores: tuple[float, ...]
  mean: float
  deviation: float | None


def over_seeds(scores: Sequence[float]) -> Seeds:
  """Mean and sample standard deviation of one or more scores."""
  deviation = statistics.stdev(scores) if len(scores) > 1 else None
  return Seeds(tuple(scores), statistics.fmean(scores), deviation)


def welch(baseline: Seeds, system: Seeds) -> float | None:
  """Welch's t-test: two-sided, variances may differ.

  Args:
    baseline: its scores.
    system: likewise.

  Returns:
    The p-value of equal means; None if one of them has less than two seeds or
    no score differs from its mean.
  """
  if not (baseline.deviation or system.deviation):
    return None
  if baseline.deviation is None or system.deviation is None:
    return None
  test = stats.ttest_ind_from_stats(
    baseline.mean,
    baseline.deviation,
    len(baseline.scores),
    system.mean,
    system.deviation,
    len(system.scores),
    equal_var=False,
  )
  return float(test.pvalue)
