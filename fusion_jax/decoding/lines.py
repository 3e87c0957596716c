"""Lines of text from files and pipes, and back."""

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from fusion_jax.errors import InputError
from fusion_jax.parallel.distributed import is_first

logger = logging.getLogger(__name__)

_CHUNK_BYTES = 1 << 20


def split_paths(text: str) -> list[str]:
  """Paths with commas between; or the one of this name that is there."""
  return [text] if os.path.exists(text) else text.split(',')


@contextlib.contextmanager
def open_input(path: str) -> Iterator[BinaryIO]:
  """A file to read, or stdin where the path is empty.

  Raises:
    InputError: the file cannot be opened.
  """
  if not path:
    yield sys.stdin.buffer
    return
  with contextlib.ExitStack() as stack:
    try:
      file = stack.enter_context(open(path, 'rb'))
    except OSError as error:
      raise InputError(f'{path}: cannot be read ({error.strerror})') from None
    yield file


def read_lines(file: Iterable[bytes], name: str) -> Iterator[str]:
  r"""The lines of a file, without their ends.

  Bytes are split at \n only: str.splitlines would also split at U+2028 and
  others. Bytes that are not UTF-8 become U+FFFD, with one warning a file.

  Args:
    file: gives lines of bytes, as files do.
    name: of the file in the warning.

  Yields:
    Lines; an end of line at the end of the file does not start another.
  """
  warned = False
  for number, line in enumerate(file, start=1):
    line = line.removesuffix(b'\n')
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


def count_lines(path: str) -> int | None:
  """The lines that `read_lines` gives; None for stdin and pipes."""
  if not Path(path).is_file():
    return None
  lines, last = 0, b'\n'
  with open_input(path) as file:
    while chunk := file.read(_CHUNK_BYTES):
      lines += chunk.count(b'\n')
      last = chunk[-1:]
  return lines + (last != b'\n')


@contextlib.contextmanager
def open_output(path: str) -> Iterator[Callable[[str], None]]:
  """A function that writes a line, to a file or to stdout, on process 0.

  Args:
    path: of the file, as for `open_whole`; empty for stdout.

  Yields:
    Writes one line, given without its end.

  Raises:
    InputError: the file cannot be written.
  """
  if not path and is_first():
    write = _line_writer(sys.stdout.buffer)

    def write_now(line: str) -> None:
      write(line)
      sys.stdout.buffer.flush()

    yield write_now
    return
  with open_whole(path) as file:
    yield _line_writer(file)


@contextlib.contextmanager
def open_whole(path: str) -> Iterator[BinaryIO]:
  """A file to write that appears when all is written.

  Until then its bytes are in a neighbour, which is removed if something
  fails. Devices and pipes are written directly. Only process 0 writes.

  Args:
    path: of the file.

  Yields:
    The file.

  Raises:
    InputError: it cannot be written.
  """
  final = Path(os.path.realpath(path if is_first() else os.devnull))
  direct = final.exists() and not final.is_file()
  written = final if direct else final.with_name(f'.{final.name}.{os.getpid()}')
  try:
    with _told_by_name(path), written.open('wb') as file:
      yield file
    if not direct:
      os.replace(written, final)
  finally:
    if not direct:
      written.unlink(missing_ok=True)


def _line_writer(file: BinaryIO) -> Callable[[str], None]:
  def write(line: str) -> None:
    file.write(line.encode('utf-8') + b'\n')

  return write


@contextlib.contextmanager
def _told_by_name(path: str) -> Iterator[None]:
  try:
    yield
  except BrokenPipeError:
    raise
  except OSError as error:
    raise InputError(f'{path}: cannot be written ({error.strerror})') from None
