"""A parallel corpus that needs no download: CLDR data in sentence frames.

Every sentence is a frame (`frames.toml`, written by hand in each language)
whose slots hold values that Babel and num2words render (`rendering.py`): dates,
times, time spans, numbers, currencies, units, names of countries and languages.
It was tested with Babel 2.17 to 2.18 and num2words 0.5.14.

The values of a sentence alone, without its frame and language, decide its
split, so no combination of values is in two splits, under any seed.
"""

import hashlib
import importlib.metadata
import random
import re
from collections.abc import Iterator
from typing import NamedTuple

from fusion_jax.data.embedded import rendering
from fusion_jax.errors import InputError

LANGUAGES: tuple[str, ...] = rendering.LANGUAGES

# Largest number of pairs of each split.
SIZES = {'train': 500_000, 'valid': 25_000, 'test': 25_000}

# Everything that the text depends on besides the arguments of `generate`.
_installed = importlib.metadata.version
VERSION = f'1 babel-{_installed("babel")} num2words-{_installed("num2words")}'

Slot = tuple[str, rendering.Value]
# Text before a slot, the slot ('' after the last one) and its style.
Part = tuple[str, str, str]

_SLOT = re.compile(r'\{(\w+)(?::(\w+))?\}')


class Frame(NamedTuple):
  """Slots of a sentence, and its text in each language, cut at the slots.

  A slot has a family, whose values fill it.
  """

  families: dict[str, str]
  parts: dict[str, tuple[Part, ...]]


def _frame(texts: dict[str, str]) -> Frame:
  parts = {language: _cut(text) for language, text in texts.items()}
  slots = [slot for _, slot, _ in parts['en'] if slot]
  return Frame({slot: slot.rstrip('0123456789') for slot in slots}, parts)


def _cut(text: str) -> tuple[Part, ...]:
  pieces = [piece or '' for piece in (*_SLOT.split(text), '', '')]
  return tuple(zip(pieces[::3], pieces[1::3], pieces[2::3], strict=True))


FRAMES: tuple[Frame, ...] = tuple(map(_frame, rendering.WRITTEN['frame']))


def generate(
  source_language: str,
  target_language: str,
  split: str,
  pairs: int,
  seed: int = 0,
) -> Iterator[tuple[str, str]]:
  """Return distinct sentence pairs, the same for the same arguments."""
  check(source_language, target_language, split, pairs)
  return (
    (
      _sentence(frame, content, source_language),
      _sentence(frame, content, target_language),
    )
    for frame, content in _contents(split, pairs, seed)
  )


def check(
  source_language: str, target_language: str, split: str, pairs: int
) -> None:
  """Refuse what the corpus does not have."""
  for kind, name, names in (
    ('language', source_language, LANGUAGES),
    ('language', target_language, LANGUAGES),
    ('split', split, SIZES),
  ):
    if name not in names:
      raise InputError(
        f'embedded corpus: no {kind} {name!r}; it has {", ".join(names)}'
      )
  if not 0 <= pairs <= SIZES[split]:
    raise InputError(
      f'embedded corpus: {pairs:,} pairs asked for in {split}; '
      f'it has 0 to {SIZES[split]:,}'
    )


def _contents(
  split: str, count: int, seed: int
) -> Iterator[tuple[Frame, tuple[Slot, ...]]]:
  """Draw distinct (frame, content) of one split."""
  draw = random.Random(seed)
  seen: set[tuple[int, tuple[Slot, ...]]] = set()
  while len(seen) < count:
    index = _below(draw, len(FRAMES))
    frame = FRAMES[index]
    content = tuple(
      (family, values[_below(draw, len(values))])
      for family in frame.families.values()
      for values in [rendering.VALUES[family]]
    )
    if len(set(content)) < len(content) or split_of(content) != split:
      continue
    if (index, content) not in seen:
      seen.add((index, content))
      yield frame, content


def _below(draw: random.Random, limit: int) -> int:
  # Only random() guarantees the same numbers in every Python version.
  return int(draw.random() * limit)


def split_of(content: tuple[Slot, ...]) -> str:
  """Return the split of a combination of values, whatever their order."""
  digest = hashlib.blake2b(repr(sorted(content)).encode(), digest_size=4)
  share = int.from_bytes(digest.digest(), 'big') % 20
  return {0: 'valid', 1: 'test'}.get(share, 'train')


def _sentence(frame: Frame, content: tuple[Slot, ...], language: str) -> str:
  value_of = dict(zip(frame.families, content, strict=True))
  text = ''
  for literal, slot, style in frame.parts[language]:
    text += literal
    if slot:
      family, value = value_of[slot]
      text += rendering.render(family, style, value, language)
  return text[0].upper() + text[1:]
