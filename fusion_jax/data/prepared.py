"""Reader of a prepared corpus: ids by random access, lengths, tokenizers.

The folder, written by `fusion_jax.data.prepare`:
  settings.json               what was prepared and how
  report.json                 how many pairs were kept; digests of itself and of
                              the files that have no checksums of their own
  source.model, target.model  the tokenizers
  dataset_info.json, features.json, parallel_text-SPLIT.array_record-NNNNN
                              a TFDS dataset
  SPLIT.lengths.npy           int32 [N, 2]: source and target, in subwords
  SPLIT.rows.npy              int64 [N]: the records that are examples, where
                              not all of them are
A split holds several directions one after the other, in the report's order.
"""

import bisect
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from array_record.python import array_record_module
from jaxtyping import Int32

from fusion_jax.data.encoding import Example, PairEncoder, ids_of, texts_of
from fusion_jax.data.tokenizer import Tokenizer
from fusion_jax.errors import InputError, first_line
from fusion_jax.files import DamagedError, check_seal, file_digest, read_json

# Part of the file names of the records.
DATASET = 'parallel_text'
SETTINGS = 'settings.json'
REPORT = 'report.json'
SOURCE_MODEL = 'source.model'
TARGET_MODEL = 'target.model'
LENGTHS = '{split}.lengths.npy'
ROWS = '{split}.rows.npy'


class PreparedCorpus:
  """Content of a prepared folder; its report has the counts of each split."""

  def __init__(self, directory: str | Path):
    self.directory = Path(directory)
    try:
      self.report = read_json(self.directory / REPORT, dict[str, Any])
      check_seal(self.report, REPORT)
    except (InputError, DamagedError):
      raise _damaged(self.directory, REPORT) from None
    self._check_files(SETTINGS, SOURCE_MODEL, TARGET_MODEL)
    self.source_tokenizer = Tokenizer.from_file(self.directory / SOURCE_MODEL)
    self.target_tokenizer = Tokenizer.from_file(self.directory / TARGET_MODEL)
    settings = read_json(self.directory / SETTINGS)
    alphas = tuple(settings['sampling'])
    self._encoders = {}
    for direction in settings.get('directions', [settings]):
      source = self.source_tokenizer.tagged(direction.get('tags', ()))
      self._encoders['-'.join(direction['languages'])] = PairEncoder(
        (source, self.target_tokenizer), alphas
      )

  def has_split(self, name: str) -> bool:
    return name in self.report['splits']

  def split(self, name: str, direction: str = '') -> 'Split':
    """Return the examples of 'train', 'valid' or 'test'."""
    if not self.has_split(name):
      raise InputError(
        f'{self.directory}: no split {name!r}; it has '
        f'{", ".join(self.report["splits"])}'
      )
    report = self.report['splits'][name]
    stored = 'kept' if name == 'train' else 'pairs'
    counts = report.get('directions') or dict.fromkeys(self._encoders, report)
    parts = {
      part: DirectionSplit(self._encoders[part], own[stored], own['kept'])
      for part, own in counts.items()
    }
    if direction and direction not in parts:
      raise InputError(
        f'{self.directory}: split {name!r} has nothing of {direction}; it has '
        f'{", ".join(parts)}'
      )
    self._check_files(LENGTHS.format(split=name), ROWS.format(split=name))
    return Split(self.directory, name, parts, direction)

  def _check_files(self, *names: str) -> None:
    """Compare files with their digests."""
    written = self.report['files']
    for name in filter(written.__contains__, names):
      try:
        digest = file_digest(self.directory / name)
      except (InputError, OSError):
        digest = ''
      if digest != written[name]:
        raise _damaged(self.directory, name)


def file_digests(directory: Path) -> dict[str, str]:
  """Return the SHA-256 of each file of a folder but the records, by name.

  ArrayRecord verifies its own checksums on every read.
  """
  return {
    path.name: file_digest(path)
    for path in sorted(directory.iterdir())
    if not path.name.startswith(f'{DATASET}-')
  }


class DirectionSplit(NamedTuple):
  """One direction of a split: its stored records, and the examples of them."""

  encoder: PairEncoder
  records: int
  examples: int


class Split:
  """Examples of a split, by random access.

  `lengths` has source and target subwords, tags and the end symbol included,
  int32 [N, 2]; in a sampled split the longest that `sample` may return.
  `directions` has the number of examples of each direction.
  """

  def __init__(
    self,
    directory: Path,
    name: str,
    parts: Mapping[str, DirectionSplit],
    direction: str = '',
  ):
    chosen = {direction: parts[direction]} if direction else parts
    before = [*itertools.takewhile(lambda part: part not in chosen, parts)]
    self.directions = {part: own.examples for part, own in chosen.items()}
    self._encoders = [part.encoder for part in chosen.values()]
    self._ends = list(itertools.accumulate(self.directions.values()))
    self._first = sum(parts[part].examples for part in before)
    first_record = sum(parts[part].records for part in before)
    count = sum(part.records for part in chosen.values())
    self._stored = range(first_record, first_record + count)
    self._is_train = name == 'train'
    self.sampled = self._is_train and any(self._encoders[0].alphas)
    rows = directory / ROWS.format(split=name)
    self._rows = np.load(rows, mmap_mode='r') if rows.exists() else None
    self._records = Records(directory, name)
    if len(self._records) != sum(part.records for part in parts.values()):
      raise _damaged(directory, f'split {name!r}')
    lengths = np.load(directory / LENGTHS.format(split=name), mmap_mode='r')
    self.lengths: Int32[np.ndarray, 'N 2'] = lengths[
      self._first : self._first + self._ends[-1]
    ]

  def __len__(self) -> int:
    return len(self.lengths)

  def __getitem__(self, index: int) -> Example:
    """Return the ids of a pair, in their plain segmentation."""
    record = self._record(index)
    example = ids_of(record)
    if not len(example.source):
      (example,) = self._encoder(index).encode([texts_of(record)])
    return example

  def sample(self, index: int, seed: int) -> Example:
    """Return the ids of a pair, in a random segmentation if it is sampled."""
    if not self.sampled:
      return self[index]
    texts = texts_of(self._record(index))
    longest = tuple(self.lengths[index].tolist())
    return self._encoder(index).sample(texts, (seed, index), longest)

  def texts(self) -> tuple[list[str], list[str]]:
    """Return all lines of 'valid' or 'test', no examples too, as they stand."""
    assert not self._is_train, 'the texts of training are not kept'
    pairs = [texts_of(self._records[row]) for row in self._stored]
    return [source for source, _ in pairs], [target for _, target in pairs]

  def _record(self, index: int) -> bytes:
    index = self._first + range(len(self))[index]
    row = index if self._rows is None else int(self._rows[index])
    return self._records[row]

  def _encoder(self, index: int) -> PairEncoder:
    return self._encoders[bisect.bisect_right(self._ends, index)]


class Records:
  """Serialised records of a split, by random access. Threads may share them.

  ArrayRecord reads a list of positions in a time that grows with the file
  (1.5 ms in one of 425,000 records), a range, here of one, in 10 microseconds.
  """

  def __init__(self, directory: Path, split: str):
    self._files = sorted(directory.glob(f'{DATASET}-{split}.array_record-*'))
    options = 'readahead_buffer_size:0,max_parallelism:0'
    try:
      self._shards = [
        array_record_module.ArrayRecordReader(str(file), options=options)
        for file in self._files
      ]
      sizes = [shard.num_records() for shard in self._shards]
    except (OSError, ValueError, RuntimeError):
      raise _damaged(directory, f'split {split!r}') from None
    self._ends = list(itertools.accumulate(sizes, initial=0))

  def __len__(self) -> int:
    return self._ends[-1]

  def __getitem__(self, index: int) -> bytes:
    """Return a record after ArrayRecord has verified its checksum."""
    number = bisect.bisect_right(self._ends, index) - 1
    position = index - self._ends[number]
    try:
      return self._shards[number].read(position, position + 1)[0]
    except (IndexError, OSError, RuntimeError, ValueError) as error:
      raise _damaged(
        self._files[number].parent,
        f'{self._files[number].name}, record {position}',
        f' ({first_line(error)})',
      ) from error


def _damaged(directory: Path, part: str, why: str = '') -> InputError:
  return InputError(
    f'{directory}: {part} is missing or damaged{why}; delete the folder and '
    'prepare it again'
  )
