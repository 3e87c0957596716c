"""How long runs will take."""

import pytest
from small_comparison import LINEAR, NUMBERS, PLAIN, planned, recipe

from benchmarks.comparison.estimate import Estimate, duration
from benchmarks.comparison.results import Results

HERE = {'cpu': 'a processor', 'cores': 2, 'device': 'cpu 1'}
GFLOP = {'none': 10.0, 'linear': 15.0}


@pytest.fixture
def comparison(tmp_path):
  """Runs, results of none of them, and the estimate."""
  own = recipe(tmp_path)
  results = Results(tmp_path / 'results', own.digests())
  timed = lambda: 0.2  # noqa: E731
  estimate = Estimate(own, results, HERE, GFLOP.__getitem__, timed)
  return planned(own, (PLAIN, LINEAR)), results, estimate


def test_without_results_the_plain_model_is_timed(comparison):
  runs, _, estimate = comparison
  # 200 and 10 updates of 0.2 s, those of 'linear' with 1.5 times the work.
  assert estimate(runs['plain/pre/none-0']) == pytest.approx(40.0)
  assert estimate(runs['tuning/pre/linear@1-0']) == pytest.approx(3.0)


def test_finished_runs_are_believed_more(comparison):
  runs, results, estimate = comparison
  results.add(runs['plain/pre/none-0'], NUMBERS, {})
  linear = runs['continued/pre/linear-0']
  # 50 updates of 0.5 * 1.5 s, and 30 s besides.
  assert estimate(linear) == pytest.approx(67.5)
  # That is not known of the tuning, which translates nothing.
  assert estimate(runs['tuning/pre/linear@1-0']) == pytest.approx(7.5)
  short = NUMBERS | {'seconds_an_update': 0.6, 'other_seconds': 5.0}
  results.add(runs['tuning/pre/linear@0.3-0'], short, {})
  assert estimate(linear) == pytest.approx(60.0)
  assert estimate(runs['tuning/pre/linear@1-0']) == pytest.approx(11.0)


def test_results_of_other_machines_say_nothing(comparison):
  runs, results, estimate = comparison
  elsewhere = NUMBERS | {'device': 'another 1', 'seconds_an_update': 9.0}
  results.add(runs['plain/pre/none-0'], elsewhere, {})
  assert estimate(runs['continued/pre/none-0']) == pytest.approx(10.0)


def test_a_resumed_run_does_not_say_what_it_took_besides(comparison):
  runs, results, estimate = comparison
  resumed = NUMBERS | {'other_seconds': None}
  results.add(runs['plain/pre/none-0'], resumed, {})
  assert estimate(runs['continued/pre/none-0']) == pytest.approx(25.0)


def test_minutes_are_rounded_up():
  assert duration(61) == '0 h 02 min'
  assert duration(7_500) == '2 h 05 min'
