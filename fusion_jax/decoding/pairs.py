"""Pairs of a source and its translation: their ids and their batches."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Int32

from fusion_jax.config import DecodingConfig
from fusion_jax.data.normalise import normalise
from fusion_jax.data.tokenizer import Tokenizer
from fusion_jax.decoding.batches import padded
from fusion_jax.decoding.shapes import DecodeShape
from fusion_jax.errors import InputError
from fusion_jax.runs.loading import TrainedModel


class PairIds(NamedTuple):
  """Subword ids of both sides, the end symbols included."""

  source: list[int]
  target: list[int]

  @property
  def is_blank(self) -> bool:
    """Whether both sides are the end symbol alone."""
    return len(self.source) == len(self.target) == 1

  @property
  def length(self) -> int:
    """Length of the longer side."""
    return max(len(self.source), len(self.target))


class PairReader:
  """Encoder of text pairs, which refuses those that are too long.

  Attributes:
    longest: Largest number of subwords of a side, the end symbol included.
  """

  def __init__(self, run: TrainedModel, options: DecodingConfig):
    """Prepare to encode.

    Args:
      run: Trained model with its tokenizers.
      options: Decoding options with `max_source_length`; a model with learned
        positions may allow less.
    """
    self._tokenizers = run.source_tokenizer, run.target_tokenizer
    longest = options.max_source_length
    self._positions = run.longest
    self.longest = min(longest, run.longest or longest)

  def encode(self, name: str, source: str, target: str) -> PairIds:
    """Return the ids of a pair.

    Args:
      name: Name of the pair, for the message.
      source: Source text, normalised here as the training text was.
      target: Target text, likewise.

    Returns:
      The pair.

    Raises:
      InputError: A side has more subwords than `longest`, or the source begins
        with the tag of another direction.
    """
    texts = zip((source, target), self._tokenizers, strict=True)
    pair = PairIds(*(line_ids(text, each, name) for text, each in texts))
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


def padded_pairs(
  pairs: list[PairIds], shape: DecodeShape, end_id: int
) -> tuple[
  Int32[np.ndarray, 'B S'], Int32[np.ndarray, ' B'], Int32[np.ndarray, 'B S']
]:
  """Return the arrays that a teacher-forced pass reads.

  Args:
    pairs: Pairs, at most shape.rows.
    shape: Shape of the batch; both sides have shape.source positions.
    end_id: End symbol, the only token of spare rows.

  Returns:
    Source ids, their lengths, and target ids.
  """
  source, lengths = padded([p.source for p in pairs], *shape[:2], end_id)
  target, _ = padded([p.target for p in pairs], *shape[:2], end_id)
  return source, lengths, target


def line_ids(text: str, tokenizer: Tokenizer, name: str) -> list[int]:
  """Return the ids of a line, normalised here, with the end symbol.

  Args:
    text: Line, with or without the tags of the tokenizer before it.
    tokenizer: Tokenizer of its side.
    name: Name of the line, for the message.

  Raises:
    InputError: The line begins with the tag of another direction.
  """
  text = tokenizer.without_tags(normalise(text), name)
  return [*tokenizer.encode(text), tokenizer.vocabulary.end]
