"""Significance tests: against sacreBLEU, by hand and by chance."""

import re
import subprocess
import sys

import numpy as np
import pytest
from comparing import mistaken, pairs, write
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics import BLEU
from scipy import stats
from scipy.stats import binomtest

from fusion_jax.evaluation.significance import (
  CORPUS_SCORES,
  least_p_value,
  paired_test,
  score_of,
  sign_test,
  statistics_of,
  welch,
)
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


def test_sign_test_by_hand():
  references = ['a b c d e', 'f g h i j', 'k l m n o', 'p q r s t', 'u v w x y']
  baseline = ['a b c d e', 'f g h i z', 'k l m n z', 'p q r s z', 'u v w x y']
  # The same; three times the whole line right in place of its first four
  # words; the last word wrong.
  system = [*references[:4], 'u v w x z']
  found = sign_test(_counts(baseline, references), _counts(system, references))
  # Of 4 draws 3 or more, or 1 or less: 2 (4 + 1) / 16 = 0.625.
  expected = {'better': 3, 'worse': 1, 'same': 1, 'p_value': 0.625}
  assert found == pytest.approx(expected)


def test_sign_test_is_what_scoring_again_gives():
  _, targets = pairs(40)
  baseline, system = (mistaken(targets, 0.3, seed) for seed in (1, 2))
  changes = []
  whole = BLEU().corpus_score(baseline, [targets]).score
  for index, line in enumerate(system):
    replaced = [*baseline[:index], line, *baseline[index + 1 :]]
    changes.append(BLEU().corpus_score(replaced, [targets]).score - whole)
  changes = np.array(changes)
  found = sign_test(_counts(baseline, targets), _counts(system, targets))
  assert found['better'] == (changes > 1e-9).sum() > 5
  assert found['worse'] == (changes < -1e-9).sum() > 5
  assert found['better'] + found['worse'] + found['same'] == 40


def test_welch_by_hand():
  # t = (2 - 4) / sqrt(1/3 + 4/3); degrees of freedom
  # (5/3)^2 / ((1/3)^2 / 2 + (4/3)^2 / 2) = 50/17.
  expected = 2 * stats.t.sf(2 / np.sqrt(5 / 3), 50 / 17)
  assert welch([1.0, 2.0, 3.0], [2.0, 4.0, 6.0]) == pytest.approx(expected)


def test_welch_needs_seeds_that_differ():
  assert welch([1.0], [1.0, 2.0]) is None
  assert welch([1.0, 2.0], [1.0]) is None
  assert welch([2.0, 2.0], [3.0, 3.0]) is None
  assert welch([2.0, 2.0], [2.0, 2.0, 2.0]) == 1
  # Degrees of freedom 1; t = (3 - 2) / sqrt(2 / 2) = 1: p = 1/2 (Cauchy).
  assert welch([2.0, 2.0], [2.0, 4.0]) == pytest.approx(0.5)


_LINES = st.lists(
  st.lists(st.sampled_from('abcd'), max_size=9).map(' '.join),
  min_size=2,
  max_size=2,
)


@pytest.mark.parametrize('name', CORPUS_SCORES)
@given(lines=_LINES, references=_LINES)
def test_scores_of_counts_are_sacrebleus(name, lines, references):
  (counts,) = statistics_of([lines], [references], 'en')
  expected = metrics_for('en')[name].corpus_score(lines, [references]).score
  (found,) = CORPUS_SCORES[name](counts[name].sum(axis=0, keepdims=True))
  assert found == pytest.approx(expected, abs=1e-9)


def test_scores_of_statistics_are_sacrebleus():
  # More lines than are counted at a time, and two references.
  _, targets = pairs(450)
  others, lines = (mistaken(targets, 0.3, seed) for seed in (1, 2))
  (found,) = statistics_of([lines], [targets, others], 'en')
  for name, metric in metrics_for('en').items():
    expected = metric.corpus_score(lines, [targets, others])
    assert expected.name == name
    assert found[name].shape[0] == 450
    assert score_of(name, found[name]) == pytest.approx(expected.score)
  (only,) = statistics_of([lines], [targets, others], 'en', names=['BLEU'])
  assert list(only) == ['BLEU']
  np.testing.assert_array_equal(only['BLEU'], found['BLEU'])
