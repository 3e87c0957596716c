"""Parallel text files: plain, `.gz`, `.bz2` or `.xz`, one sentence per line."""

import contextlib
import dataclasses
import hashlib
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from fusion_jax.compressed import open_to_read, unpack_errors, whole_lines
from fusion_jax.errors import InputError
from fusion_jax.files import read_errors

_CHUNK_BYTES = 1 << 20
# Pairs that are read, encoded and written together.
CHUNK_PAIRS = 4_096


@dataclasses.dataclass(frozen=True)
class RawPairs:
  """Consecutive line pairs of two files, decoded when they are iterated.

  Attributes:
    paths: The two files.
    before: Number of lines before these.
    lines: Lines of each file, as many of one as of the other.
  """

  paths: tuple[Path, Path]
  before: int
  lines: tuple[list[bytes], list[bytes]]

  def __len__(self) -> int:
    """Return the number of pairs."""
    return len(self.lines[0])

  def __iter__(self) -> Iterator[tuple[str, str]]:
    """Decode the pairs; raises InputError at the first that is not UTF-8."""
    source, target = (
      _decoded(path, lines, self.before)
      for path, lines in zip(self.paths, self.lines, strict=True)
    )
    return zip(source, target, strict=True)


def read_pairs(source: Path, target: Path) -> Iterator[tuple[str, str]]:
  """Yield the line pairs of two files as they stand, in order."""
  return itertools.chain.from_iterable(read_chunks(source, target))


def read_chunks(source: Path, target: Path) -> Iterator[RawPairs]:
  """Yield the line pairs of two files in chunks; see `read_pairs`."""
  before = 0
  nothing: list[bytes] = []
  for lines in itertools.zip_longest(
    _read_lines(source), _read_lines(target), fillvalue=nothing
  ):
    if len(lines[0]) != len(lines[1]):
      count_pairs(source, target)
    yield RawPairs((source, target), before, lines)
    before += len(lines[0])
  if before == 0:
    count_pairs(source, target)


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


def _read_lines(path: Path) -> Iterator[list[bytes]]:
  with _open(path) as file:
    while lines := list(itertools.islice(file, CHUNK_PAIRS)):
      yield lines


def _decoded(path: Path, lines: Iterable[bytes], before: int) -> Iterator[str]:
  whole = whole_lines(lines, first=before == 0)
  for number, line in enumerate(whole, start=before + 1):
    try:
      yield line.decode('utf-8')
    except UnicodeDecodeError as error:
      raise InputError(
        f'{path}, line {number}: not UTF-8 ({error.reason} at byte '
        f'{error.start + 1} of the line)'
      ) from None


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
