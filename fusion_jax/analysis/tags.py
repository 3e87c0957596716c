"""Word classes of the subwords of a text, from a CoNLL-U file.

https://universaldependencies.org/format.html: one token per line, ten columns
separated by tabs, an empty line after each sentence. The class is column 4,
UPOS. A word of several tokens (1-2) has the class of its first; empty nodes
(1.1) are left out.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from fusion_jax.analysis.run_with_text import SIDES, RunWithText
from fusion_jax.data.tokenizer import normalise
from fusion_jax.errors import InputError
from fusion_jax.files import read_errors

_COLUMNS = 10
_INDEX = re.compile(r'(\d+)(?:-(\d+)|(\.\d+))?')
_NONE = -1


class Word(NamedTuple):
  """A word of a tagged file, its class and its line, from 1."""

  form: str
  tag: str
  line: int


class TaggedText(NamedTuple):
  """Names of word classes, and by line, from 1, the class of every subword.

  The class is an index in the names, -1 for none; the end symbol has no place.
  """

  names: tuple[str, ...]
  of_line: dict[int, Int[np.ndarray, ' T']]


def read_words(path: Path) -> Iterator[list[Word]]:
  """Yield the words of every sentence of a CoNLL-U file."""
  with read_errors(path):
    lines = path.read_text('utf-8', errors='replace').split('\n')
  words: list[Word] = []
  inside = 0
  for number, line in enumerate([*lines, ''], start=1):
    if not line.strip() and words:
      yield words
      words, inside = [], 0
    if not line.strip() or line.startswith('#'):
      continue
    columns = line.split('\t')
    index = _INDEX.fullmatch(columns[0])
    if len(columns) != _COLUMNS or not index:
      raise InputError(
        f'{path}, line {number}: must have the ten columns of CoNLL-U with '
        'tabs between, the first a number: 1, 1-2 or 1.1'
      )
    if index[2]:
      inside = int(index[2]) - int(index[1]) + 1
      words.append(Word(columns[1], '', number))
    elif not index[3] and inside:
      inside -= 1
      words[-1] = words[-1]._replace(tag=words[-1].tag or columns[3])
    elif not index[3]:
      words.append(Word(columns[1], columns[3], number))


def tags_of_characters(
  text: str, words: Sequence[Word], where: str
) -> list[str]:
  """Return the class of each character's word; spaces join the next word."""
  tags: list[str] = []
  for word in words:
    form = ''.join(normalise(word.form).split())
    for character in form:
      while len(tags) < len(text) and text[len(tags)].isspace():
        tags.append(word.tag)
      if text[len(tags) : len(tags) + 1] != character:
        raise InputError(
          f'{where}, line {word.line}: {word.form!r} is not what the text has '
          f'there, {text[len(tags) : len(tags) + 20]!r}; the words must be '
          'those of the text'
        )
      tags.append(word.tag)
  if len(tags) < len(text):
    raise InputError(
      f'{where}: the text continues with {text[len(tags) :].strip()[:20]!r}; '
      'the words must be those of the text'
    )
  return tags


def tagged_text(analysed: RunWithText) -> TaggedText | None:
  """Return the classes of the subwords of a text; None without --tags."""
  choice = analysed.choice
  if not choice.tags:
    return None
  side, path = int(choice.tags_side == 'target'), Path(choice.tags)
  tokenizer = analysed.tokenizer(SIDES[side])
  sentences = read_words(path)
  names: dict[str, int] = {}
  of_line: dict[int, Int[np.ndarray, ' T']] = {}
  for number, line in enumerate(analysed.lines, start=1):
    text = tokenizer.without_tags(normalise(line[side]), f'line {number}')
    if not text:
      continue
    words = next(sentences, None)
    if words is None:
      raise InputError(
        f'{path}: {len(of_line)} sentences, but line {number} of the '
        f'{choice.tags_side} text has none; give one a line'
      )
    where = f'{path} against line {number} of the {choice.tags_side} text'
    tags = tags_of_characters(text, words, where)
    places = tokenizer.places(text)
    of_line[number] = np.full(len(places), _NONE, np.int32)
    for subword, place in enumerate(places):
      if place is not None:
        tag = tags[min(place, len(tags) - 1)]
        of_line[number][subword] = names.setdefault(tag, len(names))
  return TaggedText(tuple(names), of_line)
