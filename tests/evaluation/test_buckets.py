import numpy as np
import pytest
from comparing import mistaken, pairs
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics import BLEU

from fusion_jax.evaluation.buckets import (
  bleu_by_length,
  bucket_names,
  f1_by_frequency,
  quantile_bounds,
  word_counts,
)
from fusion_jax.evaluation.significance import statistics_of
from fusion_jax.metrics import bleu_for


def test_boundaries_by_hand():
  assert bucket_names([0, 1, 4]) == ['0', '1', '2-4', '>4']
  # Dou et al. 2018, Fig. 4: (0, 15], (15, 30], (30, 45], > 45.
  lengths = np.array([0, 1, 15, 16, 30, 31, 45, 46, 99])
  rows = bleu_by_length(lengths, [15, 30, 45], {})
  names = ['1-15', '16-30', '31-45', '>45']
  assert [(row['bucket'], row['count']) for row in rows] == [
    (name, 2) for name in names
  ]


def test_quantiles_by_hand():
  # Of 1 to 8, two in each of four; of equal ones there is one bucket.
  assert quantile_bounds(np.arange(9), 4) == (2, 4, 6)
  assert quantile_bounds(np.array([5, 5, 5, 5]), 4) == ()
  assert quantile_bounds(np.array([5, 5, 5, 9]), 4) == (5,)
  assert quantile_bounds(np.array([0, 0]), 4) == ()


@given(st.lists(st.integers(0, 30), min_size=1), st.integers(1, 6))
def test_no_bucket_between_quantiles_is_empty(lengths, count):
  lengths = np.array(lengths)
  bounds = quantile_bounds(lengths, count)
  assert len(bounds) < max(count, 1)
  if (lengths > 0).any():
    assert all(row['count'] for row in bleu_by_length(lengths, bounds, {}))


def test_bleu_of_a_bucket_is_that_of_its_lines():
  _, targets = pairs(30)
  seeds = [mistaken(targets, 0.2, seed) for seed in (1, 2)]
  counts = statistics_of(seeds, [targets], 'en')
  lengths = np.array([5, 10, 20] * 10)
  found = bleu_by_length(lengths, [9, 19, 29], {'a': counts})
  assert [row['count'] for row in found] == [10, 10, 10, 0]
  for index, row in enumerate(found[:3]):
    scores = [
      BLEU().corpus_score(lines[index::3], [targets[index::3]]).score
      for lines in seeds
    ]
    assert row['scores']['a'] == pytest.approx(np.mean(scores))
  assert found[3] == {'bucket': '>29', 'count': 0, 'scores': {'a': None}}


def test_words_are_parted_as_bleu_parts_them():
  found = word_counts(['A cat, a cat. '], bleu_for('en'))
  assert found == [{'A': 1, 'cat': 2, ',': 1, 'a': 1, '.': 1}]
  assert word_counts(['黒い猫'], bleu_for('zh')) == [
    {'黒': 1, 'い': 1, '猫': 1}
  ]


def test_f1_by_hand():
  bleu = bleu_for('en')
  reference = word_counts(['the cat sat', 'the the dog'], bleu)
  lines = word_counts(['the the cat', 'the dog dog'], bleu)
  frequency = {'the': 9, 'cat': 2, 'dog': 2}
  # Of two files, one of which has nothing right, the mean is a half.
  systems = {'a': [lines], 'b': [lines, word_counts(['', ''], bleu)]}
  rows = f1_by_frequency(frequency, [0, 2, 5], reference, systems)
  # `sat` is once in the reference and never in the translation. `cat` and
  # `dog`: 2 in the reference, 3 in the translation, 2 in both: 4/5. `the`: 3,
  # 3, and in the same line one and one: 2/3.
  expected = [
    ('0', 1, 0.0),
    ('1-2', 2, 80.0),
    ('3-5', 0, None),
    ('>5', 3, 200 / 3),
  ]
  for row, (name, count, score) in zip(rows, expected, strict=True):
    assert (row['bucket'], row['count']) == (name, count)
    assert row['scores']['a'] == (score and pytest.approx(score))
    assert row['scores']['b'] == (score and pytest.approx(score / 2))
