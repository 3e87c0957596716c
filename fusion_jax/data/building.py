"""Writer of the splits of a prepared corpus from streams of pairs."""

import collections
import contextlib
import dataclasses
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import tensorflow_datasets as tfds

from fusion_jax.config import FilterConfig
from fusion_jax.data import filtering, prepared, records
from fusion_jax.data.encoding import PairEncoder
from fusion_jax.data.normalise import normalised
from fusion_jax.data.records import Example
from fusion_jax.errors import InputError, first_line

# Pairs that are encoded and written together; no more are held in memory.
_CHUNK = 4_096
_PAIRS_PER_SHARD = 200_000


class DirectionPairs(NamedTuple):
  """Pairs of one direction and their encoder."""

  encoder: PairEncoder
  pairs: Iterable[tuple[str, str]]


class CorpusWriter:
  """Writer of splits into a folder, one after the other."""

  def __init__(self, directory: Path, config: FilterConfig):
    """Start a TFDS dataset without splits."""
    self._directory = directory
    self._config = config
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
    self._writer = tfds.core.SequentialWriter(
      info, _PAIRS_PER_SHARD, file_format='array_record'
    )

  def write_train(
    self, parts: Iterable[DirectionPairs]
  ) -> list[dict[str, Any]]:
    """Write the training pairs that pass the filter."""
    with self._open_split('train') as split:
      return [self._write_train(part, split) for part in parts]

  def _write_train(
    self, part: DirectionPairs, split: '_SplitWriter'
  ) -> dict[str, Any]:
    pair_filter = filtering.PairFilter(self._config)
    sampled = any(part.encoder.alphas)
    counts = _Counts()
    for _, texts, plain in _encoded(part):
      lengths = len(plain.source), len(plain.target)
      reason = pair_filter.reason(texts, lengths)
      counts.add(plain, reason, part.encoder)
      if reason:
        continue
      if not sampled:
        split.add(plain, ('', ''), lengths)
        continue
      longest = part.encoder.longest(texts, plain, (split.rows, 0))
      capped = [min(length, self._config.max_length) for length in longest]
      split.add(_NO_EXAMPLE, texts, capped)
    return counts.report()

  def write_held_out(
    self, name: str, parts: Iterable[DirectionPairs]
  ) -> list[dict[str, Any]]:
    """Write all pairs of 'valid' or 'test', ids and text.

    The text is stored as it stands, because that is what is scored. Empty and
    over-long pairs are stored but are no examples.
    """
    rows: list[int] = []
    with self._open_split(name) as split:
      reports = [self._write_held_out(part, split, rows) for part in parts]
      records_written = split.rows
    if records_written > len(rows):
      path = self._directory / prepared.ROWS.format(split=name)
      np.save(path, np.array(rows, np.int64))
    return reports

  def _write_held_out(
    self, part: DirectionPairs, split: '_SplitWriter', rows: list[int]
  ) -> dict[str, Any]:
    counts = _Counts()
    for pair, texts, plain in _encoded(part):
      lengths = len(plain.source), len(plain.target)
      reason = filtering.unusable(texts, lengths, self._config.max_length)
      counts.add(plain, reason, part.encoder)
      if not reason:
        rows.append(split.rows)
      split.add(plain, pair, None if reason else lengths)
    return counts.report()

  def _open_split(self, name: str) -> '_SplitWriter':
    lengths = self._directory / prepared.LENGTHS.format(split=name)
    return _SplitWriter(self._writer, name, lengths.open('wb'))


def _encoded(
  part: DirectionPairs,
) -> Iterator[tuple[tuple[str, str], tuple[str, str], Example]]:
  """Yield every pair as it stands, normalised, and as ids."""
  stream = iter(part.pairs)
  while chunk := list(itertools.islice(stream, _CHUNK)):
    texts = list(map(normalised, chunk))
    ids = part.encoder.encode_pairs(texts)
    yield from zip(chunk, texts, ids, strict=True)


_NO_EXAMPLE = Example(records.NO_IDS, records.NO_IDS)


class _SplitWriter:
  """Writer of the records and lengths of one split, a chunk at a time."""

  def __init__(
    self,
    writer: tfds.core.SequentialWriter,
    name: str,
    lengths_file: BinaryIO,
  ):
    self.rows = 0
    self._writer = writer
    self._name = name
    self._records: list[dict[str, Any]] = []
    self._lengths: list[tuple[int, int]] = []
    self._examples = 0
    self._lengths_file = lengths_file
    writer.initialize_splits([name])
    self._write_header()

  def __enter__(self) -> '_SplitWriter':
    return self

  def __exit__(self, error_type: type | None, *_) -> None:
    with self._lengths_file:
      if error_type is None:
        self._flush()
        with _writer_errors(self._name):
          self._writer.close_splits([self._name])
        self._write_header()

  def add(
    self,
    example: Example,
    texts: tuple[str, str],
    lengths: Iterable[int] | None,
  ) -> None:
    """Add a record, and its lengths if it is an example."""
    self.rows += 1
    self._records.append(
      {
        'source': example.source,
        'target': example.target,
        'source_text': texts[0],
        'target_text': texts[1],
      }
    )
    if lengths is not None:
      source, target = lengths
      self._lengths.append((source, target))
    if len(self._records) == _CHUNK:
      self._flush()

  def _flush(self) -> None:
    with _writer_errors(self._name):
      self._writer.add_examples({self._name: self._records})
    lengths = np.array(self._lengths, np.int32).reshape(-1, 2)
    self._lengths_file.write(lengths.tobytes())
    self._examples += len(lengths)
    self._records, self._lengths = [], []

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

  def add(
    self, example: Example, reason: str | None, encoder: PairEncoder
  ) -> None:
    """Count one pair."""
    self.pairs += 1
    if reason:
      self.dropped[reason] += 1
      return
    for side, tokenizer in enumerate(encoder.tokenizers):
      ids = example[side]
      self.subwords[side] += len(ids)
      self.unknown[side] += np.count_nonzero(
        ids == tokenizer.vocabulary.unknown
      )

  def report(self) -> dict[str, Any]:
    """Return the counts as JSON values."""
    return {
      'pairs': self.pairs,
      'kept': self.pairs - self.dropped.total(),
      'dropped': {reason: self.dropped[reason] for reason in filtering.REASONS},
      'subwords': self.subwords.tolist(),
      'unknown': self.unknown.tolist(),
    }
