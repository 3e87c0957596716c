"""A run together with the text that views measure it on."""

import dataclasses
import functools
import itertools
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Int32

from fusion_jax.data.normalise import normalise
from fusion_jax.data.text_files import read_pairs as read_files
from fusion_jax.data.tokenizer import Tokenizer
from fusion_jax.errors import InputError
from fusion_jax.runs.kept_corpus import read_validation
from fusion_jax.runs.loading import TrainedModel
from fusion_jax.runs.metrics_file import read_metrics

logger = logging.getLogger(__name__)


class TextPair(NamedTuple):
  """A line of text on both sides as token ids.

  Attributes:
    source: Source ids with the end symbol.
    target: Target ids with the end symbol.
    line: Number of the line in the text, from 1.
  """

  source: Int32[np.ndarray, ' S']
  target: Int32[np.ndarray, ' T']
  line: int


@dataclasses.dataclass(frozen=True)
class TextChoice:
  """Choice of a text.

  Attributes:
    source: Source file; '' for the validation text in the run directory.
    target: Its translation, line by line; '' if `source` is ''.
    lines: Number of lines to use from the beginning; 0 uses all.
    tags: CoNLL-U file of one side, for views by word class; '' for none.
    tags_side: Side that `tags` describes: 'source' or 'target'.
  """

  source: str = ''
  target: str = ''
  lines: int = 0
  tags: str = ''
  tags_side: Literal['source', 'target'] = 'source'

  def __post_init__(self):
    if bool(self.source) != bool(self.target):
      raise InputError('--source and --target: give both, or neither')


class RunWithText:
  """A run and a text; each is read only when it is first needed.

  Attributes:
    workdir: Run directory.
    run: Trained model of one direction.
    choice: Choice of the text.
  """

  def __init__(self, workdir: Path, run: TrainedModel, choice: TextChoice):
    self.workdir = workdir
    self.run = run
    self.choice = choice

  @functools.cached_property
  def lines(self) -> tuple[tuple[str, str], ...]:
    """Source and target lines.

    Raises:
      InputError: The text cannot be read or has no lines.
    """
    lines = itertools.islice(self._read(), self.choice.lines or None)
    found = tuple(lines)
    if not found:
      raise InputError(
        f'{self.choice.source or self.workdir}: there are no lines to look at'
      )
    return found

  @functools.cached_property
  def pairs(self) -> tuple[TextPair, ...]:
    """The lines as ids, without those where a side is empty or too long."""
    longest = self.run.config.data.filter.max_length
    pairs = tuple(
      pair
      for pair in self._encoded()
      if min(map(len, pair[:2])) > 1 and max(map(len, pair[:2])) <= longest
    )
    left_out = len(self.lines) - len(pairs)
    if left_out:
      logger.info(
        '%d of %d lines are left out: empty, or over data.filter.max_length=%d',
        left_out,
        len(self.lines),
        longest,
      )
    if not pairs:
      raise InputError(
        f'{self.choice.source or self.workdir}: every line is empty or has '
        f'more than data.filter.max_length={longest} subwords'
      )
    return pairs

  @functools.cached_property
  def metrics(self) -> tuple[dict[str, Any], ...]:
    """The lines of metrics.jsonl, without those that are damaged.

    Raises:
      InputError: The file does not exist or cannot be read.
    """
    path = self.workdir / 'metrics.jsonl'
    if not path.exists():
      raise InputError(
        f'{path}: no such file; training writes it into the run directory'
      )
    return tuple(read_metrics(path))

  def of_kind(self, kind: str) -> list[dict[str, Any]]:
    """Return the metrics of a kind: 'train', 'valid' or 'fusion'.

    Raises:
      InputError: The run has none of this kind.
    """
    rows = [row for row in self.metrics if row['kind'] == kind]
    if not rows:
      raise InputError(
        f'{self.workdir}/metrics.jsonl: has no line of kind {kind!r}'
      )
    return rows

  def _read(self) -> Iterator[tuple[str, str]]:
    if self.choice.source:
      yield from read_files(Path(self.choice.source), Path(self.choice.target))
      return
    (direction,) = self.run.config.data.all_directions
    yield from read_validation(self.workdir, direction.name)

  def _encoded(self) -> Iterator[TextPair]:
    run = self.run
    for number, (source, target) in enumerate(self.lines, start=1):
      yield TextPair(
        _ids(source, run.source_tokenizer),
        _ids(target, run.target_tokenizer),
        number,
      )


def _ids(text: str, tokenizer: Tokenizer) -> Int32[np.ndarray, ' S']:
  ids = [*tokenizer.encode(normalise(text)), tokenizer.vocabulary.end]
  return np.array(ids, np.int32)
