"""Files that are compressed if their name ends in `.gz`, `.bz2` or `.xz`."""

import bz2
import codecs
import contextlib
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from fusion_jax.errors import InputError
from fusion_jax.files import read_errors, whole_file

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
    opener = _OPENERS.get(path.suffix)
    if opener is None:
      yield file
      return
    with io.BufferedReader(opener(file, 'rb'), _CHUNK_BYTES) as unpacked:
      yield unpacked


@contextlib.contextmanager
def open_to_write(path: Path, keep: bool = False) -> Iterator[BinaryIO]:
  """Open a file as `files.whole_file` does, and compress what is written."""
  with whole_file(path, keep) as file:
    opener = _OPENERS.get(path.suffix)
    if opener is None:
      yield file
      return
    with io.BufferedWriter(opener(file, 'wb'), _CHUNK_BYTES) as packed:
      yield packed


def whole_lines(file: Iterable[bytes]) -> Iterator[bytes]:
  r"""Yield the lines of a file without their ends and byte order mark.

  Bytes are split at \n only, whereas str.splitlines also splits at U+2028; the
  carriage return of CRLF belongs to the end.
  """
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
