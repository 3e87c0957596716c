"""The table and the figure of runs by how their models start."""

import numpy as np
import pytest
from scipy import stats

from benchmarks.comparison.start_figure import draw
from benchmarks.comparison.start_tables import orders, table
from benchmarks.comparison.starts import SHALLOW, shown
from benchmarks.comparison_starts import main
from fusion_jax.errors import InputError


def _run(loss, parameters=1_000):
  """A run with 10 and 20 times as much BLEU as loss."""
  tests = {'first': {'bleu': 10 * loss}, 'second': {'bleu': 20 * loss}}
  return {'validation_nll': loss, 'parameters': parameters, 'tests': tests}


STARTS = {
  'a': {
    'none': {0: _run(1.0), 1: _run(1.1)},
    'dlcl': {0: _run(9.0)},
    'gtrans': {0: _run(1.5, 1_020), 1: _run(1.64, 1_020)},
    SHALLOW: {0: _run(2.0, 600)},
  },
  'b': {
    'none': {0: _run(3.0)},
    'gtrans': {0: _run(2.5, 1_030), 1: _run(2.6, 1_030)},
    'transparent': {1: _run(3.5)},
  },
  'c': {'none': {0: _run(5.0)}, SHALLOW: {0: _run(5.1, 600)}},
}


def test_schemes_of_two_starts_are_shown():
  assert shown(STARTS) == ['none', SHALLOW, 'gtrans']


def test_each_scheme_is_beside_the_plain_model_of_its_start():
  lines = table(STARTS).splitlines()
  plain = (
    '1.050 10.50 21.00 (2) | 3.000 30.00 60.00 (1) | 5.000 50.00 100.00 (1)'
  )
  assert f'| `none` | – | +0 | {plain} |' in lines
  shallow = '**+1.000** **+10.00** **+20.00** (1) | – | +0.100 +1.00 +2.00 (1)'
  assert f'| {SHALLOW} | – | -400 | {shallow} |' in lines
  # With a seed that its plain model lacks, a run is not compared.
  gtrans = (
    '**+0.520** **+5.20** **+10.40** (2) | '
    '**-0.500** **-5.00** **-10.00** (1) | –'
  )
  assert f'| `gtrans` | Yang et al. 2022 | +20 / +30 | {gtrans} |' in lines


def test_bold_is_what_the_seeds_of_all_schemes_do_not_explain():
  # Squares of the loss about its means: 0.1 ** 2 / 2, 0.14 ** 2 / 2 and
  # 0.1 ** 2 / 2 with one degree of freedom each.
  deviation = (0.0198 / 3) ** 0.5
  least = stats.t.isf(0.025, 3) * deviation * 2**0.5
  assert 0.1 < least < 0.5
  text = ' '.join(table(STARTS).split())
  assert f'is {deviation:.3f} nats, {10 * deviation:.2f} and' in text
  assert f'a difference of {least:.3f} nats, {10 * least:.2f} and' in text
  alone = {'a': {'none': {0: _run(1.0)}}, 'b': {'none': {0: _run(2.0)}}}
  assert 'old' not in table(alone)


def test_orders_are_decided_where_both_test_sets_are_clear():
  lines = orders(STARTS).splitlines()
  source = 'Yang et al. 2022, Table I, NIST Zh-En'
  found = [
    [cell.strip() for cell in line.strip('|').split('|')][1:]
    for line in lines
    if line.startswith(f'| {source} |')
  ]
  up, down = '**+80.00** **+160.00** (1)', '**-75.00** **-150.00** (1)'
  other = '**-9.00** **-18.00** (1)'
  assert found == [
    ['`none`', '`dlcl`', '+0.68', f'{up} confirmed', '–', '–'],
    # Without a common seed.
    ['`none`', '`transparent`', '+0.96', '–', '–', '–'],
    ['`dlcl`', '`gtrans`', '+1.29', f'{down} refuted', '–', '–'],
    ['`transparent`', '`gtrans`', '+1.01', '–', f'{other} refuted', '–'],
  ]
  noisy = STARTS | {'c': {'none': {0: _run(5.0), 1: _run(500.0)}}}
  undecided = orders(noisy)
  assert '| +80.00 +160.00 (1) |' in undecided


def test_a_start_without_a_plain_model_ends_in_one_line():
  with pytest.raises(InputError, match='b: no plain model'):
    table(STARTS | {'b': {}})


def test_each_run_has_a_point():
  loss, first, second = draw(STARTS).axes
  names = [tick.get_text() for tick in loss.get_yticklabels()]
  assert names == ['none', SHALLOW, 'gtrans']
  drawn = [line.get_xydata() for line in loss.lines]
  rows = [-0.22, -0.22, 0.78, 1.78, 1.78]
  losses = [1.0, 1.1, 2.0, 1.5, 1.64]
  np.testing.assert_allclose(drawn[0], np.transpose([losses, rows]))
  np.testing.assert_allclose(drawn[1], [[3, 0], [2.5, 2], [2.6, 2]])
  np.testing.assert_allclose(drawn[2], [[5, 0.22], [5.1, 1.22]])
  np.testing.assert_allclose(first.lines[2].get_xdata(), [50, 51])
  np.testing.assert_allclose(second.lines[2].get_xdata(), [100, 102])


def test_the_results_that_are_there_are_printed(capsys):
  main([])
  assert '| `transparent` | Bapna et al. 2018 |' in capsys.readouterr().out
