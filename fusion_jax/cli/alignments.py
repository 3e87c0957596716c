"""Hard alignments out of the weights over a source, as lines of links.

A link i-j says that piece or word j of the translation comes from piece or
word i of the source, both counted from 0 (the format of Pharaoh and Moses).
End symbols have no number and no link.

Axis letters: S source, T target.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Float

Links = list[tuple[int, int]]

# SentencePiece writes a space so; it stands at the start of every word.
_SPACE = '▁'


def piece_links(weights: Float[np.ndarray, 'T S']) -> Links:
  """Links every target piece to argmax_i of its weights.

  Args:
    weights: over the source; the last row and the last column are those of
      the end symbols, which have no part in it.

  Returns:
    (i, j) in the order of j; none without source pieces.
  """
  inner = weights[:-1, :-1]
  if not inner.size:
    return []
  return [(int(i), j) for j, i in enumerate(inner.argmax(axis=1))]


def word_numbers(pieces: Iterable[str]) -> list[int]:
  """The number of the word of every piece, counted from 0."""
  numbers, word = [], -1
  for piece in pieces:
    if piece.startswith(_SPACE) or word < 0:
      word += 1
    numbers.append(word)
  return numbers


def word_links(
  links: Links, source: Sequence[int], target: Sequence[int]
) -> Links:
  """Links two words where any of their pieces are linked.

  Args:
    links: of pieces.
    source: the word of every source piece.
    target: likewise.

  Returns:
    (i, j) without repetition, in the order of j, then i.
  """
  words = {(source[i], target[j]) for i, j in links}
  return sorted(words, key=lambda link: link[::-1])


def link_line(parts: Iterable[tuple[Links, int, int]]) -> str:
  """One line of a sentence translated in parts.

  Args:
    parts: the links of each, and how many pieces or words its source and its
      translation have.

  Returns:
    '0-0 2-1' and the like, numbered through all parts.
  """
  found, before = [], (0, 0)
  for links, source, target in parts:
    found += [f'{before[0] + i}-{before[1] + j}' for i, j in links]
    before = before[0] + source, before[1] + target
  return ' '.join(found)
