"""Command that prepares a corpus: trains tokenizers, filters and encodes.

    fusion-jax prepare --config=NAME[:VARIANT]

The folder is named by everything that its content depends on, so the same
config over the same text finds it again. The text is streamed.
"""

import concurrent.futures
import contextlib
import hashlib
import itertools
import json
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from fusion_jax.config import DataConfig
from fusion_jax.config.flags import command_parser, parse_experiment
from fusion_jax.config.serialization import to_dict
from fusion_jax.data import encoding, prepared
from fusion_jax.data.corpora import Text, tokenizer_pair_count, tokenizer_pairs
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
  of_text: dict[str, Any]
  of_text, *_ = about = [_direction_settings(text) for text in texts]
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
  direction = text.direction
  return {
    'languages': list(direction.languages),
    'splits': text.fingerprints,
    **({'tags': list(text.tags)} if text.tags else {}),
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
    text.direction.name: encoding.PairEncoder(
      (source.tagged(text.tags), target), alphas
    )
    for text in texts
  }
  splits = {}
  count = _process_count(texts)
  with Workers(encoding.ChunkEncoder(encoders, data.filter), count) as workers:
    writer = _RecordWriter(directory)
    for name in ('train', 'valid', 'test'):
      if parts := [text for text in texts if name in text.totals]:
        split = _SplitWriter(name, writer, workers)
        splits[name] = _write_split(split, parts, directory)
  if not data.directions:
    for report in splits.values():
      del report['directions']
  return {'tokenizers': [source.digest, target.digest], 'splits': splits}


def _process_count(texts: Sequence[Text]) -> int:
  """Return how many processes encode: one where starting others is slower."""
  pairs = sum(sum(text.totals.values()) for text in texts)
  most = _MOST_PROCESSES if pairs >= _PAIRS_FOR_PROCESSES else 1
  return min(usable_cores(), most)


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


class _RecordWriter(tfds.core.SequentialWriter):
  """Writer that takes serialised records; serialising is the slow part.

  The generator-based builders of TFDS shuffle by sorting keys on disk. This
  writer streams instead; training shuffles anew in every epoch.
  """

  def __init__(self, directory: Path):
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
    super().__init__(info, _PAIRS_PER_SHARD, file_format='array_record')

  def add_records(self, name: str, chunk: Iterable[bytes]) -> None:
    # No public name leads here: raise the bound of TFDS with care.
    split = self._splits[name]
    for record in chunk:
      split.add_example(record)
      if split.current_shard.num_examples == _PAIRS_PER_SHARD:
        split.close_shard()


class _SplitWriter:
  """Writer of a split: its records, and the lengths of its examples.

  `counts` are those of its directions. Of held-out text all pairs are stored,
  with their text; those that are empty or too long are no examples.
  """

  def __init__(
    self,
    name: str,
    writer: _RecordWriter,
    workers: Workers[encoding.ChunkEncoder],
  ):
    self.name, self._writer, self._workers = name, writer, workers
    self._stored, self._rows = 0, [np.zeros([0], np.int64)]
    self._lengths = [np.zeros([0, 2], np.int32)]
    self.counts: dict[str, Counter[str]] = {}
    writer.initialize_splits([name])

  def write(self, text: Text) -> None:
    counts = self.counts[text.direction.name] = Counter()
    if self.name == 'train':
      encoder = self._workers.state.encoders[text.direction.name]
      chunks = self._kept(text, counts)
      if any(encoder.alphas):
        chunks = self._workers.in_order(encoding.ChunkEncoder.longest, chunks)
      for kept in chunks:
        self.add(kept.records, kept.lengths)
      return
    for chunk in self._encoded(text):
      counts.update(_counted(chunk))
      self._rows.append(self._stored + np.flatnonzero(chunk.usable))
      self.add(chunk.records, chunk.lengths[chunk.usable])

  def _kept(
    self, text: Text, counts: Counter[str]
  ) -> Iterator[encoding.KeptChunk]:
    """Yield the training pairs that are kept; count all."""
    seen: set[bytes] = set()
    row = self._stored
    for chunk in self._encoded(text):
      chunk.mark_repetitions(seen)
      counts.update(_counted(chunk))
      usable = chunk.usable
      kept = list(itertools.compress(chunk.records, usable))
      yield encoding.KeptChunk(
        text.direction.name, row, kept, chunk.lengths[usable]
      )
      row += len(kept)

  def _encoded(self, text: Text) -> Iterator[encoding.EncodedChunk]:
    pairs = text.read(self.name, f'encoding {self.name}')
    # An empty chunk is the last one.
    chunks = iter(lambda: list(itertools.islice(pairs, _CHUNK)), [])
    name, is_train = text.direction.name, self.name == 'train'
    raw = (encoding.RawChunk(name, is_train, chunk) for chunk in chunks)
    return self._workers.in_order(encoding.ChunkEncoder.encode, raw)

  def add(self, chunk: Sequence[bytes], lengths: np.ndarray) -> None:
    """Add records, and the lengths of those that are examples."""
    self._writer.add_records(self.name, chunk)
    self._stored += len(chunk)
    self._lengths.append(lengths)

  def close(self, directory: Path) -> None:
    """Write lengths, and rows where not all records are examples."""
    self._writer.close_splits([self.name])
    lengths = np.concatenate(self._lengths)
    np.save(directory / prepared.LENGTHS.format(split=self.name), lengths)
    if len(lengths) < self._stored:
      rows = np.concatenate(self._rows)
      np.save(directory / prepared.ROWS.format(split=self.name), rows)


def _counted(chunk: encoding.EncodedChunk) -> Counter[str]:
  """Count pairs, those dropped by reason, and subwords of those kept."""
  counts = Counter(filter(None, chunk.reasons))
  counts['pairs'] = len(chunk.records)
  for what in ('lengths', 'unknown'):
    kept: np.ndarray = getattr(chunk, what)[chunk.usable]
    counts[f'source {what}'], counts[f'target {what}'] = kept.sum(0).tolist()
  return counts


def _report(counts: Counter[str]) -> dict[str, Any]:
  dropped = {reason: counts[reason] for reason in encoding.REASONS}
  return {
    'pairs': counts['pairs'],
    'kept': counts['pairs'] - sum(dropped.values()),
    'dropped': dropped,
    'subwords': [counts['source lengths'], counts['target lengths']],
    'unknown': [counts['source unknown'], counts['target unknown']],
  }


def _write_split(
  split: _SplitWriter, texts: Sequence[Text], directory: Path
) -> dict[str, Any]:
  """Write a split; return its report, with those of its directions."""
  with _writer_errors(split.name):
    for text in texts:
      split.write(text)
      _check_not_empty(split, text.direction.name)
    split.close(directory)
  total = sum(split.counts.values(), Counter())
  directions = {part: _report(own) for part, own in split.counts.items()}
  return {**_report(total), 'directions': directions}


def _check_not_empty(split: _SplitWriter, direction: str) -> None:
  counts = split.counts[direction]
  if _report(counts)['kept'] == 0:
    reasons = ', '.join(
      f'{n:,} {why}' for why, n in counts.items() if why in encoding.REASONS
    )
    raise InputError(
      f'config.data.{split.name}: no pair of {direction} is left of '
      f'{counts["pairs"]:,} ({reasons}); see config.data.filter'
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
  start_logging()
  config, _ = parse_experiment(argv, command_parser(__doc__, 'prepare'))
  print(prepare(config.data).directory)


if __name__ == '__main__':
  run_program(main)
