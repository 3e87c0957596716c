import re
import subprocess
import sys

import numpy as np
import pytest
from comparing import mistaken, pairs, write
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from fusion_jax.errors import InputError
from fusion_jax.evaluation import paired_tests
from fusion_jax.evaluation.paired_tests import least_p_value, paired_test
from fusion_jax.evaluation.sentence_statistics import statistics_of
from fusion_jax.metrics import metrics_for

KINDS = [('bs', 200), ('ar', 300)]


def _counts(lines, references, metric='BLEU'):
  (found,) = statistics_of([lines], [references], 'en')
  return found[metric]


def _p_value(baseline, system, kind, samples=500, metric='BLEU'):
  systems = {'baseline': baseline, 'system': system}
  _, found = paired_test(metric, 'en', 1, systems, kind, samples)
  return found['system'].p_value


@pytest.mark.parametrize(('kind', 'samples'), KINDS)
def test_paired_tests_are_those_of_sacrebleus_command_line(
  tmp_path, kind, samples
):
  _, targets = pairs(80)
  texts = {'a': mistaken(targets, 0.3, 1), 'b': mistaken(targets, 0.28, 2)}
  files = [write(tmp_path / name, lines) for name, lines in texts.items()]
  reference = write(tmp_path / 'reference', targets)
  command = [sys.executable, '-m', 'sacrebleu', reference, '-i', *files]
  command += ['-m', 'bleu', 'chrf', 'ter', '-w', '6', '-f', 'text']
  command += [f'--paired-{kind}', f'--paired-{kind}-n', str(samples)]
  printed = subprocess.run(command, check=True, capture_output=True, text=True)
  rows = _rows(printed.stdout)
  counts = dict(
    zip(
      texts, statistics_of(list(texts.values()), [targets], 'en'), strict=True
    )
  )
  for column, name in enumerate(metrics_for('en')):
    systems = {key: each[name] for key, each in counts.items()}
    signature, found = paired_test(name, 'en', 1, systems, kind, samples)
    baseline, system = found.values()
    for row, each in zip(rows, (baseline, system), strict=False):
      numbers = [each.score, each.mean, each.interval]
      numbers = [value for value in numbers if value is not None]
      printed_numbers = [float(x) for x in re.findall(r'\d+\.\d+', row[column])]
      # Samples have float32 scores in sacreBLEU: 100 has units of 8e-6.
      assert printed_numbers == pytest.approx(numbers, abs=1e-5)
    (theirs,) = re.findall(r'\(p = (\d\.\d+)\)', rows[2][column])
    if (name, kind) == ('TER', 'ar'):
      # Edits of one reference are whole numbers: many trials differ by as much
      # as the systems, and sacreBLEU does not count them.
      assert float(theirs) < system.p_value < 2 * float(theirs)
    else:
      assert theirs == f'{system.p_value:.4f}'
    assert baseline.p_value is None
    assert signature in printed.stdout


def _rows(table):
  """The cells of the lines with numbers, without the systems' names."""
  lines = [line.split('│')[2:-1] for line in table.splitlines()]
  return [cells for cells in lines if cells and re.search(r'\d\.\d', cells[0])]


def _translations(generator, lines=100, words=20):
  """BLEU's statistics of translations that are all equally good."""
  right = generator.binomial(words, 0.6, (lines, 1)) * [1, 0.6, 0.4, 0.3]
  total = np.tile([words, words - 1, words - 2, words - 3], (lines, 1))
  return np.hstack([np.full((lines, 2), words), right, total])


@pytest.mark.parametrize(('kind', 'share'), [('bs', 0.1), ('ar', 0.05)])
def test_how_often_systems_that_do_not_differ_have_a_p_below_5_percent(
  kind, share
):
  # sacreBLEU's bootstrap is a one-sided test: (p < 0.05) is 10 % of all.
  generator = np.random.default_rng(0)
  trials = [
    _p_value(_translations(generator), _translations(generator), kind, 200)
    for _ in range(400)
  ]
  below = sum(p < 0.05 for p in trials)
  assert binomtest(below, len(trials), share).pvalue > 0.01
  assert binomtest(below, len(trials), 0.15 - share).pvalue < 0.01


@pytest.mark.parametrize(('kind', 'samples'), KINDS)
@pytest.mark.parametrize('metric', ['BLEU', 'chrF2', 'TER'])
@pytest.mark.parametrize('lines', [1, 3, 60])
def test_equal_outputs_do_not_differ(kind, samples, metric, lines):
  _, targets = pairs(lines)
  counts = _counts(mistaken(targets, 0.3, 1), targets, metric)
  assert _p_value(counts, counts, kind, samples, metric) == 1


@pytest.mark.parametrize(('kind', 'samples'), KINDS)
def test_one_sentence_that_differs_is_no_evidence(kind, samples):
  _, targets = pairs(30)
  system = [*targets[:29], 'nothing of it is right']
  for lines in (1, 30):
    before = _counts(targets[-lines:], targets[-lines:])
    after = _counts(system[-lines:], targets[-lines:])
    assert _p_value(before, after, kind, samples) == 1


def test_few_sentences_cannot_be_strong_evidence():
  # All of 5 sentences are better: swapped at random, 2 of 32 assignments have
  # a difference as large.
  _, targets = pairs(5)
  counts = _counts([line + ' more' for line in targets], targets)
  best = _counts(targets, targets)
  assert least_p_value(counts, best) == 1 / 16
  assert _p_value(counts, best, 'bs') == 1 / 16
  trials = 20_000
  expected = binomtest(
    round(_p_value(counts, best, 'ar', trials) * trials), trials
  )
  low, high = expected.proportion_ci(0.9999)
  assert low <= 1 / 16 <= high


@given(st.integers(0, 2**32 - 1), st.sampled_from(['bs', 'ar']))
def test_p_values_of_chance_are_not_small_too_often(seed, kind):
  # Two outputs of the same quality and few lines: p is in (0, 1], and swapping
  # baseline and system changes nothing.
  generator = np.random.default_rng(seed)
  counts = generator.integers(1, 5, size=(2, 6, 10)).astype(np.float64)
  counts[..., 6:] += counts[..., 2:6]
  first, second = counts
  p_value = _p_value(first, second, kind, 50)
  assert least_p_value(first, second) <= p_value <= 1 or kind == 'ar'
  assert 0 < p_value <= 1
  if kind == 'bs':
    assert p_value == _p_value(second, first, kind, 50)


def test_samples_do_not_depend_on_how_many_are_drawn_at_a_time(monkeypatch):
  _, targets = pairs(40)
  counts = [_counts(mistaken(targets, 0.3, seed), targets) for seed in (1, 2)]
  before = [_p_value(*counts, kind) for kind in ('bs', 'ar')]
  monkeypatch.setattr(paired_tests, '_CHUNK', 7)
  assert [_p_value(*counts, kind) for kind in ('bs', 'ar')] == before


def test_a_seed_that_is_no_number_is_refused(monkeypatch):
  counts = _counts(['a b c d'], ['a b c d'])
  monkeypatch.setenv('SACREBLEU_SEED', 'lucky')
  with pytest.raises(InputError, match="SACREBLEU_SEED: 'lucky': give"):
    _p_value(counts, counts, 'bs')
  monkeypatch.setenv('SACREBLEU_SEED', 'none')
  assert _p_value(counts, counts, 'bs') == 1
