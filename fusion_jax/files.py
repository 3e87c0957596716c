"""Files and folders that are whole or not there, and files that are the same.

What is written goes into a neighbour with an unpredictable name, made anew and
without following links, which takes the place of the file at the end. Of a file
that grows, each piece is whole or not there.
"""

import contextlib
import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from fusion_jax.errors import InputError, first_line

# Neighbours of what is being written.
_unfinished: set[Path] = set()


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
  """Open a file that appears, or is replaced, when all of it is written.

  A link is followed: the file that it names is replaced. Devices and pipes are
  written directly.

  Args:
    path: Name of the file.

  Yields:
    The file, opened for writing bytes.

  Raises:
    InputError: It cannot be written; what was there before is left as it was.
  """
  with write_errors(path):
    final = path.resolve()
    if final.exists() and not final.is_file():
      with final.open('wb') as file:
        yield file
      return
    with _neighbour(final) as written:
      with written.open('xb') as file:
        yield file
      os.replace(written, final)


def write_whole(path: Path, content: bytes) -> None:
  """Write a file, whole or not at all.

  Raises:
    InputError: It cannot be written.
  """
  with whole_file(path) as file:
    file.write(content)


@contextlib.contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
  """Make a folder that appears when all that is in it is written.

  Args:
    path: Name of the folder; it does not exist or is empty.

  Yields:
    A neighbour to write into. It is removed if something fails.

  Raises:
    InputError: There is such a file or folder already, or it cannot be written.
  """
  check_new_folder(path)
  with write_errors(path):
    final = path.resolve()
    with _neighbour(final) as written:
      written.mkdir(parents=True)
      yield written
      os.replace(written, final)


def check_new_folder(path: Path, flag: str = '--output') -> None:
  """Refuse to write over something.

  Args:
    path: Name of a folder that is to be made.
    flag: Option that named it, for the message.

  Raises:
    InputError: The path is a file, or a folder that is not empty.
  """
  with write_errors(path):
    if not os.path.lexists(path):
      return
    if not path.is_dir():
      raise InputError(f'{flag}={path}: is a file; give a new or empty folder')
    if any(path.iterdir()):
      raise InputError(f'{flag}={path}: not empty; give a new or empty folder')


@contextlib.contextmanager
def write_errors(path: Path, advice: str = '') -> Iterator[None]:
  """Turn a failure of the disk into one line.

  Args:
    path: What is written inside the block.
    advice: What to do about it.

  Raises:
    InputError: It cannot be written.
  """
  try:
    yield
  except BrokenPipeError:
    raise
  except OSError as error:
    reason = error.strerror or first_line(error)
    advice = advice and f'; {advice}'
    raise InputError(f'{path}: cannot be written: {reason}{advice}') from error


@contextlib.contextmanager
def read_errors(name: str | Path) -> Iterator[None]:
  """Turn a failure to read into one line.

  Args:
    name: What is read inside the block.

  Raises:
    InputError: It cannot be read.
  """
  try:
    yield
  except OSError as error:
    reason = error.strerror or first_line(error)
    raise InputError(f'{name}: cannot be read: {reason}') from error


def same_file(one: str | Path, other: str | Path) -> bool:
  """Return whether two paths name one file, whatever way they are written."""
  if os.path.realpath(one) == os.path.realpath(other):
    return True
  try:
    return os.path.samefile(one, other)
  except OSError:
    return False


@contextlib.contextmanager
def _neighbour(path: Path) -> Iterator[Path]:
  """A path in the same folder that nobody can guess; removed at the end."""
  neighbour = path.with_name(f'.{secrets.token_hex(8)}.part')
  _unfinished.add(neighbour)
  try:
    yield neighbour
  finally:
    _remove(neighbour)
    _unfinished.discard(neighbour)


def remove_unfinished() -> None:
  """Remove all that is being written, before the process ends."""
  for path in _unfinished:
    _remove(path)


def _remove(path: Path) -> None:
  if path.is_dir():
    shutil.rmtree(path, ignore_errors=True)
  else:
    path.unlink(missing_ok=True)


_ADVICE = (
  'run the same command again when it can, it resumes from the last whole '
  'checkpoint'
)


class AppendedFile:
  """A file that grows by whole pieces. Call `close` at the end."""

  def __init__(self, path: Path):
    """Opens a file, or makes it.

    Raises:
      InputError: it cannot be opened.
    """
    self._path = path
    with write_errors(path, _ADVICE):
      self._file = path.open('ab', buffering=0)

  def append(self, piece: bytes) -> None:
    """Writes a piece at the end; takes back what a full disk cuts off.

    Raises:
      InputError: it cannot be written.
    """
    about = os.fstat(self._file.fileno())
    with write_errors(self._path, _ADVICE):
      if not about.st_nlink:
        raise OSError(errno.ENOENT, 'it was deleted')
      try:
        if self._file.write(piece) < len(piece):
          raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
      except OSError:
        self._file.truncate(about.st_size)
        raise

  def close(self) -> None:
    """Closes the file."""
    with write_errors(self._path, _ADVICE):
      self._file.close()
