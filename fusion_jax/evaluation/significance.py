"""The sign test over sentences, and tests over seeds."""

import dataclasses
import statistics
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from scipy import stats

from fusion_jax.evaluation.corpus_formulas import corpus_bleu
from fusion_jax.evaluation.paired_tests import ROUNDING


@dataclasses.dataclass(frozen=True)
class SignTest:
  """Counts of sentences that improve or worsen the baseline's output.

  Attributes:
    better: Sentences that raise BLEU when they replace the baseline's.
    worse: Sentences that lower BLEU.
    same: Sentences that leave BLEU unchanged.
    p_value: Two-sided p-value of no difference; 1 if BLEU never changes.
  """

  better: int
  worse: int
  same: int
  p_value: float


def sign_test(
  baseline: Float[np.ndarray, 'S 10'], system: Float[np.ndarray, 'S 10']
) -> SignTest:
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
  return SignTest(better, worse, len(change) - drawn, p_value)


@dataclasses.dataclass(frozen=True)
class Seeds:
  """The scores of one system trained with several seeds.

  Attributes:
    scores: Score of each seed.
    mean: Mean of the scores.
    deviation: Sample standard deviation (n - 1); None for a single seed.
  """

  scores: tuple[float, ...]
  mean: float
  deviation: float | None


def over_seeds(scores: Sequence[float]) -> Seeds:
  """Compute mean and sample standard deviation of one or more scores."""
  deviation = statistics.stdev(scores) if len(scores) > 1 else None
  return Seeds(tuple(scores), statistics.fmean(scores), deviation)


def welch(baseline: Seeds, system: Seeds) -> float | None:
  """Run Welch's t-test: two-sided, variances may differ."""
  if baseline.deviation is None or system.deviation is None:
    return None
  if not (baseline.deviation or system.deviation):
    return 1.0 if baseline.mean == system.mean else None
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
