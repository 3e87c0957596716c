"""A run together with the text that views measure it on."""

import argparse
import functools
import hashlib
import itertools
import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int32

from fusion_jax.analysis.text_choice import TextChoice
from fusion_jax.config.serialization import to_dict
from fusion_jax.data.text_files import read_pairs as read_files
from fusion_jax.decoding.ensemble import load_chosen
from fusion_jax.decoding.sentences import line_ids
from fusion_jax.decoding.translate import Translator
from fusion_jax.errors import InputError
from fusion_jax.json_files import file_digest
from fusion_jax.metrics import Scores, corpus_scores
from fusion_jax.runs.directory import read_metrics, read_validation
from fusion_jax.runs.loading import TrainedModel

logger = logging.getLogger(__name__)


class TextPair(NamedTuple):
  """Ids of a line with the end symbols, and its number in the text, from 1."""

  source: Int32[np.ndarray, ' S']
  target: Int32[np.ndarray, ' T']
  line: int


class RunWithText:
  """A run and a text; each is read only when it is first needed.

  Attributes:
    workdir: Run directory.
    run: Trained model of one direction.
    choice: Choice of the text.
    folder: Folder that views are written to; None: nothing is written.
  """

  def __init__(
    self,
    workdir: Path,
    run: TrainedModel,
    choice: TextChoice,
    folder: Path | None = None,
  ):
    self.workdir = workdir
    self.folder = folder
    self.run = run
    self.choice = choice

  @functools.cached_property
  def lines(self) -> tuple[tuple[str, str], ...]:
    """Source and target lines."""
    read = itertools.islice(self._read(), self.choice.lines or None)
    lines = tuple(read)
    if not lines:
      raise InputError(
        f'{self.choice.source or self.workdir}: there are no lines to look at'
      )
    return lines

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
  def digest(self) -> str:
    """SHA-256 of what results depend on: text, direction, search, weights."""
    run, data = self.run, self.run.config.data
    about = {
      'lines': self.lines,
      'longest': data.filter.max_length,
      'tags': self.choice.tags and _content_digest(Path(self.choice.tags)),
      'tags_side': self.choice.tags_side,
      'direction': [data.source_language, data.target_language],
      'tokenizers': [run.source_tokenizer.digest, run.target_tokenizer.digest],
      'model': to_dict(run.config.model),
      'decoding': to_dict(run.config.decoding),
      'step': run.step,
      'steps': run.steps,
    }
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    for leaf in jax.tree.leaves(run.parameters):
      digest.update(np.asarray(leaf).tobytes())
    return digest.hexdigest()

  @functools.cached_property
  def metrics(self) -> tuple[dict[str, Any], ...]:
    """The lines of metrics.jsonl, without those that are damaged."""
    path = self.workdir / 'metrics.jsonl'
    if not path.exists():
      raise InputError(
        f'{path}: no such file; training writes it into the run directory'
      )
    return tuple(read_metrics(path))

  def of_kind(self, kind: str) -> list[dict[str, Any]]:
    """Return the metrics of a kind: 'train', 'valid' or 'fusion'."""
    rows = [row for row in self.metrics if row['kind'] == kind]
    if not rows:
      raise InputError(
        f'{self.workdir}/metrics.jsonl: has no line of kind {kind!r}'
      )
    return rows

  def check_finite(self) -> None:
    """Refuse a run that has diverged; views of its metrics remain possible."""
    for path, leaf in jax.tree.leaves_with_path(self.run.parameters):
      if not jnp.isfinite(leaf).all():
        name = '/'.join(part.key for part in path)
        raise InputError(
          f'{self.workdir}: its parameters of step {self.run.step} are not '
          f'finite, {name} among them; choose an earlier --step'
        )

  def scores(self, run: TrainedModel) -> Scores:
    """Translate the lines with the search of a run, and score them."""
    sources, references = zip(*self.lines, strict=True)
    translator = Translator(run, run.config.decoding)
    translations = list(translator.translate(sources))
    return corpus_scores(translations, references, run.target_words)

  def _read(self) -> Iterator[tuple[str, str]]:
    if self.choice.source:
      yield from read_files(Path(self.choice.source), Path(self.choice.target))
      return
    (direction,) = self.run.config.data.all_directions
    yield from read_validation(self.workdir, direction.name)

  def _encoded(self) -> Iterator[TextPair]:
    tokenizers = self.run.source_tokenizer, self.run.target_tokenizer
    for number, pair in enumerate(self.lines, start=1):
      source, target = (
        np.array(line_ids(text, tokenizer, f'line {number}'), np.int32)
        for text, tokenizer in zip(pair, tokenizers, strict=True)
      )
      yield TextPair(source, target, number)


def numbered(
  rows: Sequence[Mapping[str, Any]], prefix: str
) -> dict[str, list[Any]]:
  """Return the metrics that differ in a number."""
  pattern = re.compile(re.escape(prefix) + r'(\d+)')
  numbers = sorted(
    int(match[1]) for match in map(pattern.fullmatch, rows[-1]) if match
  )
  return {str(n): [row.get(f'{prefix}{n}') for row in rows] for n in numbers}


def open_run_with_text(
  arguments: argparse.Namespace, folder: Path | None = None
) -> RunWithText:
  """Open the run and the text that the flags name."""
  choice = TextChoice.of_flags(arguments)
  run = load_chosen(arguments)
  return RunWithText(arguments.workdir, run, choice, folder)


def _content_digest(path: Path) -> str:
  try:
    return file_digest(path)
  except OSError as error:
    raise InputError(f'{path}: {error.strerror}') from error
