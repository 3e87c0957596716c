"""Hard alignments, by hand."""

import io

import numpy as np
import pytest
import sentencepiece
from copying import LINES

from fusion_jax.cli.alignments import (
  link_line,
  piece_links,
  word_links,
  word_numbers,
)
from fusion_jax.data.tokenizer import Tokenizer

# Of 'in the house </s>' over 'im Haus </s>', the house in two pieces each.
_WEIGHTS = np.array(
  [
    [0.5, 0.2, 0.2, 0.1],  # in: im
    [0.3, 0.1, 0.2, 0.4],  # the: the end symbol, but im of the pieces
    [0.1, 0.6, 0.2, 0.1],  # hou: Ha
    [0.0, 0.3, 0.3, 0.4],  # se: Ha, the first of the two
    [0.0, 0.0, 0.9, 0.1],  # the end symbol, which has no link
  ]
)
_SOURCE = ['im', ' Ha', 'us']
_TARGET = ['in', ' the', ' hou', 'se']


def test_every_target_piece_is_linked_to_its_largest_weight():
  assert piece_links(_WEIGHTS) == [(0, 0), (0, 1), (1, 2), (1, 3)]


def _first(surfaces, space_last=False):
  ranges = word_numbers(surfaces, space_last)
  assert all(len(own) == 1 for own in ranges)
  return [own[0] for own in ranges]


def test_words_are_linked_where_pieces_are():
  assert (_first(_SOURCE), _first(_TARGET)) == ([0, 1, 1], [0, 1, 2, 2])
  source, target = word_numbers(_SOURCE, False), word_numbers(_TARGET, False)
  links = piece_links(_WEIGHTS)
  assert word_links(links, source, target) == [(0, 0), (0, 1), (1, 2)]
  both = [(2, 3), (0, 3), (1, 2)]
  assert word_links(both, source, target) == [(0, 2), (1, 2)]


def test_a_space_is_of_the_word_that_the_model_gives_it_to():
  assert _first(['', 'a', 'b', ' ', 'c', ' d']) == [0, 0, 0, 1, 1, 2]
  assert _first(['ab', ' ', 'c ', 'd', ' '], True) == [0, 0, 1, 2, 2]
  # The first bytes of a character have no text of their own.
  assert _first(['a ', '', 'é', '', 'ö'], True) == [0, 1, 1, 1, 1]
  assert word_numbers([], False) == []


def test_a_piece_of_several_words_is_a_part_of_all():
  pieces = ['', 'in', ' New York', ' or']
  assert word_numbers(pieces, False)[2:] == [range(1, 3), range(3, 4)]
  assert word_links([(0, 2)], [range(4, 5)], word_numbers(pieces, False)) == [
    (4, 1),
    (4, 2),
  ]


@pytest.mark.parametrize('space_last', [False, True])
@pytest.mark.parametrize('byte_fallback', [False, True])
def test_there_are_as_many_words_as_in_the_text(space_last, byte_fallback):
  model = io.BytesIO()
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(LINES * 3),
    model_writer=model,
    model_type='bpe',
    vocab_size=310 if byte_fallback else 50,
    treat_whitespace_as_suffix=space_last,
    byte_fallback=byte_fallback,
    minloglevel=2,
  )
  tokenizer = Tokenizer(model.getvalue())
  assert tokenizer.space_last == space_last
  for line in [*LINES, 'a \u2603 dog', 'the d\u2603g \u00e9\u00e9 sat']:
    pieces = tokenizer.surfaces(tokenizer.encode(line.strip()))
    words = line.split()
    numbers = _first(pieces, space_last)
    assert numbers == sorted(numbers)
    assert set(numbers) == set(range(len(words)))
    for number, word in enumerate(words):
      own = [p for n, p in zip(numbers, pieces, strict=True) if n == number]
      assert ''.join(own).strip().replace('\u2047', '\u2603') in (
        word,
        word.replace('\u00e9\u00e9', '\u2603'),
      )


def test_without_source_pieces_there_are_no_links():
  assert piece_links(np.ones((3, 1))) == []
  assert piece_links(np.ones((1, 3))) == []


def test_the_parts_of_a_line_are_numbered_through():
  links = piece_links(_WEIGHTS)
  parts = [(links, 3, 4), ([], 0, 2), ([(1, 0)], 2, 1)]
  assert link_line(parts) == '0-0 0-1 1-2 1-3 4-6'
  assert link_line([]) == ''
