"""Reader of a prepared corpus: ids by random access, lengths, tokenizers.

The folder, written by `fusion_jax.data.prepare`:
  settings.json               what was prepared and how
  report.json                 how many pairs were kept, and why others were
                              not; digests of itself and of the files that
                              have no checksums of their own
  source.model, target.model  the tokenizers
  dataset_info.json, features.json, parallel_text-SPLIT.array_record-NNNNN
                              a TFDS dataset
  SPLIT.lengths.npy           int32 [N, 2]: source and target, in subwords
  SPLIT.rows.npy              int64 [N]: the records that are examples; only
                              where not all of them are
A split holds several directions one after the other, in the order of the
report, which says how many pairs each of them has in the split.
"""

import bisect
import dataclasses
import itertools
import tokenize
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import pydantic
from jaxtyping import Int32

from fusion_jax.data import records
from fusion_jax.data.encoding import PairEncoder
from fusion_jax.data.records import Example
from fusion_jax.data.tokenizer import Tokenizer
from fusion_jax.errors import InputError
from fusion_jax.json_files import (
  DamagedError,
  check_seal,
  file_digest,
  read_json,
)


def open_array(path: Path, dtype: type[np.integer]) -> np.ndarray:
  """Memory-map a file."""
  try:
    array = np.load(path, mmap_mode='r')
  except tokenize.TokenError as error:  # The header is a Python literal.
    raise ValueError(f'{path}: {error}') from error
  if array.dtype != dtype:
    raise ValueError(f'{path}: holds {array.dtype}')
  return array


def are_rows(rows: np.ndarray | None, examples: int, stored: int) -> bool:
  """Return whether the rows are ascending positions of stored records."""
  if rows is None:
    return examples == stored
  if rows.shape != (examples,):
    return False
  return bool(np.all(np.diff(rows, prepend=-1, append=stored) > 0))


def are_lengths(
  lengths: np.ndarray, examples: int, subwords: np.ndarray, sampled: bool
) -> bool:
  """Return whether lengths match the counts of examples and subwords."""
  if lengths.shape != (examples, 2) or lengths.min(initial=1) < 1:
    return False
  total = lengths.sum(axis=0, dtype=np.int64)
  return bool(np.all(total >= subwords if sampled else total == subwords))


SETTINGS = 'settings.json'
REPORT = 'report.json'
SOURCE_MODEL = 'source.model'
TARGET_MODEL = 'target.model'
LENGTHS = '{split}.lengths.npy'
ROWS = '{split}.rows.npy'

_Count = Annotated[int, pydantic.Field(strict=True, ge=0, lt=2**63)]
_Alpha = Annotated[float, pydantic.Field(strict=True, ge=0, le=1)]


@dataclasses.dataclass(frozen=True)
class _Counts:
  """Fields of the report of a part of a split that are read."""

  pairs: _Count
  kept: _Count
  subwords: tuple[_Count, _Count]


@dataclasses.dataclass(frozen=True)
class _SplitCounts(_Counts):
  directions: dict[str, _Counts] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class _Report:
  splits: dict[str, _SplitCounts]
  files: dict[str, str]


@dataclasses.dataclass(frozen=True)
class _Direction:
  languages: tuple[str, str]
  tags: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class _Settings:
  """Fields of the settings that are read.

  A corpus of one direction has `languages` and `tags`, others `directions`.
  """

  sampling: tuple[_Alpha, _Alpha]
  languages: tuple[str, str] = ('', '')
  tags: list[str] = dataclasses.field(default_factory=list)
  directions: list[_Direction] = dataclasses.field(default_factory=list)


class PreparedCorpus:
  """Content of a prepared folder.

  Attributes:
    directory: Folder of the corpus.
    report: Number of pairs read, kept and dropped, for each split.
    source_tokenizer: Tokenizer of the source language.
    target_tokenizer: Tokenizer of the target language; equal to the source
      tokenizer if joint.
  """

  def __init__(self, directory: str | Path):
    """Open a folder."""
    self.directory = Path(directory)
    self.report = self._read_json(REPORT, _Report)
    self._check_files(SETTINGS, SOURCE_MODEL, TARGET_MODEL)
    self.source_tokenizer = Tokenizer.from_file(self.directory / SOURCE_MODEL)
    self.target_tokenizer = Tokenizer.from_file(self.directory / TARGET_MODEL)
    settings = self._read_json(SETTINGS, _Settings)
    if not (settings.get('directions') or 'languages' in settings):
      raise _damaged(self.directory, SETTINGS)
    alphas = tuple(settings['sampling'])
    self._encoders = {
      direction: PairEncoder(
        (self.source_tokenizer.tagged(tags), self.target_tokenizer), alphas
      )
      for direction, tags in _tags(settings).items()
    }

  def has_split(self, name: str) -> bool:
    """Return whether there is a split of that name."""
    return name in self.report['splits']

  def split(self, name: str, direction: str = '') -> 'Split':
    """Return the examples of 'train', 'valid' or 'test'."""
    if not self.has_split(name):
      raise InputError(
        f'{self.directory}: no split {name!r}; it has '
        f'{", ".join(self.report["splits"])}'
      )
    parts = self._parts(name)
    found = [part.direction for part in parts]
    if direction and direction not in found:
      raise InputError(
        f'{self.directory}: split {name!r} has nothing of {direction}; it has '
        f'{", ".join(found)}'
      )
    self._check_files(LENGTHS.format(split=name), ROWS.format(split=name))
    return Split(self.directory, name, parts, direction)

  def _check_files(self, *names: str) -> None:
    """Compare files with their digests."""
    written = self.report['files']
    for name in names:
      if name in written and written[name] != _digest(self.directory / name):
        raise _damaged(self.directory, name)

  def _parts(self, name: str) -> tuple['DirectionSplit', ...]:
    report = self.report['splits'][name]
    (only, *_) = self._encoders
    found = report.get('directions', {only: report})
    if not found.keys() <= self._encoders.keys():
      raise _damaged(self.directory, SETTINGS)
    stored = 'kept' if name == 'train' else 'pairs'
    return tuple(
      DirectionSplit(
        direction,
        self._encoders[direction],
        own[stored],
        own['kept'],
        tuple(own['subwords']),
      )
      for direction, own in found.items()
    )

  def _read_json(self, name: str, kind: type) -> dict[str, Any]:
    try:
      values = read_json(self.directory / name, kind)
      if name == REPORT:
        check_seal(values, name)
    except InputError as error:
      raise InputError(
        f'{error}; delete the folder and prepare it again'
      ) from None
    except DamagedError:
      raise _damaged(self.directory, name) from None
    return values


def file_digests(directory: Path) -> dict[str, str]:
  """Return the SHA-256 of each file of a folder but the records, by name.

  ArrayRecord verifies its own checksums on every read.
  """
  return {
    path.name: file_digest(path)
    for path in sorted(directory.iterdir())
    if not path.name.startswith(f'{records.DATASET}-')
  }


def _digest(path: Path) -> str:
  """Return the digest of a file; '' if it cannot be read."""
  try:
    return file_digest(path)
  except OSError:
    return ''


def _tags(settings: dict[str, Any]) -> dict[str, list[str]]:
  """Return the tags before the source lines of each direction."""
  directions = settings.get('directions', [settings])
  return {
    '-'.join(direction['languages']): direction.get('tags', [])
    for direction in directions
  }


class DirectionSplit(NamedTuple):
  """One direction of a split.

  Attributes:
    direction: Name of the direction, such as 'de-en'.
    encoder: Encoder of its lines.
    records: Number of stored records.
    examples: Number of records that are examples.
    subwords: Source and target subwords of all examples, in their plain
      segmentation.
  """

  direction: str
  encoder: PairEncoder
  records: int
  examples: int
  subwords: tuple[int, int]


class Split:
  """Examples of a split, by random access.

  Attributes:
    lengths: Source and target lengths in subwords, tags and the end symbol
      included, int32 [N, 2], memory-mapped. In a sampled split these are the
      longest lengths that `sample` may return.
    sampled: Whether `sample` draws a new segmentation at every call.
    directions: Number of examples of each direction, in their order.
  """

  def __init__(
    self,
    directory: Path,
    name: str,
    parts: tuple[DirectionSplit, ...],
    direction: str = '',
  ):
    """Open the shards of a split."""
    self._arguments = (directory, name, parts, direction)
    self._choose(parts, direction)
    self.sampled = name == 'train' and any(
      any(encoder.alphas) for encoder in self._encoders
    )
    shards = sorted(directory.glob(f'{records.DATASET}-{name}.array_record-*'))
    rows = directory / ROWS.format(split=name)
    try:
      lengths = open_array(directory / LENGTHS.format(split=name), np.int32)
      self._rows = open_array(rows, np.int64) if rows.exists() else None
      self._records = records.Reader(shards)
    except (EOFError, OSError, ValueError, RuntimeError) as error:
      raise _damaged(directory, f'split {name!r}') from error
    if not self._fits(lengths, parts):
      raise _damaged(directory, f'split {name!r}')
    self.lengths: Int32[np.ndarray, 'N 2'] = lengths[
      self._first : self._first + self._ends[-1]
    ]

  def _fits(
    self, lengths: np.ndarray, parts: tuple[DirectionSplit, ...]
  ) -> bool:
    """Return whether records, rows, lengths and report fit together."""
    examples = sum(part.examples for part in parts)
    stored = sum(part.records for part in parts)
    subwords = np.sum([part.subwords for part in parts], axis=0)
    return (
      len(self._records) == stored
      and are_rows(self._rows, examples, stored)
      and are_lengths(lengths, examples, subwords, self.sampled)
    )

  def _choose(self, parts: tuple[DirectionSplit, ...], direction: str) -> None:
    """Find the examples and the records of the direction, or of all."""
    chosen = [p for p in parts if direction in ('', p.direction)]
    before = parts[: parts.index(chosen[0])]
    self.directions = {part.direction: part.examples for part in chosen}
    self._encoders = [part.encoder for part in chosen]
    self._ends = list(itertools.accumulate(self.directions.values()))
    self._first = sum(part.examples for part in before)
    first_record = sum(part.records for part in before)
    count = sum(part.records for part in chosen)
    self._own_records = range(first_record, first_record + count)

  def __reduce__(self):
    """Pickle the file names instead of the content."""
    return Split, self._arguments

  def __len__(self) -> int:
    """Return the number of examples."""
    return len(self.lengths)

  def __getitem__(self, index: int) -> Example:
    """Return the ids of a pair, in their plain segmentation."""
    return self._example(index, self._record(index))

  def __getitems__(self, indices: Sequence[int]) -> list[Example]:
    """Return the ids of many pairs."""
    return [self[index] for index in indices]

  def sample(self, index: int, seed: int) -> Example:
    """Return the ids of a pair, in a random segmentation if it is sampled."""
    record = self._record(index)
    if not self.sampled:
      return self._example(index, record)
    longest = tuple(self.lengths[index].tolist())
    encoder = self._encoder(index)
    return encoder.sample(records.texts(record), (seed, index), longest)

  def texts(self) -> tuple[list[str], list[str]]:
    """Return all source and all target lines of 'valid' or 'test', in order.

    The lines are as they stand in the corpus, and include those that are no
    examples because they are empty or too long.
    """
    name = self._arguments[1]
    if name == 'train':
      raise ValueError('the texts of the training split are not kept')
    pairs = [records.texts(self._records[i]) for i in self._own_records]
    return [source for source, _ in pairs], [target for _, target in pairs]

  def _row(self, index: int) -> int:
    size = len(self)
    if not -size <= index < size:
      raise IndexError(f'example {index} of {size}')
    index = self._first + int(index) % size
    return index if self._rows is None else int(self._rows[index])

  def _record(self, index: int) -> bytes:
    return self._records[self._row(index)]

  def _encoder(self, index: int) -> PairEncoder:
    return self._encoders[bisect.bisect_right(self._ends, index % len(self))]

  def _example(self, index: int, record: bytes) -> Example:
    example = records.example(record)
    if len(example.source):
      return example
    return self._encoder(index).encode(records.texts(record))


def _damaged(directory: Path, part: str) -> InputError:
  return InputError(
    f'{directory}: {part} is missing or damaged; delete the folder and '
    'prepare it again'
  )
