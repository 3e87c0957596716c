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

from fusion_jax.evaluation.metrics import metrics_for
from fusion_jax.evaluation.sentence_statistics import score_of, statistics_of
from fusion_jax.evaluation.significance import (
  Seeds,
  SignTest,
  corpus_bleu,
  over_seeds,
  paired_test,
  sign_test,
  welch,
)

_LINES = st.lists(
  st.lists(st.sampled_from('abcd'), max_size=9).map(' '.join),
  min_size=2,
  max_size=2,
)


def _bleu_counts(lines, references):
  (found,) = statistics_of([lines], [references], 'en')
  return found['BLEU']


@given(lines=_LINES, references=_LINES)
def test_bleu_of_counts_is_sacrebleus(lines, references):
  counts = _bleu_counts(lines, references)
  expected = BLEU().corpus_score(lines, [references]).score
  (found,) = corpus_bleu(counts.sum(axis=0, keepdims=True))
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
    assert score_of(metric, found[name]) == pytest.approx(expected.score)


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
  assert sign_test(counts, counts) == SignTest(0, 0, 2, None)


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


@pytest.mark.parametrize(('kind', 'samples'), [('bs', 200), ('ar', 300)])
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
      assert printed_numbers == [round(value, 6) for value in numbers]
    assert f'(p = {system.p_value:.4f})' in rows[2][column]
    assert baseline.p_value is None
    assert signature in printed.stdout


def _rows(table):
  """The cells of the lines with numbers, without the systems' names."""
  lines = [line.split('│')[2:-1] for line in table.splitlines()]
  return [cells for cells in lines if cells and re.search(r'\d\.\d', cells[0])]


def test_seeds_by_hand():
  # Variances (1 + 0 + 1) / 2 = 1 and 4.
  assert over_seeds([1.0, 2.0, 3.0]) == Seeds((1.0, 2.0, 3.0), 2.0, 1.0)
  assert over_seeds([7.0]) == Seeds((7.0,), 7.0, None)


def test_welch_by_hand():
  # t = (2 - 4) / sqrt(1/3 + 4/3); degrees of freedom
  # (5/3)^2 / ((1/3)^2 / 2 + (4/3)^2 / 2) = 50/17.
  narrow, wide = over_seeds([1.0, 2.0, 3.0]), over_seeds([2.0, 4.0, 6.0])
  expected = 2 * stats.t.sf(2 / np.sqrt(5 / 3), 50 / 17)
  assert welch(narrow, wide) == pytest.approx(expected)


def test_welch_needs_seeds_that_differ():
  one, same = over_seeds([1.0]), over_seeds([2.0, 2.0])
  assert welch(one, over_seeds([1.0, 2.0])) is None
  assert welch(over_seeds([1.0, 2.0]), one) is None
  assert welch(same, over_seeds([3.0, 3.0])) is None
  # Degrees of freedom 1; t = (3 - 2) / sqrt(2 / 2) = 1: p = 1/2 (Cauchy).
  assert welch(same, over_seeds([2.0, 4.0])) == pytest.approx(0.5)
