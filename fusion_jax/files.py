"""Reading and writing of files, compressed by the ends of their names; JSON.

Written files and folders are complete or do not exist: content goes into a
temporary neighbour, which takes the place of the file at the end. The neighbour
has an unpredictable name, is newly created, and is opened without following
links. In a file that grows, each piece is complete or absent.
"""

import bz2
import codecs
import contextlib
import errno
import gzip
import hashlib
import io
import json
import lzma
import os
import secrets
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import pydantic

from fusion_jax.bounds import adapter, first_fault
from fusion_jax.errors import InputError, first_line

_Block: TypeAlias = contextlib.AbstractContextManager[None]

# Temporary neighbours of the files and folders that are being written.
_unfinished: set[Path] = set()


@contextlib.contextmanager
def whole_file(path: Path, keep: bool = False) -> Iterator[BinaryIO]:
  """Open a file that appears, or is replaced, once it is completely written.

  A link is followed. Devices and pipes are written directly.
  """
  with write_errors(path):
    final = _resolved(path)
    if final.exists() and not final.is_file():
      with final.open('wb') as file:
        yield file
      return
    with _neighbour(final) as written:
      with _kept(written, final, keep), written.open('xb') as file:
        yield file
      os.replace(written, final)


@contextlib.contextmanager
def _kept(written: Path, final: Path, keep: bool) -> Iterator[None]:
  """Rename what an `InputError` leaves unfinished, if it is to stay."""
  try:
    yield
  except InputError as error:
    if not (keep and written.stat().st_size):
      raise
    part = final.with_name(f'{final.name}.part')
    os.replace(written, part)
    raise InputError(f'{error}; what was finished is in {part}') from error


def write_whole(path: Path, content: bytes) -> None:
  with whole_file(path) as file:
    file.write(content)


@contextlib.contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
  """Create a folder that appears once all of its content is written."""
  check_new_folder(path)
  with write_errors(path):
    final = _resolved(path)
    with _neighbour(final) as written:
      written.mkdir(parents=True)
      yield written
      os.replace(written, final)


def check_new_folder(path: Path, flag: str = '--output') -> None:
  """Refuse a folder that would overwrite something."""
  with write_errors(path):
    fault = ''
    if os.path.lexists(path) and not path.is_dir():
      fault = 'is a file'
    elif path.is_dir() and any(path.iterdir()):
      fault = 'not empty'
  if fault:
    raise InputError(f'{flag}={path}: {fault}; give a new or empty folder')


def write_errors(path: str | Path, advice: str = '') -> _Block:
  """Turn an operating-system error while writing into an `InputError`."""
  return _os_errors(f'{path}: cannot be written', advice and f'; {advice}')


def read_errors(name: str | Path) -> _Block:
  """Turn an operating-system error while reading into an `InputError`."""
  return _os_errors(f'{name}: cannot be read')


@contextlib.contextmanager
def _os_errors(what: str, advice: str = '') -> Iterator[None]:
  try:
    yield
  except BrokenPipeError:
    raise
  except OSError as error:
    reason = error.strerror or first_line(error)
    raise InputError(f'{what}: {reason}{advice}') from error


def check_regular(path: Path) -> None:
  """Refuse what is there but is no file, such as a folder or a pipe."""
  if path.exists() and not path.is_file():
    raise InputError(f'{path}: is a folder, a pipe or a device, not a file')


def same_file(one: str | Path, other: str | Path) -> bool:
  """Return whether two paths name the same file, however they are spelled."""
  try:
    return os.path.samefile(one, other)
  except OSError:  # One of them does not exist.
    return os.path.realpath(one) == os.path.realpath(other)


@contextlib.contextmanager
def _neighbour(path: Path) -> Iterator[Path]:
  """Yield an unpredictable path in the same folder; remove it at the end."""
  neighbour = path.with_name(f'.{secrets.token_hex(8)}.part')
  _unfinished.add(neighbour)
  try:
    yield neighbour
  finally:
    _remove(neighbour)
    _unfinished.discard(neighbour)


def remove_unfinished() -> None:
  """Remove all unfinished files and folders, before the process ends."""
  for path in _unfinished:
    _remove(path)


def _resolved(path: Path) -> Path:
  """Return where links lead; OSError if they lead to each other."""
  final = Path(os.path.realpath(path))
  if final.is_symlink():
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
  return final


def _remove(path: Path) -> None:
  if path.is_dir():
    shutil.rmtree(path, ignore_errors=True)
  else:
    path.unlink(missing_ok=True)


class AppendedFile:
  """A file that grows by complete pieces. Call `close` at the end."""

  def __init__(self, path: Path):
    """Open a file for appending, and create it if it does not exist."""
    self._path = path
    with self._errors():
      self._file = path.open('ab', buffering=0)

  def _errors(self) -> _Block:
    return write_errors(
      self._path,
      'run the same command again when it can, it resumes from the last whole '
      'checkpoint',
    )

  def append(self, piece: bytes) -> None:
    """Append a piece; if only part of it fits on the disk, remove that part."""
    about = os.fstat(self._file.fileno())
    with self._errors():
      if not about.st_nlink:
        raise OSError(errno.ENOENT, 'it was deleted')
      try:
        if self._file.write(piece) < len(piece):
          raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
      except OSError:
        self._file.truncate(about.st_size)
        raise

  def close(self) -> None:
    with self._errors():
      self._file.close()


_OPENERS: dict[str, Callable[..., Any]] = {
  # Without a name and a time the same content is the same file.
  '.gz': lambda file, mode: gzip.GzipFile('', mode, fileobj=file, mtime=0),
  '.bz2': bz2.BZ2File,
  '.xz': lzma.LZMAFile,
}
_CHUNK_BYTES = 1 << 20


@contextlib.contextmanager
def open_to_read(path: Path) -> Iterator[BinaryIO]:
  """Open a file for reading, decompressed."""
  with path.open('rb') as file:
    if opener := _OPENERS.get(path.suffix):
      with io.BufferedReader(opener(file, 'rb'), _CHUNK_BYTES) as unpacked:
        yield unpacked
    else:
      yield file


@contextlib.contextmanager
def open_to_write(path: Path, keep: bool = False) -> Iterator[BinaryIO]:
  """Open a file as `whole_file` does, and compress what is written."""
  with whole_file(path, keep) as file:
    if opener := _OPENERS.get(path.suffix):
      with io.BufferedWriter(opener(file, 'wb'), _CHUNK_BYTES) as packed:
        yield packed
    else:
      yield file


def whole_lines(file: Iterable[bytes]) -> Iterator[bytes]:
  r"""Yield lines, split at \n alone, without their ends and byte order mark."""
  for number, line in enumerate(file):
    line = line.rstrip(b'\r\n')
    while number == 0 and line.startswith(codecs.BOM_UTF8):
      line = line.removeprefix(codecs.BOM_UTF8)
    yield line


@contextlib.contextmanager
def unpack_errors(name: str | Path) -> Iterator[None]:
  """Turn an error while reading or decompressing into an `InputError`."""
  with read_errors(name):
    try:
      yield
    except EOFError:
      raise InputError(
        f'{name}: the compressed file is cut off; copy or download it again'
      ) from None
    except (gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
      raise InputError(
        f'{name}: not a readable {Path(name).suffix} file ({error})'
      ) from None


@contextlib.contextmanager
def open_file(path: Path) -> Iterator[BinaryIO]:
  """Open a regular file for reading, decompressed; all errors are of it."""
  check_regular(path)
  with unpack_errors(path), open_to_read(path) as file:
    yield file


def read_json(path: Path, kind: Any = Any) -> Any:
  check_regular(path)
  with read_errors(path):
    content = path.read_bytes()
  return parse_json(content, str(path), kind)


def parse_json(text: str | bytes, where: str, kind: Any = Any) -> Any:
  """Parse JSON with finite numbers and with texts that UTF-8 can encode."""
  try:
    value = json.loads(text)
    json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
  except RecursionError:
    raise InputError(f'{where}: nested too deep') from None
  except ValueError as error:
    raise InputError(f'{where}: not JSON: {error}') from None
  as_type(value, kind, where)
  return value


def as_type(value: Any, kind: Any, where: str) -> Any:
  """Return JSON values as a type, or refuse those of another."""
  try:
    return adapter(kind).validate_python(value)
  except pydantic.ValidationError as error:
    field, message = first_fault(error)
    place = f'{where}: {field}' if field else where
    raise InputError(f'{place}: {message}') from None


_SEAL = 'sha256'


class DamagedError(Exception):
  """Content differs from what was written; the message is one line."""


def sealed(values: Mapping[str, Any]) -> dict[str, Any]:
  """Return values as JSON reads them back, with the SHA-256 of their text."""
  content: dict[str, Any] = json.loads(json.dumps(values))
  return content | {_SEAL: _digest(content)}


def check_seal(values: Mapping[str, Any], name: str) -> None:
  content = {key: value for key, value in values.items() if key != _SEAL}
  if values.get(_SEAL) != _digest(content):
    raise DamagedError(f'{name} does not agree with its digest')


def _digest(values: Mapping[str, Any]) -> str:
  canonical = json.dumps(values, sort_keys=True)
  return hashlib.sha256(canonical.encode()).hexdigest()


def file_digest(path: Path) -> str:
  check_regular(path)
  with path.open('rb') as file:
    return hashlib.file_digest(file, 'sha256').hexdigest()
