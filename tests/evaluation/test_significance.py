import numpy as np
import pytest
from comparing import mistaken, pairs
from sacrebleu.metrics import BLEU
from scipy import stats

from fusion_jax.evaluation.sentence_statistics import statistics_of
from fusion_jax.evaluation.significance import (
  Seeds,
  SignTest,
  over_seeds,
  sign_test,
  welch,
)


def _bleu_counts(lines, references):
  (found,) = statistics_of([lines], [references], 'en')
  return found['BLEU']


def test_sign_test_by_hand():
  references = ['a b c d e', 'f g h i j', 'k l m n o', 'p q r s t', 'u v w x y']
  baseline = ['a b c d e', 'f g h i z', 'k l m n z', 'p q r s z', 'u v w x y']
  # The same; three times the whole line right in place of its first four
  # words; the last word wrong.
  system = [*references[:4], 'u v w x z']
  found = sign_test(
    _bleu_counts(baseline, references), _bleu_counts(system, references)
  )
  # Of 4 draws 3 or more, or 1 or less: 2 (4 + 1) / 16 = 0.625.
  assert (found.better, found.worse, found.same) == (3, 1, 1)
  assert found.p_value == pytest.approx(0.625)


def test_a_system_against_itself_has_no_sign():
  counts = _bleu_counts(['a b c d', 'e'], ['a b c d', 'f'])
  assert sign_test(counts, counts) == SignTest(0, 0, 2, 1.0)


def test_sign_test_is_what_scoring_again_gives():
  _, targets = pairs(40)
  baseline, system = (mistaken(targets, 0.3, seed) for seed in (1, 2))
  changes = []
  whole = BLEU().corpus_score(baseline, [targets]).score
  for index, line in enumerate(system):
    replaced = [*baseline[:index], line, *baseline[index + 1 :]]
    changes.append(BLEU().corpus_score(replaced, [targets]).score - whole)
  changes = np.array(changes)
  found = sign_test(
    _bleu_counts(baseline, targets), _bleu_counts(system, targets)
  )
  assert found.better == (changes > 1e-9).sum() > 5
  assert found.worse == (changes < -1e-9).sum() > 5
  assert found.better + found.worse + found.same == 40
  expected = stats.binomtest(found.better, found.better + found.worse).pvalue
  assert found.p_value == pytest.approx(expected)


def test_seeds_by_hand():
  # Variances (1 + 0 + 1) / 2 = 1 and 4.
  assert over_seeds([1.0, 2.0, 3.0]) == Seeds((1.0, 2.0, 3.0), 2.0, 1.0)
  assert over_seeds([7.0]) == Seeds((7.0,), 7.0, None)


def test_welch_by_hand():
  # t = (2 - 4) / sqrt(1/3 + 4/3); degrees of freedom
  # (5/3)^2 / ((1/3)^2 / 2 + (4/3)^2 / 2) = 50/17.
  compact_batch, wide = over_seeds([1.0, 2.0, 3.0]), over_seeds([2.0, 4.0, 6.0])
  expected = 2 * stats.t.sf(2 / np.sqrt(5 / 3), 50 / 17)
  assert welch(compact_batch, wide) == pytest.approx(expected)


def test_welch_needs_seeds_that_differ():
  one, same = over_seeds([1.0]), over_seeds([2.0, 2.0])
  assert welch(one, over_seeds([1.0, 2.0])) is None
  assert welch(over_seeds([1.0, 2.0]), one) is None
  assert welch(same, over_seeds([3.0, 3.0])) is None
  assert welch(same, over_seeds([2.0, 2.0, 2.0])) == 1
  # Degrees of freedom 1; t = (3 - 2) / sqrt(2 / 2) = 1: p = 1/2 (Cauchy).
  assert welch(same, over_seeds([2.0, 4.0])) == pytest.approx(0.5)
