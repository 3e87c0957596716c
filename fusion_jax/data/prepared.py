"""A prepared corpus: ids by random access, lengths, tokenizers, report.

The folder, written by `fusion_jax.data.prepare`:
  settings.json               what was prepared and how
  report.json                 how many pairs were kept, and why others not;
                              digests of itself and of what has no checksums
  source.model, target.model  the tokenizers
  dataset_info.json, features.json, parallel_text-SPLIT.array_record-NNNNN
                              a TFDS dataset
  SPLIT.lengths.npy           int32 [N, 2]: source and target, in subwords
  SPLIT.rows.npy              int64 [N]: the records that are examples; only
                              where not all of them are
Of several directions a split holds one after the other, in the order of the
report, which tells how many pairs each of them has there.
"""

import bisect
import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import pydantic
from jaxtyping import Int32

from fusion_jax.data import records
from fusion_jax.data.arrays import are_lengths, are_rows, open_array
from fusion_jax.data.encoding import PairEncoder
from fusion_jax.data.records import Example
from fusion_jax.data.tokenizer import Tokenizer
from fusion_jax.errors import InputError
from fusion_jax.json_input import read_json
from fusion_jax.seals import DamagedError, check_seal, file_digest

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
  """What is read of the report of a part of a split."""

  pairs: _Count
  kept: _Count
  subwords: tuple[_Count, _Count]


@dataclasses.dataclass(frozen=True)
class _SplitCounts(_Counts):
  directions: dict[str, _Counts] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class _Report:
  splits: dict[str, _SplitCounts]


@dataclasses.dataclass(frozen=True)
class _Direction:
  languages: tuple[str, str]
  tags: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class _Settings:
  """What is read of the settings; one direction has no list of them."""

  sampling: tuple[_Alpha, _Alpha]
  languages: tuple[str, str] = ('', '')
  tags: list[str] = dataclasses.field(default_factory=list)
  directions: list[_Direction] = dataclasses.field(default_factory=list)


class PreparedCorpus:
  """What a prepared folder holds.

  Attributes:
    directory: the folder.
    report: for each split how many pairs were read, kept and dropped.
    source_tokenizer: of the source language.
    target_tokenizer: of the target language; equal to the source's if joint.
  """

  def __init__(self, directory: str | Path):
    """Opens a folder.

    Raises:
      InputError: it is not a prepared corpus, or a damaged one.
    """
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
    """Whether there is a split of that name."""
    return name in self.report['splits']

  def split(self, name: str, direction: str = '') -> 'Split':
    """The examples of 'train', 'valid' or 'test'.

    Args:
      name: of the split.
      direction: 'de-en' and the like; '': all, one after the other.

    Raises:
      InputError: there is no such split, or nothing of that direction in it.
    """
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
    """Compares files with their digests; corpora from before have none."""
    written = self.report.get('files', {})
    for name in names:
      if name in written and written[name] != _digest(self.directory / name):
        raise _damaged(self.directory, name)

  def _parts(self, name: str) -> tuple['Part', ...]:
    report = self.report['splits'][name]
    (only, *_) = self._encoders
    found = report.get('directions', {only: report})
    if not found.keys() <= self._encoders.keys():
      raise _damaged(self.directory, SETTINGS)
    stored = 'kept' if name == 'train' else 'pairs'
    return tuple(
      Part(
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
      check_seal(values, name)
    except InputError as error:
      raise InputError(
        f'{error}; delete the folder and prepare it again'
      ) from None
    except DamagedError:
      raise _damaged(self.directory, name) from None
    return values


def file_digests(directory: Path) -> dict[str, str]:
  """The SHA-256 of each file of a folder but the records, by name.

  ArrayRecord compares checksums of its own whenever it reads.
  """
  return {
    path.name: file_digest(path)
    for path in sorted(directory.iterdir())
    if not path.name.startswith(f'{records.DATASET}-')
  }


def _digest(path: Path) -> str:
  """Of a file; '' if it cannot be read."""
  try:
    return file_digest(path)
  except OSError:
    return ''


def _tags(settings: dict[str, Any]) -> dict[str, list[str]]:
  """The tags before the source lines of each direction."""
  directions = settings.get('directions', [settings])
  return {
    '-'.join(each['languages']): each.get('tags', []) for each in directions
  }


class Part(NamedTuple):
  """What a split has of one direction.

  direction: 'de-en' and the like.
  encoder: of its lines.
  records: how many are stored.
  examples: how many of these are examples.
  subwords: of all examples, source and target, in their plain segmentation.
  """

  direction: str
  encoder: PairEncoder
  records: int
  examples: int
  subwords: tuple[int, int]


class Split:
  """The examples of a split, by random access.

  Attributes:
    lengths: int32 [N, 2], memory-mapped: of source and target in subwords,
      tags and the end symbol included. Of a split that is sampled, the longest
      that `sample` may return.
    sampled: whether `sample` draws a new segmentation at every call.
    directions: the examples of each direction in it, in their order.
  """

  def __init__(
    self,
    directory: Path,
    name: str,
    parts: tuple[Part, ...],
    direction: str = '',
  ):
    """Opens the shards of a split.

    Args:
      directory: the prepared folder.
      name: of the split.
      parts: all that the split holds, in its order.
      direction: of the one part to take; '': all.
    """
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

  def _fits(self, lengths: np.ndarray, parts: tuple[Part, ...]) -> bool:
    """Whether records, rows, lengths and report are of the same text."""
    examples = sum(part.examples for part in parts)
    stored = sum(part.records for part in parts)
    subwords = np.sum([part.subwords for part in parts], axis=0)
    return (
      len(self._records) == stored
      and are_rows(self._rows, examples, stored)
      and are_lengths(lengths, examples, subwords, self.sampled)
    )

  def _choose(self, parts: tuple[Part, ...], direction: str) -> None:
    """Finds the examples and the records of the direction, or of all."""
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
    """Pickles as its file names."""
    return Split, self._arguments

  def __len__(self) -> int:
    """The number of examples."""
    return len(self.lengths)

  def __getitem__(self, index: int) -> Example:
    """The ids of a pair, in their plain segmentation."""
    return self._example(index, self._record(index))

  def __getitems__(self, indices: Sequence[int]) -> list[Example]:
    """The ids of many pairs."""
    return [self[index] for index in indices]

  def sample(self, index: int, seed: int) -> Example:
    """The ids of a pair in a random segmentation; `split[index]` if none is.

    Args:
      index: of the pair.
      seed: the same index and seed give the same ids.

    Returns:
      Ids no longer than `lengths[index]`.
    """
    record = self._record(index)
    if not self.sampled:
      return self._example(index, record)
    longest = tuple(self.lengths[index].tolist())
    encoder = self._encoder(index)
    return encoder.sample(records.texts(record), (seed, index), longest)

  def texts(self) -> tuple[list[str], list[str]]:
    """All source and all target lines of 'valid' or 'test', in order.

    Also those that are no examples because they are empty or over-long.
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
