"""Which words of a translation differ from those of another text."""

import difflib
import itertools
from collections.abc import Sequence
from typing import NamedTuple

from fusion_jax.metrics import language_of

# Languages that put no spaces between words: their units are characters.
_WITHOUT_SPACES = 'zh', 'ja', 'th', 'lo', 'km', 'my'


class Stretch(NamedTuple):
  """Words side by side that are marked alike.

  text: of them.
  off_reference: the reference has them not, or elsewhere.
  off_first: likewise, the first translation.
  """

  text: str
  off_reference: bool
  off_first: bool


def separator(language: str) -> str:
  """What stands between two units of a line."""
  return '' if language_of(language) in _WITHOUT_SPACES else ' '


def units(text: str, language: str) -> list[str]:
  """The words of a line, or its characters where no spaces part words."""
  return text.split() if separator(language) else list(text)


def missing(words: Sequence[str], others: Sequence[str]) -> list[bool]:
  """For each word whether it is left out of the best alignment with others.

  Args:
    words: to look at.
    others: to compare with.

  Returns:
    As many as words; False for the words of the blocks that difflib matches.
  """
  matcher = difflib.SequenceMatcher(None, words, others, autojunk=False)
  found = [True] * len(words)
  for start, _, size in matcher.get_matching_blocks():
    found[start : start + size] = [False] * size
  return found


def stretches(
  text: str, reference: str, first: str, language: str
) -> list[Stretch]:
  """A translation, cut where its marks change.

  Args:
    text: the translation.
    reference: that it should be.
    first: the translation of the first run.
    language: of all three.

  Returns:
    Their texts, with `separator` between them, are the translation.
  """
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
