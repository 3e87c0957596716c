"""Hard alignments from the weights over a source, as lines of links.

A link i-j says that piece or word j of the translation comes from piece or
word i of the source, both counted from 0 (the format of Pharaoh and Moses).
End symbols have no number and no link.

Axis letters: S source, T target.
"""

import itertools
from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Float

Links = list[tuple[int, int]]


def piece_links(weights: Float[np.ndarray, 'T S']) -> Links:
  """Link every target piece to argmax_i of its weights."""
  inner = weights[:-1, :-1]
  if not inner.size:
    return []
  return [(int(i), j) for j, i in enumerate(inner.argmax(axis=1))]


def word_numbers(surfaces: Sequence[str], space_last: bool) -> list[range]:
  """Return the words of the text that every piece is a part of."""
  text = ''.join(surfaces)
  begins = (
    before.isspace() and not here.isspace()
    for before, here in itertools.pairwise(f' {text}')
  )
  # Number of the words that begin before each character.
  begun = [0, *itertools.accumulate(begins)]
  ranges, start = [], 0
  for surface in surfaces:
    end, seen = start + len(surface), start
    if not (space_last and surface.isspace()):
      seen = len(text) - len(text[start:].lstrip()) + 1
    word = max(begun[min(seen, len(text))] - 1, 0)
    ranges.append(range(word, min(max(begun[end], word + 1), begun[-1])))
    start = end
  return ranges


def word_links(
  links: Links, source: Sequence[range], target: Sequence[range]
) -> Links:
  """Link two words if any of their pieces are linked."""
  words = {
    word for i, j in links for word in itertools.product(source[i], target[j])
  }
  return sorted(words, key=lambda link: link[::-1])


def link_line(parts: Iterable[tuple[Links, int, int]]) -> str:
  """Format the links of a sentence translated in parts as one line."""
  found, before = [], (0, 0)
  for links, source, target in parts:
    found += [f'{before[0] + i}-{before[1] + j}' for i, j in links]
    before = before[0] + source, before[1] + target
  return ' '.join(found)
