"""Parallel text files: plain, `.gz`, `.bz2` or `.xz`, one sentence per line."""

import bz2
import contextlib
import gzip
import hashlib
import io
import itertools
import lzma
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fusion_jax.data.normalise import normalise
from fusion_jax.errors import InputError, first_line

_OPENERS: dict[str, Callable[..., Any]] = {
  '.bz2': bz2.open,
  '.gz': gzip.open,
  '.xz': lzma.open,
}
_CHUNK_BYTES = 1 << 20


def read_pairs(source: Path, target: Path) -> Iterator[tuple[str, str]]:
  """Yield the normalised line pairs of two files, in order.

  Args:
    source: File of the source language.
    target: File of the target language.

  Yields:
    (source line, target line).

  Raises:
    InputError: A file is missing, empty, cut off or not UTF-8, or the two
      have different numbers of lines.
  """
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
    with _told_by_name(path), _open_raw(path) as file:
      digests.append(hashlib.file_digest(file, 'sha256').hexdigest())
  return ' '.join(digests)


def _read_lines(path: Path) -> Iterator[str]:
  number = 0
  with _told_by_name(path), _open(path) as file:
    # Bytes are split at \n only, whereas str.splitlines also splits at U+2028.
    for number, line in enumerate(file, start=1):
      try:
        text = line.decode('utf-8')
      except UnicodeDecodeError as error:
        raise InputError(
          f'{path}, line {number}: not UTF-8 ({error.reason} at byte '
          f'{error.start + 1} of the line)'
        ) from None
      yield normalise(text)
  if number == 0:
    raise InputError(f'{path}: the file is empty')


def _count_lines(path: Path) -> int:
  lines, returns, last = 0, 0, b'\n'
  with _told_by_name(path), _open(path) as file:
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


def _open(path: Path) -> io.BufferedReader:
  """Open a file for reading, decompressed."""
  opener = _OPENERS.get(path.suffix)
  if opener is None:
    return _open_raw(path)
  _check_regular(path)
  return io.BufferedReader(opener(path, 'rb'), _CHUNK_BYTES)


def _open_raw(path: Path) -> io.BufferedReader:
  _check_regular(path)
  return path.open('rb')


def _check_regular(path: Path) -> None:
  if path.exists() and not path.is_file():
    raise InputError(
      f'{path}: is no regular file; a corpus is read several times, so that it '
      'cannot be a folder, a pipe or a device'
    )


@contextlib.contextmanager
def _told_by_name(path: Path) -> Iterator[None]:
  """Turn an error in reading a file into one line that names the file."""
  try:
    yield
  except EOFError:
    raise InputError(
      f'{path}: the compressed file is cut off; copy or download it again'
    ) from None
  except (gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
    raise InputError(
      f'{path}: not a readable {path.suffix} file ({error})'
    ) from None
  except FileNotFoundError:
    raise InputError(f'{path}: no such file') from None
  except OSError as error:
    reason = error.strerror or first_line(error)
    raise InputError(f'{path}: cannot be read: {reason}') from None
