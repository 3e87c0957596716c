"""Parts of a report by themselves: marks, buckets of lengths."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusion_jax.analysis.report.marks import (
  Stretch,
  missing,
  separator,
  stretches,
  units,
)
from fusion_jax.analysis.report.page import bleu_by_source_length, draw_lengths
from fusion_jax.metrics import corpus_scores

_WORDS = st.lists(st.sampled_from(['a', 'b', 'c', 'd']), max_size=8)


def test_marks_by_hand():
  others = ['the', 'cat', 'sat', 'down']
  found = missing(['the', 'red', 'cat', 'sat'], others)
  assert found == [False, True, False, False]
  marked = stretches('the red cat sat', 'the cat sat', 'a red cat', 'en')
  assert marked == [
    Stretch('the', False, True),
    Stretch('red', True, False),
    Stretch('cat', False, False),
    Stretch('sat', False, True),
  ]
  assert stretches('', 'the cat', 'a', 'en') == []


def test_languages_without_spaces_are_marked_by_characters():
  assert stretches('我爱狗', '我爱猫', '我爱狗', 'zh_CN') == [
    Stretch('我爱', False, False),
    Stretch('狗', True, False),
  ]


@given(_WORDS, _WORDS, _WORDS)
def test_stretches_are_the_translation(made, reference, first):
  line = ' '.join(made)
  found = stretches(line, ' '.join(reference), ' '.join(first), 'en')
  assert separator('en').join(each.text for each in found) == line
  # What is not marked is a common subsequence.
  kept = [
    word
    for each in found
    if not each.off_reference
    for word in units(each.text, 'en')
  ]
  rest = iter(reference)
  assert all(word in rest for word in kept)


@given(_WORDS)
def test_nothing_differs_from_itself(words):
  assert not any(missing(words, words))


def test_bleu_of_a_bucket_is_that_of_its_lines():
  sources = ['a b', 'a b', 'a b c d e', 'a b c d e']
  references = ['x y z u', 'u v w x', 'k l m n o', 'p q r s t']
  made = ['x y z u', 'u v', 'k l m o', 'p q r s t']
  numbers = bleu_by_source_length(
    sources, references, {'one': made, 'two': references}, ('en', 'de')
  )
  first, second = numbers
  assert (first['bucket'], second['bucket']) == ('1-2', '>2')
  assert (first['count'], second['count']) == (2, 2)
  ones = [row['scores']['one'] for row in numbers]
  assert ones == [
    corpus_scores(made[:2], references[:2], 'de').bleu,
    corpus_scores(made[2:], references[2:], 'de').bleu,
  ]
  twos = [row['scores']['two'] for row in numbers]
  assert twos == pytest.approx([100.0, 100.0])
  (axes,) = draw_lengths(numbers).axes
  assert [bar.get_height() for bar in axes.patches] == pytest.approx(
    ones + twos
  )
  assert [tick.get_text() for tick in axes.get_xticklabels()] == ['1-2', '>2']
