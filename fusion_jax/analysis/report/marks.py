"""Marks on words of a translation that differ from another text."""

import difflib
import itertools
from collections.abc import Sequence
from typing import NamedTuple

from fusion_jax.languages import words_of


class Stretch(NamedTuple):
  """Adjacent words with the same marks.

  Attributes:
    text: Text of the words.
    off_reference: Whether the reference lacks them or has them elsewhere.
    off_first: Whether the first translation lacks them or has them elsewhere.
  """

  text: str
  off_reference: bool
  off_first: bool

  @property
  def classes(self) -> str:
    """The classes of the element that shows the marks; '' for none."""
    marks = {'off-reference': self.off_reference, 'off-first': self.off_first}
    return ' '.join(name for name, marked in marks.items() if marked)


def separator(language: str) -> str:
  """Return the text between two units of a line."""
  return words_of(language).between


def units(text: str, language: str) -> list[str]:
  """Return the words of a line, or its characters if spaces part no words."""
  return text.split() if separator(language) else list(text)


def missing(words: Sequence[str], others: Sequence[str]) -> list[bool]:
  """Find the words that the best alignment with others leaves out."""
  matcher = difflib.SequenceMatcher(None, words, others, autojunk=False)
  found = [True] * len(words)
  for start, _, size in matcher.get_matching_blocks():
    found[start : start + size] = [False] * size
  return found


def stretches(
  text: str, reference: str, first: str, language: str
) -> list[Stretch]:
  """Cut a translation where its marks change."""
  words = units(text, language)
  marks = zip(
    missing(words, units(reference, language)),
    missing(words, units(first, language)),
    strict=True,
  )
  between = separator(language)
  parts = itertools.groupby(
    zip(words, marks, strict=True), key=lambda pair: pair[1]
  )
  return [
    Stretch(between.join(word for word, _ in part), *mark)
    for mark, part in parts
  ]
