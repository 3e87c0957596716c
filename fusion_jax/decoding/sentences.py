"""Sentences that models translate, made from lines of text."""

from collections.abc import Sequence
from typing import NamedTuple

from fusion_jax.config import DecodingConfig
from fusion_jax.data.normalise import normalise
from fusion_jax.decoding.ensemble import Ensemble
from fusion_jax.decoding.line_splitting import split_line
from fusion_jax.decoding.shapes import shortest_target, target_limit
from fusion_jax.errors import InputError

# Subwords that no character has, with language tags and the end symbol; the
# normal form of one in Unicode has 18 letters at most.
_LONGEST_CHARACTER = 64


class Sentence(NamedTuple):
  """Line, or a piece of a long one.

  Attributes:
    sources: Ids for each model, the end symbol included.
    prefix: Ids at the beginning of the translation.
  """

  sources: tuple[list[int], ...]
  prefix: Sequence[int] = ()

  @property
  def length(self) -> int:
    """Length of the longest source."""
    return max(map(len, self.sources))


class SentenceEncoder:
  """Encoder of lines as sentences."""

  def __init__(self, ensemble: Ensemble, options: DecodingConfig):
    """Prepare to encode."""
    for length in (1, options.max_source_length):
      least, most = (
        shortest_target(length, options),
        target_limit(length, options),
      )
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
    tokenizers = [run.source_tokenizer for run in self._ensemble.runs]
    pieces = split_line(
      tokenizers[0].without_tags(normalise(line), f'line {number}'),
      lambda text: all(len(t.encode(text)) < self._longest for t in tokenizers),
    )
    sentences = []
    # A piece of a long line may have nothing that can be seen.
    for piece in filter(normalise, pieces):
      sources = tuple(
        [*tokenizer.encode(piece), tokenizer.vocabulary.end]
        for tokenizer in tokenizers
      )
      sentences.append(Sentence(sources))
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
