"""Corpora named by the strings of `DataConfig`, read as line pairs.

Datasets of TensorFlow Datasets are read without TensorFlow.
"""

import dataclasses
import functools
import itertools
import logging
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fusion_jax.config import DataConfig
from fusion_jax.config.data import Direction
from fusion_jax.data.mixing import apportioned, shares
from fusion_jax.data.tokenizer import normalised
from fusion_jax.errors import InputError, first_line
from fusion_jax.files import file_digest, open_file, read_errors, whole_lines
from fusion_jax.startup import with_progress

logger = logging.getLogger(__name__)

# Pairs of the embedded validation and test splits.
EMBEDDED_HELD_OUT_PAIRS = 1_000

_TFDS = re.compile(r'([^\[\]]+):(\w+(?:\[[^\[\]]*\])?)')
_READ_AT_ONCE = 1_000
# A text that is kept in a file, or scored from one, is one line.
_BREAK = re.compile(r'[\r\n]+')

Pairs = Iterator[tuple[str, str]]


@dataclasses.dataclass(frozen=True)
class Corpus:
  """Line pairs as they stand, their number, and a name of their content."""

  read: Callable[[], Pairs]
  count: Callable[[], int]
  fingerprint: Callable[[], str]


def open_corpus(name: str, data: DataConfig) -> Corpus:
  kind, _, rest = name.partition(':')
  if kind == 'tfds':
    return _tfds(rest, data)
  if kind == 'embedded':
    return _embedded(rest, data)
  if '{lang}' not in name:
    raise InputError(
      f"corpus {name!r}: give a file name with {{lang}} in it, as in 'train."
      "{lang}.gz', 'tfds:NAME/CONFIG:SPLIT' or 'embedded:SPLIT'"
    )
  source, target = _paths(name, data)
  return Corpus(
    lambda: read_files(source, target),
    lambda: count_lines(source, target),
    lambda: f'files {_digest(source)} {_digest(target)}',
  )


def _paths(pattern: str, data: DataConfig) -> list[Path]:
  languages = data.source_language, data.target_language
  names = (pattern.replace('{lang}', language) for language in languages)
  return [Path(data.root, name) for name in names]


def _digest(path: Path) -> str:
  with read_errors(path):
    return file_digest(path)


def check_files(name: str, data: DataConfig, field: str) -> None:
  """Refuse a corpus of text files that do not exist."""
  for path in _paths(name, data) if '{lang}' in name else ():
    if not path.exists():
      raise InputError(
        f'{path.absolute()}: no such file; config.{field} names it by '
        f'{name!r}, and config.data.root is {data.root!r}'
      )


def read_files(source: Path, target: Path) -> Pairs:
  pairs = itertools.zip_longest(_read_lines(source), _read_lines(target))
  for source_line, target_line in pairs:
    if source_line is None or target_line is None:
      count_lines(source, target)
    yield source_line, target_line


def count_lines(source: Path, target: Path) -> int:
  """Count the lines of each of two files, which must be equal."""
  counts = []
  for path in (source, target):
    with open_file(path) as file:
      counts.append(sum(1 for _ in file))
    if not counts[-1]:
      raise InputError(f'{path}: the file is empty')
  if counts[0] != counts[1]:
    raise InputError(
      f'{source} has {counts[0]:,} lines but {target} has {counts[1]:,}: line '
      'i of one must translate line i of the other'
    )
  return counts[0]


def _read_lines(path: Path) -> Iterator[str]:
  with open_file(path) as file:
    for number, line in enumerate(whole_lines(file), start=1):
      try:
        yield line.decode('utf-8')
      except UnicodeDecodeError as error:
        raise InputError(
          f'{path}, line {number}: not UTF-8 ({error.reason} at byte '
          f'{error.start + 1} of the line)'
        ) from None


def _embedded(split: str, data: DataConfig) -> Corpus:
  # Babel takes long to import, and only this corpus needs it.
  from fusion_jax.data import embedded

  pairs = data.embedded_pairs if split == 'train' else EMBEDDED_HELD_OUT_PAIRS
  languages = data.source_language, data.target_language
  embedded.check(*languages, split, pairs)
  return Corpus(
    lambda: embedded.generate(*languages, split, pairs),
    lambda: pairs,
    lambda: f'embedded {embedded.VERSION} {split} {pairs} {languages}',
  )


def _tfds(rest: str, data: DataConfig) -> Corpus:
  match = _TFDS.fullmatch(rest)
  if not match:
    raise InputError(
      f"corpus 'tfds:{rest}': give it as 'tfds:NAME/CONFIG:SPLIT', as in "
      "'tfds:wmt14_translate/de-en:train'"
    )
  name, split = match.groups()
  builder = _prepared_builder(name)
  features = sorted(builder.info.features)
  languages = data.source_language, data.target_language
  for language in languages:
    if language not in features:
      raise InputError(
        f'tfds:{name}: no language {language!r}; it has {", ".join(features)}'
      )
  try:
    examples = builder.as_data_source(split=split)
  except ValueError as error:
    raise InputError(f'tfds:{rest}: {first_line(error)}') from error
  whole = builder.info.splits[split.partition('[')[0]]
  return Corpus(
    lambda: _read_examples(examples, languages, f'tfds:{rest}'),
    lambda: len(examples),
    lambda: (
      f'tfds {builder.info.full_name} {split} {whole.num_bytes} '
      f'{list(whole.shard_lengths)}'
    ),
  )


def _prepared_builder(name: str) -> Any:
  # TFDS takes a second to import. The second import registers the translation
  # datasets, without all of the catalogue.
  import tensorflow_datasets as tfds
  import tensorflow_datasets.translate

  array_record = tfds.core.FileFormat.ARRAY_RECORD
  data_dir = os.environ.get('TFDS_DATA_DIR')
  try:
    builder = tfds.builder(name, data_dir=data_dir)
    if not builder.is_prepared():
      logger.info('tfds:%s is not on disk: downloading and preparing', name)
      builder = tfds.builder(name, data_dir=data_dir, file_format=array_record)
      builder.download_and_prepare()
  except Exception as error:
    raise InputError(
      f'tfds:{name}: cannot be opened or prepared ({first_line(error)})'
    ) from error
  if builder.info.file_format != array_record:
    raise InputError(
      f'tfds:{name}: is stored as {builder.info.file_format.value}, which only '
      'TensorFlow reads; prepare it with file_format=array_record, in '
      'another TFDS_DATA_DIR'
    )
  return builder


def _read_examples(
  examples: Any, languages: tuple[str, str], where: str
) -> Pairs:
  numbers = iter(range(len(examples)))
  while some := list(itertools.islice(numbers, _READ_AT_ONCE)):
    for number, example in zip(some, examples.__getitems__(some), strict=True):
      place = f'{where}, example {number}'
      source, target = (_text(example[code], place) for code in languages)
      yield source, target


def _text(value: bytes, where: str) -> str:
  try:
    return _BREAK.sub(' ', value.decode('utf-8')).rstrip()
  except UnicodeDecodeError as error:
    raise InputError(f'{where}: not UTF-8 ({error.reason})') from None


class Text:
  """Text of a direction: its corpora, and the tags before its source lines."""

  def __init__(self, data: DataConfig, direction: Direction):
    languages = direction.languages
    self.direction = direction
    self.tags = data.tags(*languages)
    self._several = bool(data.directions)
    section = 'data.directions' if data.directions else 'data'
    between = data.between(*languages)
    self._corpora: dict[str, list[Corpus]] = {}
    self.fingerprints: dict[str, list[str]] = {}
    for split in ('train', 'valid', 'test'):
      for name in getattr(direction, split):
        check_files(name, between, f'{section}.{split}')
        corpus = open_corpus(name, between)
        self._corpora.setdefault(split, []).append(corpus)
        self.fingerprints.setdefault(split, []).append(corpus.fingerprint())

  @functools.cached_property
  def totals(self) -> dict[str, int]:
    return {
      split: sum(corpus.count() for corpus in corpora)
      for split, corpora in self._corpora.items()
    }

  def read(self, split: str, what: str) -> Pairs:
    """Return the pairs of a split as they stand; `what` is for the log."""
    what = f'{what}, {self.direction.name}' if self._several else what
    corpora = self._corpora[split]
    pairs = itertools.chain.from_iterable(corpus.read() for corpus in corpora)
    return with_progress(pairs, what, self.totals[split])


def tokenizer_pair_count(data: DataConfig, texts: Sequence[Text]) -> int:
  """Return how many training pairs a tokenizer is trained on."""
  total = sum(text.totals['train'] for text in texts)
  pairs = data.tokenizer.training_lines // (2 if data.tokenizer.joint else 1)
  return min(pairs or total, total)


def tokenizer_pairs(data: DataConfig, texts: Sequence[Text]) -> Pairs:
  """Yield training pairs, as many as the tokenizer may have lines.

  Those of a direction, in proportion to its share of the training, are evenly
  spaced; where it has too few, they are repeated.
  """
  totals = [text.totals['train'] for text in texts]
  weights = [text.direction.weight for text in texts]
  parts = shares(totals, weights, data.mixing_temperature)
  counts = apportioned(tokenizer_pair_count(data, texts), parts).tolist()
  for text, total, count in zip(texts, totals, counts, strict=True):
    pairs = text.read('train', 'reading for the tokenizer')
    for index, pair in enumerate(pairs):
      if times := (index + 1) * count // total - index * count // total:
        yield from itertools.repeat(normalised(pair), times)
