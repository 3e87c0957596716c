"""Lines of text read from and written to files and pipes."""

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from fusion_jax.errors import InputError
from fusion_jax.files import (
  open_to_read,
  open_to_write,
  read_errors,
  unpack_errors,
  whole_lines,
)
from fusion_jax.parallel.processes import is_first

logger = logging.getLogger(__name__)

# No line of text is longer.
_MOST_BYTES = 16 * 2**20


def split_paths(text: str) -> list[str]:
  """Split paths at commas, unless a path with this whole name exists."""
  return [text] if os.path.exists(text) else text.split(',')


@contextlib.contextmanager
def open_input(path: str) -> Iterator[BinaryIO]:
  """Open a file to read, decompressed, or stdin where the path is empty."""
  if not path:
    if sys.stdin is None:
      raise InputError('stdin: is closed; give --input=FILE')
    yield sys.stdin.buffer
    return
  with contextlib.ExitStack() as stack:
    with read_errors(path):
      file = stack.enter_context(open_to_read(Path(path)))
    yield file


def read_lines(
  file: Iterable[bytes], name: str, again: bool = False
) -> Iterator[str]:
  """Yield the lines of a file, without their ends.

  Lines are those of `whole_lines`: as sacreBLEU reads them, but without a byte
  order mark. Bytes that are not UTF-8 become U+FFFD, with one warning a file.
  """
  warned = again
  lines = whole_lines(_read(file, name))
  for number, line in enumerate(lines, start=1):
    if 0 in line:
      raise InputError(
        f'{name}, line {number}: is no text: it has a byte of value 0; give '
        'UTF-8, and end the name of a packed file in .gz, .bz2 or .xz'
      )
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
  """Yield lines; a device without line ends must not fill the memory."""
  read = getattr(file, 'readline', None)
  with unpack_errors(name):
    for line in iter(lambda: read(_MOST_BYTES + 1), b'') if read else file:
      if len(line) > _MOST_BYTES:
        raise InputError(f'{name}: is no text: a line has more than 16 MiB')
      yield line


@contextlib.contextmanager
def open_output(
  path: str, keep: bool = False
) -> Iterator[Callable[[str], object]]:
  """Open a file or stdout for lines, on process 0."""
  if not path and is_first():
    if sys.stdout is None:
      raise InputError('stdout: is closed; give --output=FILE')
    yield _write_to_stdout
    return
  with open_whole(path, keep) as file:
    yield lambda line: file.write(f'{line}\n'.encode())


def _write_to_stdout(line: str) -> None:
  sys.stdout.buffer.write(f'{line}\n'.encode())
  sys.stdout.buffer.flush()


def open_whole(
  path: str, keep: bool = False
) -> contextlib.AbstractContextManager[BinaryIO]:
  """Open a file as `open_to_write` does, on process 0; others write nothing."""
  return open_to_write(Path(path if is_first() else os.devnull), keep)
