"""Command that prepares a corpus: trains tokenizers, filters and encodes.

    fusion-jax prepare --config=NAME[:VARIANT]

The folder is named by everything that its content depends on, so the same
config over the same text finds it again. The text is streamed.
"""

import argparse
import collections
import concurrent.futures
import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import logging
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from fusion_jax.config import DataConfig
from fusion_jax.config.flags import parse_experiment
from fusion_jax.config.serialization import to_dict
from fusion_jax.data import encoding, prepared
from fusion_jax.data.corpora import Text, tokenizer_pair_count, tokenizer_pairs
from fusion_jax.data.encoding import (
  ChunkEncoder,
  EncodedChunk,
  KeptChunk,
  PairEncoder,
  RawChunk,
)
from fusion_jax.data.prepared import PreparedCorpus
from fusion_jax.data.tokenizer import Tokenizer
from fusion_jax.data.tokenizer import train as train_tokenizer
from fusion_jax.data.workers import Workers, usable_cores
from fusion_jax.errors import InputError, first_line
from fusion_jax.files import sealed, whole_folder
from fusion_jax.startup import (
  log_table,
  one_line_errors,
  run_program,
  start_logging,
  tell_how_long,
)

logger = logging.getLogger(__name__)

# Increased when the same settings begin to give other files.
_FORMAT = 2
# Below this, starting processes takes longer than they save.
_PAIRS_FOR_PROCESSES = 50_000
# The process that reads and writes keeps no more than these busy.
_MOST_PROCESSES = 16
# Pairs that are encoded and written together; a few such chunks for each
# process are held in memory.
_CHUNK = 4_096
_PAIRS_PER_SHARD = 200_000


def prepare(data: DataConfig) -> PreparedCorpus:
  """Open the prepared corpus of a config, and make it if it does not exist."""
  texts = [Text(data, direction) for direction in data.all_directions]
  settings = _settings(data, texts)
  directory = Path(data.prepared) / _folder_name(data, settings)
  if directory.is_dir():
    logger.info('prepared corpus found: %s', directory)
  else:
    logger.info('preparing %s', directory)
    _make(data, texts, settings, directory)
  return PreparedCorpus(directory)


def _settings(data: DataConfig, texts: Sequence[Text]) -> dict[str, Any]:
  """Return all that determines the content of the folder, as JSON values."""
  tokenizer = to_dict(data.tokenizer)
  for field in ('source_model', 'target_model'):
    if tokenizer[field]:
      path = Path(data.root, tokenizer[field])
      tokenizer[field] = Tokenizer.from_file(path).digest
  about = [_direction_settings(text) for text in texts]
  of_text = about[0]
  if data.directions:
    weights = [direction.weight for direction in data.directions]
    given = data.tokenizer.source_model
    mixing = [] if given else [weights, data.mixing_temperature]
    of_text = {'directions': about, 'mixing': mixing}
  return {
    'format': _FORMAT,
    **of_text,
    'tokenizer': tokenizer,
    'filter': to_dict(data.filter),
    'sampling': [data.sampling.source_alpha, data.sampling.target_alpha],
  }


def _direction_settings(text: Text) -> dict[str, Any]:
  direction, tags = text.direction, list(text.tags)
  return {
    'languages': [direction.source_language, direction.target_language],
    'splits': text.fingerprints,
    **({'tags': tags} if tags else {}),
  }


def _folder_name(data: DataConfig, settings: dict[str, Any]) -> str:
  canonical = json.dumps(settings, sort_keys=True, ensure_ascii=False)
  digest = hashlib.sha256(canonical.encode()).hexdigest()[:16]
  tokenizer = data.tokenizer
  kind = f'{tokenizer.algorithm}{tokenizer.vocabulary_size}'
  if tokenizer.source_model:
    kind = Path(tokenizer.source_model).stem
  names = [direction.name for direction in data.all_directions]
  languages = names[0] if len(names) == 1 else f'{len(names)}-directions'
  return f'{languages}-{kind}-{digest}'


def _make(
  data: DataConfig,
  texts: Sequence[Text],
  settings: dict[str, Any],
  directory: Path,
) -> None:
  """Fill a folder that appears only when it is complete."""
  try:
    with whole_folder(directory) as partial:
      report = _fill(data, texts, partial)
      _write_json(partial / prepared.SETTINGS, settings)
      report['files'] = prepared.file_digests(partial)
      _write_json(partial / prepared.REPORT, sealed(report))
  except InputError:
    # Another process may have made the same folder in the meantime.
    if not (directory / prepared.REPORT).is_file():
      raise
    return
  logger.info('%s:\n%s', directory, report_table(report))


def _write_json(path: Path, values: dict[str, Any]) -> None:
  text = json.dumps(values, indent=2, ensure_ascii=False) + '\n'
  path.write_text(text, 'utf-8')


def _fill(
  data: DataConfig, texts: Sequence[Text], directory: Path
) -> dict[str, Any]:
  source, target = _tokenizers(data, texts)
  (directory / prepared.SOURCE_MODEL).write_bytes(source.model)
  (directory / prepared.TARGET_MODEL).write_bytes(target.model)
  alphas = data.sampling.source_alpha, data.sampling.target_alpha
  encoders = {
    text.direction.name: PairEncoder((source.tagged(text.tags), target), alphas)
    for text in texts
  }
  encoder = ChunkEncoder(encoders, data.filter)
  splits = {}
  with Workers(encoder, _process_count(texts)) as workers:
    writer = _CorpusWriter(directory, workers)
    for name in ('train', 'valid', 'test'):
      parts = [text for text in texts if name in text.totals]
      if parts:
        splits[name] = writer.write(name, parts)
  if not data.directions:
    for split in splits.values():
      del split['directions']
  digests = [source.digest, target.digest]
  return {'tokenizers': digests, 'splits': splits}


def _process_count(texts: Sequence[Text]) -> int:
  """Return how many processes encode: one where starting others is slower."""
  pairs = sum(sum(text.totals.values()) for text in texts)
  if pairs < _PAIRS_FOR_PROCESSES:
    return 1
  return min(usable_cores(), _MOST_PROCESSES)


def _tokenizers(
  data: DataConfig, texts: Sequence[Text]
) -> tuple[Tokenizer, Tokenizer]:
  config = data.tokenizer
  if config.source_model:
    source = Tokenizer.from_file(Path(data.root, config.source_model))
    target_model = config.target_model or config.source_model
    return source, Tokenizer.from_file(Path(data.root, target_model))
  if config.joint:
    tokenizer = _trained('joint', data, texts, (0, 1))
    return tokenizer, tokenizer
  # SentencePiece works on few cores for most of the time.
  with concurrent.futures.ThreadPoolExecutor(2) as pool:
    source_work = pool.submit(_trained, 'source', data, texts, (0,))
    target_work = pool.submit(_trained, 'target', data, texts, (1,))
    return source_work.result(), target_work.result()


def _trained(
  name: str, data: DataConfig, texts: Sequence[Text], sides: tuple[int, ...]
) -> Tokenizer:
  """Train the tokenizer of one side or of both; tags are of the source."""
  config, work = data.tokenizer, f'training the {name} tokenizer'
  logger.info(
    '%s: %s, %s pieces, %s lines',
    work,
    config.algorithm,
    f'{config.vocabulary_size:,}',
    f'{len(sides) * tokenizer_pair_count(data, texts):,}',
  )
  lines = (pair[n] for pair in tokenizer_pairs(data, texts) for n in sides)
  tags = data.all_tags if 0 in sides else ()
  with tell_how_long(work):
    return Tokenizer(train_tokenizer(filter(None, lines), config, tags))


@dataclasses.dataclass
class _Counts:
  """Counts of a split, or of a direction of it, for the report."""

  pairs: int = 0
  dropped: collections.Counter = dataclasses.field(
    default_factory=collections.Counter
  )
  subwords: np.ndarray | int = 0
  unknown: np.ndarray | int = 0

  def __add__(self, other: '_Counts') -> '_Counts':
    return _Counts(
      self.pairs + other.pairs,
      self.dropped + other.dropped,
      self.subwords + other.subwords,
      self.unknown + other.unknown,
    )

  def report(self) -> dict[str, Any]:
    """Return the counts as JSON values."""
    return {
      'pairs': self.pairs,
      'kept': self.pairs - self.dropped.total(),
      'dropped': {reason: self.dropped[reason] for reason in encoding.REASONS},
      'subwords': np.broadcast_to(self.subwords, 2).tolist(),
      'unknown': np.broadcast_to(self.unknown, 2).tolist(),
    }


def _counts(chunk: EncodedChunk) -> _Counts:
  usable = chunk.usable
  return _Counts(
    len(chunk.records),
    collections.Counter(filter(None, chunk.reasons)),
    chunk.lengths[usable].sum(axis=0, dtype=np.int64),
    chunk.unknown[usable].sum(axis=0, dtype=np.int64),
  )


class _CorpusWriter:
  """Writer of splits into a folder, one after the other."""

  def __init__(self, directory: Path, workers: Workers[ChunkEncoder]):
    """Start a TFDS dataset without splits."""
    self._directory, self._workers = directory, workers
    info = tfds.core.DatasetInfo(
      builder=tfds.core.DatasetIdentity(
        name=prepared.DATASET,
        version=tfds.core.Version('1.0.0'),
        data_dir=str(directory),
        module_name=__name__,
      ),
      features=encoding.features(),
      description='Parallel text, encoded in subwords.',
    )
    # The generator-based builders of TFDS shuffle by sorting keys on disk.
    # This writer streams instead; training shuffles anew in every epoch.
    self._writer = _RecordWriter(
      info, _PAIRS_PER_SHARD, file_format='array_record'
    )

  def write(self, name: str, texts: Sequence[Text]) -> dict[str, Any]:
    """Write a split; return its report, with those of its directions.

    Of held-out text all pairs are stored, with their text. Those that are empty
    or too long are no examples.
    """
    split = _SplitWriter(self._writer, name)
    write = self._write_train if name == 'train' else self._write_held_out
    with _writer_errors(name):
      for text in texts:
        write(text, split)
        _check_not_empty(name, text.direction.name, split.counts)
      self._writer.close_splits([name])
    split.save(self._directory)
    total = functools.reduce(operator.add, split.counts.values())
    directions = {part: own.report() for part, own in split.counts.items()}
    return {**total.report(), 'directions': directions}

  def _write_train(self, text: Text, split: '_SplitWriter') -> None:
    encoder = self._workers.state.encoders[text.direction.name]
    chunks = self._kept(text, split)
    if any(encoder.alphas):
      chunks = self._workers.in_order(ChunkEncoder.longest, chunks)
    for chunk in chunks:
      split.add(chunk.records, chunk.lengths)

  def _kept(self, text: Text, split: '_SplitWriter') -> Iterator[KeptChunk]:
    """Yield the training pairs that are kept; count all."""
    seen: set[bytes] = set()
    direction, row = text.direction.name, split.stored
    for chunk in self._encoded(text, 'train'):
      chunk.mark_repetitions(seen)
      split.counts[direction] += _counts(chunk)
      usable = chunk.usable
      kept = list(itertools.compress(chunk.records, usable))
      yield KeptChunk(direction, row, kept, chunk.lengths[usable])
      row += len(kept)

  def _write_held_out(self, text: Text, split: '_SplitWriter') -> None:
    for chunk in self._encoded(text, split.name):
      split.counts[text.direction.name] += _counts(chunk)
      rows = split.stored + np.flatnonzero(chunk.usable)
      split.rows.append(rows)
      split.add(chunk.records, chunk.lengths[chunk.usable])

  def _encoded(self, text: Text, split: str) -> Iterator[EncodedChunk]:
    pairs = text.read(split, f'encoding {split}')
    # An empty chunk is the last one.
    chunks = iter(lambda: list(itertools.islice(pairs, _CHUNK)), [])
    name, is_train = text.direction.name, split == 'train'
    raw = (RawChunk(name, is_train, chunk) for chunk in chunks)
    return self._workers.in_order(ChunkEncoder.encode, raw)


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
  """Writer of the records of a split, and of the lengths of its examples.

  `rows` are the records that are examples, where not all are.
  """

  def __init__(self, writer: _RecordWriter, name: str):
    self.name, self.stored = name, 0
    self.counts: dict[str, _Counts] = collections.defaultdict(_Counts)
    self.rows: list[np.ndarray] = []
    self._writer = writer
    self._lengths = [np.zeros([0, 2], np.int32)]
    writer.initialize_splits([name])

  def add(self, chunk: Sequence[bytes], lengths: np.ndarray) -> None:
    """Add records, and the lengths of those that are examples."""
    self._writer.add_records(self.name, chunk)
    self.stored += len(chunk)
    self._lengths.append(lengths)

  def save(self, directory: Path) -> None:
    """Write lengths and rows."""
    lengths = np.concatenate(self._lengths)
    np.save(directory / prepared.LENGTHS.format(split=self.name), lengths)
    if len(lengths) < self.stored:
      rows = np.concatenate(self.rows)
      np.save(directory / prepared.ROWS.format(split=self.name), rows)


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


def _check_not_empty(
  split: str, direction: str, all_counts: Mapping[str, _Counts]
) -> None:
  counts = all_counts[direction]
  if counts.pairs == counts.dropped.total():
    reasons = ', '.join(f'{n:,} {why}' for why, n in counts.dropped.items())
    raise InputError(
      f'config.data.{split}: no pair of {direction} is left of '
      f'{counts.pairs:,} ({reasons}); see config.data.filter'
    )


def report_table(report: dict[str, Any]) -> str:
  """Format the report of `PreparedCorpus` as a table for the log."""
  rows = [('split', 'pairs', 'kept', *encoding.REASONS)]
  for name, split in report['splits'].items():
    parts = {name: split, **split.get('directions', {})}
    rows += [
      (part, counts['pairs'], counts['kept'], *counts['dropped'].values())
      for part, counts in parts.items()
    ]
  lines = [log_table(rows)]
  for name, split in report['splits'].items():
    subwords, unknown = np.array([split['subwords'], split['unknown']])
    source, target = subwords / max(split['kept'], 1)
    lines.append(
      f'{name}: {source:.1f} / {target:.1f} subwords a line (source / target), '
      f'{unknown.sum() / max(subwords.sum(), 1):.3%} of them unknown'
    )
    if name != 'train' and (left := split['pairs'] - split['kept']):
      lines.append(
        f'{name}: {left:,} of {split["pairs"]:,} pairs, empty or too long, are '
        'in no loss; all are translated, in parts where need be, and scored'
      )
  return '\n'.join(lines)


@one_line_errors
def main(argv: list[str]) -> None:
  """Prepare the corpus of a config and print its folder."""
  start_logging()
  parser = argparse.ArgumentParser(
    prog='fusion-jax prepare',
    description='Prepare the corpus of a config; print its folder.',
  )
  config, _ = parse_experiment(argv, parser)
  print(prepare(config.data).directory)


if __name__ == '__main__':
  run_program(main)
