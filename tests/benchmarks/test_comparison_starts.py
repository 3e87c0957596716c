"""The figure of runs with two kinds of initial matrices."""

import numpy as np

from benchmarks.comparison_starts import draw, main


def _run(scheme, loss):
  tests = {'first': {'bleu': 10 * loss}, 'second': {'bleu': 20 * loss}}
  return {'scheme': scheme, 'validation_nll': loss, 'tests': tests}


def test_each_run_of_a_scheme_with_both_starts_has_a_point():
  first = [_run('none', 1.0), _run('none', 5.0)]
  first += [_run('dlcl', 9.0), _run('gtrans', 2.0)]
  second = [_run('none', 3.0), _run('gtrans', 4.0)]
  figure = draw({'a': first, 'b': second})
  loss, first, second = figure.axes
  assert [tick.get_text() for tick in loss.get_yticklabels()] == [
    'none',
    'gtrans',
  ]
  drawn = [line.get_xydata() for line in loss.lines]
  np.testing.assert_allclose(drawn[0], [[1, -0.15], [5, -0.15], [2, 0.85]])
  np.testing.assert_allclose(drawn[1], [[3, 0.15], [4, 1.15]])
  np.testing.assert_allclose(first.lines[0].get_xdata(), [10, 50, 20])
  np.testing.assert_allclose(second.lines[0].get_xdata(), [20, 100, 40])


def test_the_results_that_are_there_are_drawn(tmp_path):
  main([f'--output={tmp_path / "starts.svg"}'])
  assert 'transparent' in (tmp_path / 'starts.svg').read_text()
