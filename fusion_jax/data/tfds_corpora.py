"""Translation datasets of TensorFlow Datasets, read without TensorFlow."""

import logging
import os
import re
from collections.abc import Iterator
from typing import Any

import tensorflow_datasets as tfds

from fusion_jax.errors import InputError

logger = logging.getLogger(__name__)

_READ_AT_ONCE = 1_000
# A text that is kept in a file, or scored from one, is one line.
_BREAK = re.compile(r'[\r\n]+')


def read_pairs(
  name: str, split: str, languages: tuple[str, str]
) -> Iterator[tuple[str, str]]:
  """Yield the line pairs of a split of a dataset, as they stand, in order."""
  examples = _open(_prepared_builder(name), name, split, languages)
  for start in range(0, len(examples), _READ_AT_ONCE):
    stop = min(start + _READ_AT_ONCE, len(examples))
    chunk = examples.__getitems__(list(range(start, stop)))
    for index, example in enumerate(chunk, start=start):
      where = f'tfds:{name}:{split}, example {index}'
      source, target = (_text(example[code], where) for code in languages)
      yield source, target


def count_pairs(name: str, split: str, languages: tuple[str, str]) -> int:
  """Count the pairs of a split; raises InputError as `read_pairs` does."""
  return len(_open(_prepared_builder(name), name, split, languages))


def fingerprint(name: str, split: str, languages: tuple[str, str]) -> str:
  """Return a text that differs between different contents of a split.

  It consists of the name with its version, the split and, for the whole split
  that it is cut from, the sizes of the shards.
  """
  builder = _prepared_builder(name)
  _open(builder, name, split, languages)
  whole = builder.info.splits[split.partition('[')[0]]
  return (
    f'{builder.info.full_name} {split} {whole.num_bytes} '
    f'{list(whole.shard_lengths)}'
  )


def _prepared_builder(name: str) -> tfds.core.DatasetBuilder:
  # This import registers the translation datasets. Nothing else of the
  # catalogue is needed, and importing all of it is slow.
  import tensorflow_datasets.translate  # noqa: F401

  data_dir = os.environ.get('TFDS_DATA_DIR')
  try:
    builder = tfds.builder(name, data_dir=data_dir)
    if not builder.is_prepared():
      logger.info('tfds:%s is not on disk: downloading and preparing', name)
      builder = tfds.builder(
        name, data_dir=data_dir, file_format='array_record'
      )
      builder.download_and_prepare()
  except Exception as error:
    raise InputError(
      f'tfds:{name}: cannot be opened or prepared ({_first_line(error)})'
    ) from error
  file_format = builder.info.file_format
  if file_format != tfds.core.FileFormat.ARRAY_RECORD:
    raise InputError(
      f'tfds:{name}: is stored as {file_format.value}, which only '
      'TensorFlow reads; prepare it with file_format=array_record, in '
      'another TFDS_DATA_DIR'
    )
  return builder


def _open(
  builder: tfds.core.DatasetBuilder,
  name: str,
  split: str,
  languages: tuple[str, str],
) -> Any:
  splits = sorted(builder.info.splits)
  if split.partition('[')[0] not in splits:
    raise InputError(
      f'tfds:{name}: no split {split!r}; it has {", ".join(splits)}'
    )
  features = sorted(builder.info.features)
  for language in languages:
    if language not in features:
      raise InputError(
        f'tfds:{name}: no language {language!r}; it has {", ".join(features)}'
      )
  try:
    return builder.as_data_source(split=split)
  except ValueError as error:
    raise InputError(
      f'tfds:{name}:{split}: cannot be read ({_first_line(error)})'
    ) from error


def _text(value: bytes, where: str) -> str:
  try:
    return ' '.join(_BREAK.split(value.decode('utf-8'))).rstrip()
  except UnicodeDecodeError as error:
    raise InputError(f'{where}: not UTF-8 ({error.reason})') from None


def _first_line(error: Exception) -> str:
  lines = str(error).strip().splitlines()
  return lines[0] if lines else type(error).__name__
