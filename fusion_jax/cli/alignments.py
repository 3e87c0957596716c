"""Hard alignments from the weights over a source, as lines of links.

A link i-j says that piece or word j of the translation comes from piece or
word i of the source, both counted from 0 (the format of Pharaoh and Moses).
End symbols have no number and no link.

Axis letters: S source, T target.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Float

Links = list[tuple[int, int]]

# How SentencePiece writes a space; it stands at the start of every word.
_SPACE = '▁'


def piece_links(weights: Float[np.ndarray, 'T S']) -> Links:
  """Link every target piece to argmax_i of its weights.

  Args:
    weights: Weights over the source. The last row and the last column belong
      to the end symbols and are ignored.

  Returns:
    (i, j) in the order of j; none without source pieces.
  """
  inner = weights[:-1, :-1]
  if not inner.size:
    return []
  return [(int(i), j) for j, i in enumerate(inner.argmax(axis=1))]


def word_numbers(pieces: Iterable[str]) -> list[int]:
  """Return the number of the word of every piece, counted from 0."""
  numbers, word = [], -1
  for piece in pieces:
    if piece.startswith(_SPACE) or word < 0:
      word += 1
    numbers.append(word)
  return numbers


def word_links(
  links: Links, source: Sequence[int], target: Sequence[int]
) -> Links:
  """Link two words if any of their pieces are linked.

  Args:
    links: Links of pieces.
    source: Word of every source piece.
    target: Word of every target piece.

  Returns:
    (i, j) without repetition, in the order of j, then i.
  """
  words = {(source[i], target[j]) for i, j in links}
  return sorted(words, key=lambda link: link[::-1])


def link_line(parts: Iterable[tuple[Links, int, int]]) -> str:
  """Format the links of a sentence translated in parts as one line.

  Args:
    parts: Links of each part, with the number of pieces or words of its source
      and of its translation.

  Returns:
    Links such as '0-0 2-1', numbered through all parts.
  """
  found, before = [], (0, 0)
  for links, source, target in parts:
    found += [f'{before[0] + i}-{before[1] + j}' for i, j in links]
    before = before[0] + source, before[1] + target
  return ' '.join(found)
