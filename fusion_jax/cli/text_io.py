"""Lines of text read from and written to files and pipes."""

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from fusion_jax.compressed import (
  open_to_read,
  open_to_write,
  unpack_errors,
  whole_lines,
)
from fusion_jax.errors import InputError
from fusion_jax.files import read_errors
from fusion_jax.parallel.distributed import is_first

logger = logging.getLogger(__name__)

_CHUNK_BYTES = 1 << 20


def split_paths(text: str) -> list[str]:
  """Split paths at commas, unless a path with this whole name exists."""
  return [text] if os.path.exists(text) else text.split(',')


@contextlib.contextmanager
def open_input(path: str) -> Iterator[BinaryIO]:
  """Open a file to read, decompressed, or stdin where the path is empty.

  Raises:
    InputError: The file cannot be opened, or stdin is closed.
  """
  if not path:
    if sys.stdin is None:
      raise InputError('stdin: is closed; give --input=FILE')
    yield sys.stdin.buffer
    return
  with contextlib.ExitStack() as stack:
    with read_errors(path):
      file = stack.enter_context(open_to_read(Path(path)))
    yield file


def read_lines(file: Iterable[bytes], name: str) -> Iterator[str]:
  """Yield the lines of a file, without their ends.

  Lines are those of `whole_lines`: as sacreBLEU reads them, but without a byte
  order mark. Bytes that are not UTF-8 become U+FFFD, with one warning a file.

  Args:
    file: Lines of bytes, as files give them.
    name: Name of the file in the warning.

  Yields:
    Lines; an end of line at the end of the file does not start another.
  """
  warned = False
  lines = whole_lines(_read(file, name))
  for number, line in enumerate(lines, start=1):
    try:
      text = line.decode('utf-8')
    except UnicodeDecodeError:
      text = line.decode('utf-8', errors='replace')
      if not warned:
        logger.warning(
          '%s, line %d: not UTF-8; its bad bytes, and those of later lines, '
          'are replaced by U+FFFD',
          name,
          number,
        )
      warned = True
    yield text


def _read(file: Iterable[bytes], name: str) -> Iterator[bytes]:
  with unpack_errors(name):
    yield from file


def count_lines(path: str) -> int | None:
  """Count the lines that `read_lines` yields; None for stdin and pipes."""
  if not Path(path).is_file():
    return None
  lines, last = 0, b'\n'
  with open_input(path) as file, unpack_errors(path):
    while chunk := file.read(_CHUNK_BYTES):
      lines += chunk.count(b'\n')
      last = chunk[-1:]
  return lines + (last != b'\n')


@contextlib.contextmanager
def open_output(path: str) -> Iterator[Callable[[str], None]]:
  """Open a file or stdout for lines, on process 0.

  Args:
    path: Name of a file, as for `open_whole`; empty for stdout.

  Yields:
    A function that writes one line, given without its end.

  Raises:
    InputError: It cannot be written.
  """
  if not path and is_first():
    if sys.stdout is None:
      raise InputError('stdout: is closed; give --output=FILE')
    yield _write_to_stdout
    return
  with open_whole(path) as file:
    yield lambda line: _write_line(file.write, line)


def _write_to_stdout(line: str) -> None:
  _write_line(sys.stdout.buffer.write, line)
  sys.stdout.buffer.flush()


def _write_line(write: Callable[[bytes], object], line: str) -> None:
  write(line.encode('utf-8') + b'\n')


def open_whole(path: str) -> contextlib.AbstractContextManager[BinaryIO]:
  """Open a file as `open_to_write` does, on process 0; others write nothing."""
  return open_to_write(Path(path if is_first() else os.devnull))
