"""The deviation over seeds that all schemes share, and its t-test."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from benchmarks.comparison.noise import Noise, pooled

SCORES = st.lists(st.integers(0, 400).map(float), min_size=2, max_size=5)


def test_variances_are_weighted_by_their_degrees_of_freedom():
  # Squares about the means: 2, 2 and none; 2 + 1 + 0 degrees.
  noise = pooled([[1.0, 2.0, 3.0], [5.0, 7.0], [9.0]])
  assert noise == Noise(pytest.approx((4 / 3) ** 0.5), 3)


def test_without_two_seeds_that_differ_there_is_no_noise():
  assert pooled([[1.0], [2.0]]) is None
  assert pooled([[1.0, 1.0], [2.0]]) is None


@given(SCORES, SCORES)
def test_of_two_groups_of_one_size_it_is_students_test(first, second):
  size = min(len(first), len(second))
  one, other = np.array(first[:size]), np.array(second[:size])
  noise = pooled([one.tolist(), other.tolist()])
  if noise is None:
    assert one.std() == other.std() == 0
    return
  found = noise.p_value(one.mean() - other.mean(), size)
  moments = [(x.mean(), x.std(ddof=1), size) for x in (one, other)]
  expected = stats.ttest_ind_from_stats(*moments[0], *moments[1]).pvalue
  assert found == pytest.approx(expected, rel=1e-6, abs=1e-12)


@given(st.floats(0.1, 3), st.integers(1, 20), st.integers(1, 5))
def test_the_least_difference_has_the_level_as_p_value(deviation, degrees, n):
  noise = Noise(deviation, degrees)
  assert noise.p_value(noise.least(0.05, n), n) == pytest.approx(0.05)
  assert noise.p_value(-noise.least(0.01, n), n) == pytest.approx(0.01)


def test_with_true_noise_one_in_twenty_is_called_clear():
  generator = np.random.default_rng(0)
  schemes = generator.normal(30, 0.5, (2_000, 6, 3))
  called = []
  for runs in schemes:
    noise = pooled(runs.tolist())
    assert noise is not None
    difference = runs[0].mean() - runs[1].mean()
    called.append(noise.p_value(difference, 3) < 0.05)
  # Three standard errors of a frequency of 2,000.
  assert np.mean(called) == pytest.approx(0.05, abs=0.015)
