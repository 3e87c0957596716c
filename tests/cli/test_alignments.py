"""Hard alignments, by hand."""

import numpy as np
from copying import LINES, make_tokenizer

from fusion_jax.cli.alignments import (
  link_line,
  piece_links,
  word_links,
  word_numbers,
)

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
_SOURCE = ['▁im', '▁Ha', 'us']
_TARGET = ['▁in', '▁the', '▁hou', 'se']


def test_every_target_piece_is_linked_to_its_largest_weight():
  assert piece_links(_WEIGHTS) == [(0, 0), (0, 1), (1, 2), (1, 3)]


def test_words_are_linked_where_pieces_are():
  source, target = word_numbers(_SOURCE), word_numbers(_TARGET)
  assert (source, target) == ([0, 1, 1], [0, 1, 2, 2])
  links = piece_links(_WEIGHTS)
  assert word_links(links, source, target) == [(0, 0), (0, 1), (1, 2)]
  both = [(2, 3), (0, 3), (1, 2)]
  assert word_links(both, source, target) == [(0, 2), (1, 2)]


def test_a_first_piece_without_a_space_starts_a_word():
  assert word_numbers(['a', 'b', '▁c']) == [0, 0, 1]
  assert word_numbers([]) == []


def test_there_are_as_many_words_as_in_the_text():
  tokenizer = make_tokenizer()
  for line in LINES:
    pieces = tokenizer.pieces(tokenizer.encode(line.strip()))
    assert len(set(word_numbers(pieces))) == len(line.split())


def test_without_source_pieces_there_are_no_links():
  assert piece_links(np.ones((3, 1))) == []
  assert piece_links(np.ones((1, 3))) == []


def test_the_parts_of_a_line_are_numbered_through():
  links = piece_links(_WEIGHTS)
  parts = [(links, 3, 4), ([], 0, 2), ([(1, 0)], 2, 1)]
  assert link_line(parts) == '0-0 0-1 1-2 1-3 4-6'
  assert link_line([]) == ''
