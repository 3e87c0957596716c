"""The figure of runs with two kinds of initial matrices."""

import json

import numpy as np

from benchmarks.comparison_starts import draw, main, runs


def _finished(folder, phase, scheme, seed, loss):
  path = folder / phase / 'pre' / f'{scheme}-{seed}.json'
  path.parent.mkdir(parents=True, exist_ok=True)
  tests = {'first': {'bleu': 10 * loss}, 'second': {'bleu': 20 * loss}}
  numbers = {'scheme': scheme, 'validation_nll': loss, 'tests': tests}
  path.write_text(json.dumps(numbers))


def test_each_run_of_a_scheme_with_both_starts_has_a_point(tmp_path):
  for folder, losses in (('a', (1.0, 2.0)), ('b', (3.0, 4.0))):
    _finished(tmp_path / folder, 'plain', 'none', 0, losses[0])
    _finished(tmp_path / folder, 'scratch', 'gtrans', 0, losses[1])
  _finished(tmp_path / 'a', 'plain', 'none', 1, 5.0)
  _finished(tmp_path / 'a', 'scratch', 'dlcl', 0, 9.0)
  figure = draw({name: runs(tmp_path / name) for name in ('a', 'b')})
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
