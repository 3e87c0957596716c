"""Differences, tests and corrections of a study, by hand."""

import math

import numpy as np
import pytest
from scipy import stats

from fusion_jax.evaluation.significance import Pooled, holm, paired_losses
from fusion_jax.studies.statistics import Metric, cannot_tell, differences

_VALUES = {
  'plain': {0: 30.0, 1: 30.2},
  'gtrans': {0: 31.0, 1: 31.6},
  'dlcl': {1: 29.2},
}


def test_differences_over_seeds_that_both_have():
  pooled = Pooled.of([list(seeds.values()) for seeds in _VALUES.values()])
  assert pooled.freedom == 2
  assert pooled.deviation == pytest.approx(math.sqrt((0.02 + 0.18) / 2))
  made = differences(_VALUES, 'plain', pooled)
  assert list(made) == ['gtrans', 'dlcl']
  gtrans, dlcl = made.values()
  assert gtrans.mean == pytest.approx(1.2)
  assert dlcl.mean == pytest.approx(-1.0)
  assert dlcl.seeds == (1,)
  # t-tests of known deviation; two of them, corrected for each other.
  p = 2 * stats.t.sf(1.2 / pooled.deviation, 2)
  assert gtrans.p_value == pytest.approx(p)
  half = stats.t.ppf(0.975, 2) * pooled.deviation
  assert gtrans.interval == pytest.approx(half)
  assert dlcl.interval == pytest.approx(half * math.sqrt(2))
  assert gtrans.holm == pytest.approx(min(1, 2 * p))
  expected = stats.ttest_ind([31.0, 31.6], [30.0, 30.2], equal_var=False)
  assert gtrans.welch == pytest.approx(expected.pvalue)
  assert dlcl.welch is None


def test_one_seed_each_has_no_test():
  values = {name: {1: seeds[1]} for name, seeds in _VALUES.items()}
  assert Pooled.of([list(seeds.values()) for seeds in values.values()]) is None
  made = differences(values, 'plain', None)
  assert made['gtrans'].p_value is made['gtrans'].holm is None
  metric = Metric('BLEU', values, None, made, 2, False)
  assert 'every contestant has one seed' in cannot_tell(metric, 1)


def test_holm_by_hand():
  assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
  assert holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])
  assert holm([]) == []


def test_paired_losses_by_hand():
  found = paired_losses(
    np.array([3.0, 5.0]), np.array([2.0, 5.0]), np.array([1.0, 3.0])
  )
  assert found.nats == pytest.approx(0.25)
  # d - r n = 0.75, -0.75; sqrt(2 / 1 * 1.125) / 4.
  assert found.error == pytest.approx(math.sqrt(2 * 1.125) / 4)
  same = paired_losses(np.ones(3), np.ones(3), np.ones(3))
  assert same.p_value == 1.0
