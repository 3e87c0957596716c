"""Writer of the splits of a prepared corpus from streams of pairs."""

import collections
import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import tensorflow_datasets as tfds
from array_record.python import array_record_module

from fusion_jax.data import filtering, prepared, records
from fusion_jax.data.chunks import (
  ChunkEncoder,
  EncodedChunk,
  KeptChunk,
  RawChunk,
)
from fusion_jax.data.texts import Text
from fusion_jax.data.workers import Workers
from fusion_jax.errors import InputError, first_line

_PAIRS_PER_SHARD = 200_000


class CorpusWriter:
  """Writer of splits into a folder, one after the other."""

  def __init__(self, directory: Path, workers: Workers[ChunkEncoder]):
    """Start a TFDS dataset without splits."""
    self._directory = directory
    self._workers = workers
    self._info = tfds.core.DatasetInfo(
      builder=tfds.core.DatasetIdentity(
        name=records.DATASET,
        version=tfds.core.Version('1.0.0'),
        data_dir=str(directory),
        module_name=__name__,
      ),
      features=records.features(),
      description='Parallel text, encoded in subwords.',
    )
    self._info.set_file_format(tfds.core.FileFormat.ARRAY_RECORD)

  def write_train(self, texts: Iterable[Text]) -> list[dict[str, Any]]:
    """Write the training pairs that pass the filter."""
    with self._open_split('train') as split:
      return [self._write_train(text, split) for text in texts]

  def _write_train(self, text: Text, split: '_SplitWriter') -> dict[str, Any]:
    counts, direction = _Counts(), text.direction.name
    encoded = self._encoded(text, 'train', ChunkEncoder.train)
    chunks = _kept(encoded, direction, split.rows, counts)
    if any(self._workers.state.encoders[direction].alphas):
      chunks = self._workers.in_order(ChunkEncoder.longest, chunks)
    for chunk in chunks:
      split.add(chunk.records, chunk.lengths)
    return counts.report()

  def write_held_out(
    self, name: str, texts: Iterable[Text]
  ) -> list[dict[str, Any]]:
    """Write all pairs of 'valid' or 'test', ids and text.

    The text is stored as it stands, because that is what is scored. Empty and
    over-long pairs are stored but are no examples.
    """
    rows: list[int] = []
    with self._open_split(name) as split:
      reports = [self._write_held_out(text, split, rows) for text in texts]
      records_written = split.rows
    if records_written > len(rows):
      path = self._directory / prepared.ROWS.format(split=name)
      np.save(path, np.array(rows, np.int64))
    return reports

  def _write_held_out(
    self, text: Text, split: '_SplitWriter', rows: list[int]
  ) -> dict[str, Any]:
    counts = _Counts()
    for chunk in self._encoded(text, split.name, ChunkEncoder.held_out):
      counts.add(chunk)
      usable = _usable(chunk)
      rows.extend((split.rows + np.flatnonzero(usable)).tolist())
      split.add(chunk.records, chunk.lengths[usable])
    return counts.report()

  def _encoded(
    self,
    text: Text,
    split: str,
    encode: Callable[[ChunkEncoder, RawChunk], EncodedChunk],
  ) -> Iterator[EncodedChunk]:
    direction = text.direction.name
    raw = (RawChunk(direction, pairs) for pairs in text.chunks(split))
    encoded = self._workers.in_order(encode, raw)
    return text.with_progress(encoded, split, f'encoding {split}')

  def _open_split(self, name: str) -> '_SplitWriter':
    lengths = self._directory / prepared.LENGTHS.format(split=name)
    return _SplitWriter(self._info, name, lengths.open('wb'))


def _kept(
  chunks: Iterable[EncodedChunk],
  direction: str,
  row: int,
  counts: '_Counts',
) -> Iterator[KeptChunk]:
  """Count training pairs and yield those that are kept, from a row on."""
  repetitions = filtering.Repetitions()
  for chunk in chunks:
    repetitions.mark(chunk.reasons, chunk.keys)
    counts.add(chunk)
    usable = _usable(chunk)
    kept = list(itertools.compress(chunk.records, usable))
    yield KeptChunk(direction, row, kept, chunk.lengths[usable])
    row += len(kept)


def _usable(chunk: EncodedChunk) -> np.ndarray:
  return np.array([reason is None for reason in chunk.reasons])


class _SplitWriter:
  """Writer of the records and lengths of one split, a chunk at a time.

  The builders of TFDS sort their examples on disk, and its `SequentialWriter`
  serialises them slowly; neither takes records.
  """

  def __init__(
    self, info: tfds.core.DatasetInfo, name: str, lengths_file: BinaryIO
  ):
    self.name = name
    self.rows = 0
    self._info = info
    self._files = tfds.core.ShardedFileTemplate(
      dataset_name=info.name,
      data_dir=info.data_dir,
      split=name,
      filetype_suffix='array_record',
      template='{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_INDEX}',
    )
    self._shard: Any = None
    self._bytes = 0
    self._lengths_file = lengths_file
    self._examples = 0
    self._write_header()

  def __enter__(self) -> '_SplitWriter':
    return self

  def __exit__(self, error_type: type | None, *_) -> None:
    with self._lengths_file:
      if error_type is None:
        with _writer_errors(self.name):
          self._close_shard()
        self._write_info()
        self._write_header()

  def add(self, chunk: Sequence[bytes], lengths: np.ndarray) -> None:
    """Add records, and the lengths of those that are examples."""
    with _writer_errors(self.name):
      for record in chunk:
        if self.rows % _PAIRS_PER_SHARD == 0:
          self._next_shard()
        self._shard.write(record)
        self.rows += 1
    self._bytes += sum(map(len, chunk))
    self._lengths_file.write(lengths.astype(np.int32).tobytes())
    self._examples += len(lengths)

  def _next_shard(self) -> None:
    self._close_shard()
    number = self.rows // _PAIRS_PER_SHARD
    path = self._files.sharded_filepath(shard_index=number, num_shards=None)
    # Alone in its group, a record is read without others.
    self._shard = array_record_module.ArrayRecordWriter(
      str(path), 'group_size:1'
    )

  def _close_shard(self) -> None:
    if self._shard is not None:
      self._shard.close()

  def _write_info(self) -> None:
    firsts = range(0, self.rows, _PAIRS_PER_SHARD)
    split = tfds.core.SplitInfo(
      name=self.name,
      shard_lengths=[min(_PAIRS_PER_SHARD, self.rows - n) for n in firsts],
      num_bytes=self._bytes,
      filename_template=self._files,
    )
    splits = [*self._info.splits.values(), split]
    self._info.set_splits(tfds.core.SplitDict(splits))
    self._info.write_to_directory(self._info.data_dir)

  def _write_header(self) -> None:
    # NumPy leaves room in the header for the first axis to grow, so the
    # header with the true number of rows fits in the place of the first one.
    self._lengths_file.seek(0)
    np.lib.format.write_array_header_1_0(
      self._lengths_file,
      {
        'descr': np.lib.format.dtype_to_descr(np.dtype(np.int32)),
        'fortran_order': False,
        'shape': (self._examples, 2),
      },
    )


@contextlib.contextmanager
def _writer_errors(split: str) -> Iterator[None]:
  """Turn ArrayRecord's RuntimeError, raised on a full disk, into InputError."""
  try:
    yield
  except RuntimeError as error:
    raise InputError(
      f'the records of {split} cannot be written: {first_line(error)}; make '
      'room and run the same command again'
    ) from error


@dataclasses.dataclass
class _Counts:
  """Counts of a split for its report."""

  pairs: int = 0
  dropped: collections.Counter = dataclasses.field(
    default_factory=collections.Counter
  )
  subwords: np.ndarray = dataclasses.field(
    default_factory=lambda: np.zeros([2], np.int64)
  )
  unknown: np.ndarray = dataclasses.field(
    default_factory=lambda: np.zeros([2], np.int64)
  )

  def add(self, chunk: EncodedChunk) -> None:
    """Count the pairs of a chunk."""
    self.pairs += len(chunk.records)
    self.dropped.update(filter(None, chunk.reasons))
    usable = _usable(chunk)
    self.subwords += chunk.lengths[usable].sum(axis=0)
    self.unknown += chunk.unknown[usable].sum(axis=0)

  def report(self) -> dict[str, Any]:
    """Return the counts as JSON values."""
    return {
      'pairs': self.pairs,
      'kept': self.pairs - self.dropped.total(),
      'dropped': {reason: self.dropped[reason] for reason in filtering.REASONS},
      'subwords': self.subwords.tolist(),
      'unknown': self.unknown.tolist(),
    }
