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

from fusion_jax.data import filtering, prepared, records
from fusion_jax.data.encoding import (
  ChunkEncoder,
  EncodedChunk,
  KeptChunk,
  RawChunk,
)
from fusion_jax.data.texts import Text
from fusion_jax.data.workers import Workers
from fusion_jax.errors import InputError, first_line

# Pairs that are encoded and written together; a few such chunks for each
# process are held in memory.
_CHUNK = 4_096
_PAIRS_PER_SHARD = 200_000


class CorpusWriter:
  """Writer of splits into a folder, one after the other."""

  def __init__(self, directory: Path, workers: Workers[ChunkEncoder]):
    """Start a TFDS dataset without splits."""
    self._directory = directory
    self._workers = workers
    info = tfds.core.DatasetInfo(
      builder=tfds.core.DatasetIdentity(
        name=records.DATASET,
        version=tfds.core.Version('1.0.0'),
        data_dir=str(directory),
        module_name=__name__,
      ),
      features=records.features(),
      description='Parallel text, encoded in subwords.',
    )
    # The generator-based builders of TFDS shuffle by sorting keys on disk.
    # This writer streams instead; training shuffles anew in every epoch.
    self._writer = _RecordWriter(
      info, _PAIRS_PER_SHARD, file_format='array_record'
    )

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
      usable = chunk.usable
      rows.extend((split.rows + np.flatnonzero(usable)).tolist())
      split.add(chunk.records, chunk.lengths[usable])
    return counts.report()

  def _encoded(
    self,
    text: Text,
    split: str,
    encode: Callable[[ChunkEncoder, RawChunk], EncodedChunk],
  ) -> Iterator[EncodedChunk]:
    return self._workers.in_order(encode, _chunks(text, split))

  def _open_split(self, name: str) -> '_SplitWriter':
    lengths = self._directory / prepared.LENGTHS.format(split=name)
    return _SplitWriter(self._writer, name, lengths.open('wb'))


def _chunks(text: Text, split: str) -> Iterator[RawChunk]:
  pairs = text.read(split, f'encoding {split}')
  while chunk := list(itertools.islice(pairs, _CHUNK)):
    yield RawChunk(text.direction.name, chunk)


def _kept(
  chunks: Iterable[EncodedChunk], direction: str, row: int, counts: '_Counts'
) -> Iterator[KeptChunk]:
  """Count training pairs and yield those that are kept, from a row on."""
  repetitions = filtering.Repetitions()
  for chunk in chunks:
    repetitions.mark(chunk.reasons, chunk.keys)
    counts.add(chunk)
    usable = chunk.usable
    kept = list(itertools.compress(chunk.records, usable))
    yield KeptChunk(direction, row, kept, chunk.lengths[usable])
    row += len(kept)


class _RecordWriter(tfds.core.SequentialWriter):
  """Writer that takes serialised records; serialising is the slow part."""

  def add_records(self, name: str, chunk: Iterable[bytes]) -> None:
    # No public name leads here: raise the bound of TFDS with care.
    split = self._splits[name]
    for record in chunk:
      split.add_example(record)
      if split.current_shard.num_examples == _PAIRS_PER_SHARD:
        split.close_shard()


class _SplitWriter:
  """Writer of the records and lengths of one split, a chunk at a time."""

  def __init__(self, writer: _RecordWriter, name: str, lengths_file: BinaryIO):
    self.name = name
    self.rows = 0
    self._writer = writer
    self._examples = 0
    self._lengths_file = lengths_file
    writer.initialize_splits([name])
    self._write_header()

  def __enter__(self) -> '_SplitWriter':
    return self

  def __exit__(self, error_type: type | None, *_) -> None:
    with self._lengths_file:
      if error_type is None:
        with _writer_errors(self.name):
          self._writer.close_splits([self.name])
        self._write_header()

  def add(self, chunk: Sequence[bytes], lengths: np.ndarray) -> None:
    """Add records, and the lengths of those that are examples."""
    with _writer_errors(self.name):
      self._writer.add_records(self.name, chunk)
    self.rows += len(chunk)
    self._lengths_file.write(lengths.astype(np.int32).tobytes())
    self._examples += len(lengths)

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
    usable = chunk.usable
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
