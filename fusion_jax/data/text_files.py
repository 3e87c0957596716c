"""Parallel text files: plain, `.gz`, `.bz2` or `.xz`, one sentence per line."""

import contextlib
import hashlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from fusion_jax.errors import InputError
from fusion_jax.files import (
  open_to_read,
  read_errors,
  unpack_errors,
  whole_lines,
)

_CHUNK_BYTES = 1 << 20


def read_pairs(source: Path, target: Path) -> Iterator[tuple[str, str]]:
  """Yield the line pairs of two files as they stand, in order."""
  pairs = itertools.zip_longest(_read_lines(source), _read_lines(target))
  for source_line, target_line in pairs:
    if source_line is None or target_line is None:
      count_pairs(source, target)
    yield source_line, target_line


def count_pairs(source: Path, target: Path) -> int:
  """Count the line pairs; raises InputError as `read_pairs` does."""
  source_lines, target_lines = _count_lines(source), _count_lines(target)
  if source_lines != target_lines:
    raise InputError(
      f'{source} has {source_lines:,} lines but {target} has '
      f'{target_lines:,}: line i of one must translate line i of the other'
    )
  return source_lines


def fingerprint(source: Path, target: Path) -> str:
  """Return a hash of the bytes of both files."""
  digests = []
  for path in (source, target):
    with read_errors(path):
      _check_regular(path)
      with path.open('rb') as file:
        digests.append(hashlib.file_digest(file, 'sha256').hexdigest())
  return ' '.join(digests)


def _read_lines(path: Path) -> Iterator[str]:
  number = 0
  with _open(path) as file:
    for number, line in enumerate(whole_lines(file), start=1):
      try:
        yield line.decode('utf-8')
      except UnicodeDecodeError as error:
        raise InputError(
          f'{path}, line {number}: not UTF-8 ({error.reason} at byte '
          f'{error.start + 1} of the line)'
        ) from None
  if number == 0:
    raise InputError(f'{path}: the file is empty')


def _count_lines(path: Path) -> int:
  lines, returns, last = 0, 0, b'\n'
  with _open(path) as file:
    while chunk := file.read(_CHUNK_BYTES):
      lines += chunk.count(b'\n')
      returns += chunk.count(b'\r')
      last = chunk[-1:]
  if returns > 1 and not lines:
    raise InputError(
      f'{path}: its lines end in a carriage return alone; convert them to '
      r'line feeds, with tr "\r" "\n" for example'
    )
  lines += last != b'\n'
  if lines == 0:
    raise InputError(f'{path}: the file is empty')
  return lines


@contextlib.contextmanager
def _open(path: Path) -> Iterator[BinaryIO]:
  with unpack_errors(path):
    _check_regular(path)
    with open_to_read(path) as file:
      yield file


def _check_regular(path: Path) -> None:
  if not path.exists():
    raise InputError(f'{path}: no such file')
  if not path.is_file():
    raise InputError(
      f'{path}: is no regular file; a corpus is read several times, so that it '
      'cannot be a folder, a pipe or a device'
    )
