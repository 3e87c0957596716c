"""TER's edits against those that sacreBLEU counts."""

import random

import pytest
from comparing import mistaken
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics import TER
from sacrebleu.metrics.lib_ter import translation_edit_rate

from fusion_jax.evaluation import edit_rate
from fusion_jax.evaluation.edit_rate import FastTER, edits

_WORDS = st.lists(st.sampled_from('abcde'), max_size=30)


def test_edits_by_hand():
  # One word moved; one replaced and one left out; nothing to compare with.
  assert edits(['b', 'c', 'd', 'a'], ['a', 'b', 'c', 'd']) == 1
  assert edits(['a', 'x', 'c'], ['a', 'b', 'c', 'd']) == 2
  assert edits(['a', 'b'], []) == 2
  assert edits([], ['a', 'b']) == 2


@given(_WORDS, _WORDS)
def test_edits_are_sacrebleus(words, reference):
  assert edits(words, reference) == translation_edit_rate(words, reference)[0]


@pytest.mark.parametrize('share', [0.1, 0.9])
def test_edits_of_long_lines_are_sacrebleus(share):
  # Up to 45 words with many edits: farther from the diagonal of the table
  # than sacreBLEU looks.
  draw = random.Random(0)
  references = [
    ' '.join(draw.choices('abcdefghijklmnopqrstuvwxyz', k=length))
    for length in (28, 45)
  ]
  lines = mistaken(references, share, 1)
  shortened = [line[: len(line) // 3] for line in lines]
  for line, reference in zip(lines + shortened, references * 2, strict=True):
    words, right = line.split(), reference.split()
    assert edits(words, right) == translation_edit_rate(words, right)[0]


def test_statistics_and_signature_are_sacrebleus():
  lines = ['b c d a', 'x', '']
  references = [['a b c d', 'y z', 'a'], ['b c d', 'x', 'b c']]
  metrics = FastTER(), TER()
  ours, theirs = (
    metric._extract_corpus_statistics(lines, references) for metric in metrics
  )
  assert ours == theirs == [[1, 3.5], [0, 1.5], [1, 1.5]]
  signatures = {metric.get_signature().format() for metric in metrics}
  assert len(signatures) == 1


def test_far_from_the_diagonal_the_table_decides(monkeypatch):
  # Found by trying: sacreBLEU does not look at the shortest path of a
  # translation on its way, and so comes to other moves.
  draw = random.Random(94)
  reference, words = (
    list(map(str, draw.choices(range(30), k=draw.randrange(*lengths))))
    for lengths in ((55, 90), (24, 45))
  )
  expected = translation_edit_rate(words, reference)[0]
  assert edits(words, reference) == expected
  monkeypatch.setattr(edit_rate, '_INSIDE', 999)
  assert edits(words, reference) != expected
