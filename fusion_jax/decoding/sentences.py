"""Sentences and pairs that models read, made from lines of text."""

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from fusion_jax.config import DecodingConfig
from fusion_jax.data.tokenizer import Tokenizer, normalise
from fusion_jax.decoding.batches import PairIds, shortest_target, target_limit
from fusion_jax.decoding.ensemble import Ensemble
from fusion_jax.errors import InputError
from fusion_jax.runs.loading import TrainedModel

# Subwords that no character has, with language tags and the end symbol; the
# normal form of one in Unicode has 18 letters at most.
_LONGEST_CHARACTER = 64

# End of a sentence or clause, with the closing brackets and quotation marks.
# Chinese and Japanese put no space after it.
_SENTENCE_END = re.compile(
  r'[.!?;:…][\'")\]}’”»]*\s+|[。！？；：][\'")\]}’”」』）》]*\s*'
)
# Number of characters that are tried at once.
_SHORT = 4_096


class Sentence(NamedTuple):
  """Line, or a piece of a long one."""

  sources: tuple[list[int], ...]  # For each model, the end symbol included.
  prefix: Sequence[int] = ()  # Ids at the beginning of the translation.

  @property
  def length(self) -> int:
    """Length of the longest source."""
    return max(map(len, self.sources))


class SentenceEncoder:
  """Encoder of lines as sentences."""

  def __init__(self, ensemble: Ensemble, options: DecodingConfig):
    """Prepare to encode."""
    for length in (1, options.max_source_length):
      least = shortest_target(length, options)
      most = target_limit(length, options)
      if least > most:
        raise InputError(
          f'min_length_ratio, min_length_extra: ask for {least} subwords or '
          f'more for a source of {length}, but max_length_ratio and '
          f'max_length_extra allow {most}; lower the former or raise the latter'
        )
    positions = ensemble.longest
    if positions and options.max_source_length > positions:
      raise InputError(
        f'max_source_length: must be at most {positions}, the positions that '
        f'the model has learned, got {options.max_source_length}'
      )
    self._ensemble = ensemble
    self._options = options
    self._longest = options.max_source_length

  def check(self, number: int, line: str, prefix: str) -> None:
    """Refuse a line that `encode` refuses; most need not be encoded for it."""
    if prefix or self._longest < _LONGEST_CHARACTER:
      self.encode(number, line, prefix)

  def encode(self, number: int, line: str, prefix: str = '') -> list[Sentence]:
    """Return the sentences of a line; none if it is empty."""
    tokenizer = self._ensemble.runs[0].source_tokenizer
    # A line that fits as a whole is the piece that was tried last.
    sentence_of = functools.lru_cache(maxsize=1)(self._sentence)
    pieces = split_line(
      tokenizer.without_tags(normalise(line), f'line {number}'),
      lambda text: sentence_of(text).length <= self._longest,
    )
    sentences = []
    # A piece of a long line may have nothing that can be seen.
    for piece in filter(normalise, pieces):
      sentences.append(sentence_of(piece))
      if sentences[-1].length > self._longest:
        raise InputError(
          f'line {number}: {piece!r} alone has {sentences[-1].length} subwords '
          'with the end symbol, more than max_source_length '
          f'{self._longest}; set it to a larger number'
        )
    if sentences and prefix:
      ids = self._prefix(number, prefix, len(sentences[0].sources[0]))
      sentences[0] = sentences[0]._replace(prefix=ids)
    return sentences

  def _sentence(self, text: str) -> Sentence:
    tokenizers = [run.source_tokenizer for run in self._ensemble.runs]
    return Sentence(
      tuple([*t.encode(text), t.vocabulary.end] for t in tokenizers)
    )

  def _prefix(self, number: int, prefix: str, source_length: int) -> list[int]:
    tokenizer = self._ensemble.tokenizer
    ids = tokenizer.encode(normalise(prefix))
    if tokenizer.vocabulary.unknown in ids:
      raise InputError(
        f'line {number}: its prefix {prefix!r} has characters that are not in '
        'the target vocabulary'
      )
    limit = target_limit(source_length, self._options, self._ensemble.longest)
    if len(ids) >= limit:
      raise InputError(
        f'line {number}: its prefix has {len(ids)} subwords and the '
        f'translation at most {limit}, the end symbol included; raise '
        '--max_length_extra'
      )
    return ids


class PairReader:
  """Encoder of text pairs, which refuses those that are too long."""

  def __init__(self, run: TrainedModel, options: DecodingConfig):
    """Prepare to encode."""
    self._tokenizers = run.source_tokenizer, run.target_tokenizer
    longest = options.max_source_length
    self._positions = run.longest
    # Subwords of a side, the end symbol included.
    self.longest = min(longest, run.longest or longest)

  def encode(self, name: str, source: str, target: str) -> PairIds:
    """Return the ids of a pair."""
    texts = zip((source, target), self._tokenizers, strict=True)
    pair = PairIds(
      *(line_ids(text, tokenizer, name) for text, tokenizer in texts)
    )
    for side, ids in zip(('source', 'translation'), pair, strict=True):
      if len(ids) > self.longest:
        raise InputError(
          f'{name}: its {side} has {len(ids)} subwords, {self._limit(len(ids))}'
        )
    return pair

  def _limit(self, length: int) -> str:
    """What a side of this length exceeds."""
    if self._positions is not None and length > self._positions:
      return f'more than the {self._positions} positions that the model has'
    return (
      f'more than max_source_length {self.longest}; set it to {length} or more'
    )

  def line(self, number: int, source: str, target: str) -> list[PairIds]:
    """Return the pair of a line in a list; an empty list if both are empty."""
    pair = self.encode(f'line {number}', source, target)
    return [] if pair.is_blank else [pair]


def line_ids(text: str, tokenizer: Tokenizer, name: str) -> list[int]:
  text = tokenizer.without_tags(normalise(text), name)
  return [*tokenizer.encode(text), tokenizer.vocabulary.end]


def split_line(line: str, fits: Callable[[str], bool]) -> Iterator[str]:
  """Cut a line into pieces that fit, as few as the rules allow.

  A cut is made after the last end of a sentence in the second half of what
  fits, else at the last space, else anywhere. The time grows with the length of
  the line, not with its square.
  """
  start = 0
  while start < len(line):
    size = _longest_prefix(line, start, fits)
    if start + size < len(line):
      prefix = line[start : start + size]
      size = _sentence_end(prefix) or _last_space(line, start, size) or size
    yield line[start : start + size].strip()
    start += size
    while line[start : start + 1].isspace():
      start += 1


def _longest_prefix(line: str, start: int, fits: Callable[[str], bool]) -> int:
  """Return the number of characters from `start` on that fit, at least 1.

  A short line is tried as a whole. Otherwise the size is doubled and then
  bisected, so that the cost does not depend on the text that follows.
  """
  left = len(line) - start
  if left <= _SHORT and fits(line[start:]):
    return left
  high = 2
  while high < left and fits(line[start : start + high]):
    high *= 2
  low, high = max(high // 2, 1), min(high, left)
  if high == left > _SHORT and fits(line[start:]):
    return left
  while high - low > 1:
    middle = (low + high) // 2
    if fits(line[start : start + middle]):
      low = middle
    else:
      high = middle
  return low


def _sentence_end(prefix: str) -> int | None:
  ends = [match.end() for match in _SENTENCE_END.finditer(prefix)]
  return ends[-1] if ends and ends[-1] >= len(prefix) // 2 else None


def _last_space(line: str, start: int, size: int) -> int | None:
  """Return the number of characters of the whole words within `size`."""
  space = line.rfind(' ', start + 1, start + size + 1)
  return space - start if space > 0 else None
