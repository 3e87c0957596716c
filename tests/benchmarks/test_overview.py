"""What the runs of the comparison say together."""

import math

import pytest
from scipy import stats

from benchmarks.comparison import overview
from benchmarks.comparison.overview import Difference

# Deviations: plain 0.1 * sqrt(2), of one freedom; gtrans 0.3 * sqrt(2).
_SETTING = {'none': {0: 30.0, 1: 30.2}, 'gtrans': {0: 31.0, 1: 31.6}}


def test_the_deviation_is_pooled_over_schemes_with_several_seeds():
  deviation, freedom = overview.pooled_deviation(
    [_SETTING | {'dlcl': {0: 12.0}}, _SETTING]
  )
  assert freedom == 2
  assert deviation == pytest.approx(math.sqrt((0.02 + 0.18) / 2))


def test_a_difference_is_over_the_seeds_that_both_have():
  found = overview.differences(_SETTING | {'dlcl': {1: 29.2}}, 0.5, 4)
  assert found['gtrans'].seeds == 2
  assert found['gtrans'].value == pytest.approx((1.0 + 1.4) / 2)
  # A t-test of two means of two runs each, whose deviation is known.
  t = 1.2 / 0.5
  assert found['gtrans'].p == pytest.approx(2 * stats.t.sf(t, 4))
  assert found['dlcl'].value == pytest.approx(-1.0)
  half = stats.t.ppf(0.975, 4) * 0.5 * math.sqrt(2)
  assert found['dlcl'].interval == pytest.approx(half)
  assert 'none' not in found


def _of(value, p):
  return Difference(value, 0.5, p, 1)


@pytest.mark.parametrize(
  ('printed', 'found', 'verdict'),
  [
    (0.5, [], 'not trained'),
    (0.5, [_of(0.4, 0.2), _of(-0.1, 0.9)], 'undecided'),
    (0.5, [_of(0.4, 0.2), _of(1.1, 0.01)], 'confirmed'),
    (0.5, [_of(-1.4, 0.01)], 'refuted'),
    (-0.5, [_of(-1.4, 0.01)], 'confirmed'),
    (0.5, [_of(-1.4, 0.01), _of(1.4, 0.01)], 'depends'),
  ],
)
def test_only_clear_differences_confirm_or_refute(printed, found, verdict):
  assert overview.verdict(printed, found) == verdict


def test_the_page_has_the_tables_of_the_results(monkeypatch, tmp_path):
  page = tmp_path / 'results.md'
  page.write_bytes(overview._PAGE.read_bytes())
  monkeypatch.setattr(overview, '_PAGE', page)
  monkeypatch.setattr(overview, '_FIGURE', tmp_path / 'results')
  overview.main()
  guide = overview.ROOT / 'docs'
  assert page.read_text('utf-8') == (guide / 'results.md').read_text('utf-8')
