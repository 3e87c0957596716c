"""Where lines are cut."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fusion_jax.decoding.sentences import split_line


def split(line, characters):
  return list(split_line(line, lambda piece: len(piece) <= characters))


@pytest.mark.parametrize(
  ('line', 'characters', 'pieces'),
  [
    ('', 5, []),
    ('It fits.', 8, ['It fits.']),
    # The end of a sentence in the second half of what fits.
    ('One is. Two are so.', 14, ['One is.', 'Two are so.']),
    ('He said “no.” She left him', 20, ['He said “no.”', 'She left him']),
    ('第一句。第二句很长。', 6, ['第一句。', '第二句很长。']),
    # The only end of a sentence is too early: a space.
    ('A. bcd efg hij klm', 12, ['A. bcd efg', 'hij klm']),
    # A word that ends exactly at the limit stays whole.
    ('abc def ghi', 7, ['abc def', 'ghi']),
    # 3.14 is no end of a sentence.
    ('pi is 3.14159', 9, ['pi is', '3.14159']),
    ('abcdefghij', 4, ['abcd', 'efgh', 'ij']),
    ('abc', 0, ['a', 'b', 'c']),
  ],
)
def test_cuts(line, characters, pieces):
  assert split(line, characters) == pieces


@settings(max_examples=100)
@given(
  st.text('ab .!。', max_size=60).map(lambda s: ' '.join(s.split())),
  st.integers(1, 20),
)
def test_nothing_is_lost_and_every_piece_fits(line, characters):
  pieces = split(line, characters)
  assert ''.join(pieces).replace(' ', '') == line.replace(' ', '')
  assert all(0 < len(piece) <= characters for piece in pieces)
