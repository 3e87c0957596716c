"""A run together with the text that views measure it on."""

import argparse
import dataclasses
import functools
import hashlib
import itertools
import json
import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int32

from fusion_jax.analysis import TextChoice
from fusion_jax.config import ModelConfig, Side
from fusion_jax.config.serialization import to_dict
from fusion_jax.data.corpora import read_files
from fusion_jax.data.tokenizer import Tokenizer
from fusion_jax.decoding.ensemble import load_chosen
from fusion_jax.decoding.sentences import line_ids
from fusion_jax.errors import InputError
from fusion_jax.evaluation.compare import translate
from fusion_jax.files import file_digest, read_errors
from fusion_jax.metrics import Scores, corpus_scores
from fusion_jax.runs.directory import read_metrics, read_validation
from fusion_jax.runs.loading import TrainedModel

logger = logging.getLogger(__name__)

SIDES: tuple[Side, ...] = get_args(Side)
# Results of a view as JSON values: mappings, lists, numbers, strings.
Numbers = Mapping[str, Any]


def sides_of(config: ModelConfig, *schemes: str) -> tuple[Side, ...]:
  """Return the sides whose fusion is one of the schemes, the encoder first."""
  return tuple(side for side in SIDES if config.side(side).fusion in schemes)


def nullable(values: np.ndarray) -> list[Any]:
  """Return nested lists of JSON numbers, with None for what is not finite."""
  numbers = values.astype(object)
  numbers[~np.isfinite(values)] = None
  return numbers.tolist()


class TextPair(NamedTuple):
  """Ids of a line with the end symbols, and its number in the text, from 1."""

  source: Int32[np.ndarray, ' S']
  target: Int32[np.ndarray, ' T']
  line: int

  def ids(self, side: Side) -> Int32[np.ndarray, ' T']:
    """Return the ids of a side."""
    return self.source if side == 'encoder' else self.target


@dataclasses.dataclass
class RunWithText:
  """A run and a text; each is read only when it is first needed.

  The folder is that of the views; None: what is unfinished is not kept.
  """

  workdir: Path
  run: TrainedModel
  choice: TextChoice
  folder: Path | None = None

  @functools.cached_property
  def lines(self) -> tuple[tuple[str, str], ...]:
    """Source and target lines."""
    if self.choice.source:
      pairs = read_files(Path(self.choice.source), Path(self.choice.target))
    else:
      (direction,) = self.run.config.data.all_directions
      pairs = read_validation(self.workdir, direction.name)
    lines = tuple(itertools.islice(pairs, self.choice.lines or None))
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
      for pair in map(self._encoded, itertools.count(1), self.lines)
      if all(1 < len(ids) <= longest for ids in pair[:2])
    )
    if left_out := len(self.lines) - len(pairs):
      said = f'{left_out} of {len(self.lines)} lines are left out: empty, or'
      logger.info('%s over data.filter.max_length=%d', said, longest)
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
      'tags': self.choice.tags and _digest_of(self.choice.tags),
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
        f'{self.workdir}/metrics.jsonl: has no line of kind {kind!r}; train '
        'longer'
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

  def tokenizer(self, side: Side) -> Tokenizer:
    """Return the tokenizer of a side."""
    run = self.run
    return run.source_tokenizer if side == 'encoder' else run.target_tokenizer

  def scores(self, run: TrainedModel) -> Scores:
    """Translate the lines with the search of a run, and score them."""
    sources, references = zip(*self.lines, strict=True)
    return corpus_scores(translate(run, sources), references, run.target_words)

  def _encoded(self, number: int, pair: tuple[str, str]) -> TextPair:
    source, target = (
      np.array(line_ids(text, self.tokenizer(side), f'line {number}'), np.int32)
      for text, side in zip(pair, SIDES, strict=True)
    )
    return TextPair(source, target, number)


def _digest_of(path: str) -> str:
  with read_errors(path):
    return file_digest(Path(path))


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
  names = (field.name for field in dataclasses.fields(TextChoice))
  choice = TextChoice(**{name: getattr(arguments, name) for name in names})
  run = load_chosen(arguments)
  return RunWithText(arguments.workdir, run, choice, folder)
