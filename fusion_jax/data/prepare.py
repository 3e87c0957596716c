"""Prepares a corpus: trains tokenizers, filters, encodes once.

    python -m fusion_jax.data.prepare --config=configs/NAME.py

The result is a folder of `data.prepared` that is named by its content, that
is, by all that it was made from: the same config over the same text finds
the folder again. The text streams through, whatever its size.
"""

import argparse
import contextlib
import errno
import hashlib
import json
import logging
import os
import secrets
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from fusion_jax.config import DataConfig, TokenizerConfig
from fusion_jax.data import corpora, filtering, prepared
from fusion_jax.data.building import CorpusWriter
from fusion_jax.data.encoding import PairEncoder
from fusion_jax.data.prepared import PreparedCorpus
from fusion_jax.data.progress import with_progress
from fusion_jax.data.tokenizer import Tokenizer
from fusion_jax.data.tokenizer import train as train_tokenizer
from fusion_jax.errors import InputError, one_line_errors
from fusion_jax.flags import parse_experiment
from fusion_jax.programs import start_logging
from fusion_jax.serialization import to_dict

logger = logging.getLogger(__name__)

# Goes up when the same settings begin to give other files.
_FORMAT = 1

_USERS_TROUBLE = {
    errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS,
    errno.ENOTDIR, errno.EEXIST,
}  # fmt: skip


def prepare(data: DataConfig) -> PreparedCorpus:
  """Opens the prepared corpus of a config; makes it if it is not there.

  Args:
    data: what to prepare, and in which folder to keep it.

  Returns:
    The prepared corpus.

  Raises:
    InputError: a corpus is missing or malformed, the vocabulary cannot have
      its size, nothing is left after filtering, or the disk is full.
  """
  settings = _settings(data)
  directory = Path(data.prepared) / _folder_name(data, settings)
  if directory.is_dir():
    logger.info('prepared corpus found: %s', directory)
  else:
    logger.info('preparing %s', directory)
    _make(data, settings, directory)
  return PreparedCorpus(directory)


def report_table(report: dict[str, Any]) -> str:
  """The report of `PreparedCorpus` as a table for people."""
  heads = ('split', 'pairs', 'kept', *filtering.REASONS)
  lines = ['  '.join(f'{head:>12}' for head in heads)]
  for name, split in report['splits'].items():
    cells = [split['pairs'], split['kept'], *split['dropped'].values()]
    numbers = '  '.join(f'{cell:>12,}' for cell in cells)
    lines.append(f'{name:>12}  {numbers}')
  for name, split in report['splits'].items():
    kept = max(split['kept'], 1)
    means = [f'{subwords / kept:.1f}' for subwords in split['subwords']]
    shares = [
      f'{unknown / max(subwords, 1):.3%}'
      for unknown, subwords in zip(
        split['unknown'], split['subwords'], strict=True
      )
    ]
    lines.append(
      f'{name}: {" / ".join(means)} subwords a line (source / target), '
      f'{" / ".join(shares)} of them unknown'
    )
  return '\n'.join(lines)


def _settings(data: DataConfig) -> dict[str, Any]:
  """All that determines the content of the folder, as JSON values."""
  tokenizer = to_dict(data.tokenizer)
  for field in ('source_model', 'target_model'):
    if tokenizer[field]:
      path = Path(data.root, tokenizer[field])
      tokenizer[field] = Tokenizer.from_file(path).digest
  sampling = data.sampling
  return {
    'format': _FORMAT,
    'languages': [data.source_language, data.target_language],
    'splits': {
      name: [corpora.fingerprint(corpus, data) for corpus in names]
      for name, names in _splits(data).items()
    },
    'tokenizer': tokenizer,
    'filter': to_dict(data.filter),
    'sampling': [sampling.source_alpha, sampling.target_alpha],
  }


def _splits(data: DataConfig) -> dict[str, tuple[str, ...]]:
  splits = {'train': data.train, 'valid': data.valid, 'test': data.test}
  return {name: names for name, names in splits.items() if names}


def _folder_name(data: DataConfig, settings: dict[str, Any]) -> str:
  canonical = json.dumps(settings, sort_keys=True, ensure_ascii=False)
  digest = hashlib.sha256(canonical.encode()).hexdigest()[:16]
  tokenizer = data.tokenizer
  kind = f'{tokenizer.algorithm}{tokenizer.vocabulary_size}'
  if tokenizer.source_model:
    kind = Path(tokenizer.source_model).stem
  return f'{data.source_language}-{data.target_language}-{kind}-{digest}'


def _make(data: DataConfig, settings: dict[str, Any], directory: Path) -> None:
  """Fills a neighbour of the folder, and renames it when it is complete."""
  partial = directory.with_name(
    f'.{directory.name}.{os.getpid()}-{secrets.token_hex(4)}'
  )
  with _disk_errors(partial):
    partial.mkdir(parents=True)
    try:
      report = _fill(data, partial)
      _write_json(partial / prepared.REPORT, report)
      _write_json(partial / prepared.SETTINGS, settings)
      _publish(partial, directory)
    finally:
      shutil.rmtree(partial, ignore_errors=True)
  logger.info('%s:\n%s', directory, report_table(report))


def _fill(data: DataConfig, directory: Path) -> dict[str, Any]:
  totals = {
    name: sum(corpora.count_pairs(corpus, data) for corpus in names)
    for name, names in _splits(data).items()
  }
  tokenizers = _tokenizers(data, totals['train'])
  for name, tokenizer in zip(
    (prepared.SOURCE_MODEL, prepared.TARGET_MODEL), tokenizers, strict=True
  ):
    (directory / name).write_bytes(tokenizer.model)
  alphas = data.sampling.source_alpha, data.sampling.target_alpha
  writer = CorpusWriter(directory, PairEncoder(tokenizers, alphas), data.filter)
  splits = {}
  for name, names in _splits(data).items():
    pairs = with_progress(
      _read_all(names, data), f'encoding {name}', totals[name]
    )
    splits[name] = (
      writer.write_train(pairs)
      if name == 'train'
      else writer.write_held_out(name, pairs)
    )
    _check_not_empty(name, splits[name])
  return {
    'tokenizers': [tokenizer.digest for tokenizer in tokenizers],
    'splits': splits,
  }


def _check_not_empty(name: str, report: dict[str, Any]) -> None:
  if report['kept']:
    return
  reasons = ', '.join(
    f'{count:,} {reason}'
    for reason, count in report['dropped'].items()
    if count
  )
  raise InputError(
    f'config.data.{name}: no pair is left of {report["pairs"]:,} '
    f'({reasons}); see config.data.filter'
  )


def _tokenizers(data: DataConfig, total: int) -> tuple[Tokenizer, Tokenizer]:
  config = data.tokenizer
  if config.source_model:
    source = Tokenizer.from_file(Path(data.root, config.source_model))
    target_model = config.target_model or config.source_model
    return source, Tokenizer.from_file(Path(data.root, target_model))
  if config.joint:
    both = (line for pair in _sample(data, total) for line in pair)
    tokenizer = _trained('joint', both, config)
    return tokenizer, tokenizer
  return (
    _trained('source', (pair[0] for pair in _sample(data, total)), config),
    _trained('target', (pair[1] for pair in _sample(data, total)), config),
  )


def _trained(
  name: str, lines: Iterable[str], config: TokenizerConfig
) -> Tokenizer:
  logger.info(
      'training the %s tokenizer: %s, %s pieces',
      name, config.algorithm, f'{config.vocabulary_size:,}',
  )  # fmt: skip
  return Tokenizer(train_tokenizer(filter(None, lines), config))


def _sample(data: DataConfig, total: int) -> Iterator[tuple[str, str]]:
  """Evenly spaced training pairs, as many as the tokenizer may have lines."""
  config = data.tokenizer
  wanted = config.training_lines // (2 if config.joint else 1) or total
  wanted = min(wanted, total)
  pairs = with_progress(
    _read_all(data.train, data), 'reading for the tokenizer', total
  )
  for index, pair in enumerate(pairs):
    if index * wanted // total < (index + 1) * wanted // total:
      yield pair


def _read_all(
  names: tuple[str, ...], data: DataConfig
) -> Iterator[tuple[str, str]]:
  for name in names:
    yield from corpora.read_pairs(name, data)


def _publish(partial: Path, directory: Path) -> None:
  try:
    partial.rename(directory)
  except OSError:
    # Another process has made the same folder in the meantime.
    if not directory.is_dir():
      raise


def _write_json(path: Path, values: dict[str, Any]) -> None:
  text = json.dumps(values, indent=2, ensure_ascii=False) + '\n'
  path.write_text(text, 'utf-8')


@contextlib.contextmanager
def _disk_errors(directory: Path) -> Iterator[None]:
  try:
    yield
  except OSError as error:
    if error.errno not in _USERS_TROUBLE:
      raise
    raise InputError(
      f'{directory}: cannot be written ({error.strerror})'
    ) from error


@one_line_errors
def main(argv: list[str]) -> None:
  """Prepares the corpus of a config and prints its folder."""
  start_logging()
  parser = argparse.ArgumentParser(
    prog='python -m fusion_jax.data.prepare',
    description='Prepares the corpus of a config; prints its folder.',
  )
  config, _ = parse_experiment(argv, parser)
  print(prepare(config.data).directory)


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
