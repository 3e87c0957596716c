"""The vectorised scores against sacreBLEU's own."""

import numpy as np
import pytest
from comparing import mistaken, pairs
from hypothesis import given
from hypothesis import strategies as st

from fusion_jax.evaluation.sentence_statistics import (
  CORPUS_SCORES,
  score_of,
  statistics_of,
)
from fusion_jax.metrics import metrics_for

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
