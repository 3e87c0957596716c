"""The words of a translation that the page of a report marks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusion_jax.analysis.report.page import stretches

_WORDS = st.lists(st.sampled_from(['a', 'b', 'c', 'd']), max_size=8)


@pytest.mark.parametrize(
  ('made', 'reference', 'language', 'marked'),
  [
    ('the red cat sat', 'the cat sat', 'en', ['red']),
    ('', 'the cat', 'en', []),
    ('na podlaze, spí', 'spí na podlaze', 'cs', ['spí']),
    ('„podlaze“ … (spí)!', 'podlaze spí', 'cs', []),
    ('der Hund, so', 'der Mann so', 'de', ['Hund']),
    ("the dog's 5.5 %", "the dog's 5,5 %", 'en', ['5.5']),
    # A vowel sign is a part of its word.
    ('«कि» है', 'कि है', 'hi', []),
    ('कि', 'क', 'hi', ['कि']),
    ('我爱狗。', '我爱猫', 'zh_CN', ['狗']),
  ],
)
def test_words_are_marked_but_no_punctuation_around_them(
  made, reference, language, marked
):
  found = [*stretches(made, reference, language)]
  assert [text for text, is_marked in found if is_marked] == marked
  assert ''.join(text for text, _ in found) == made


@given(_WORDS, _WORDS)
def test_stretches_are_the_translation(made, reference):
  line = ' '.join(made)
  found = [*stretches(line, ' '.join(reference), 'en')]
  assert ''.join(text for text, _ in found) == line
  # What is not marked is a common subsequence.
  rest = iter(reference)
  kept = (word for text, marked in found if not marked for word in text.split())
  assert all(word in rest for word in kept)
