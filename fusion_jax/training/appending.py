"""Files of a run that grow: each piece is whole in them, or not there."""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from fusion_jax.errors import InputError


@contextlib.contextmanager
def write_errors(path: Path) -> Iterator[None]:
  """Turns a failure of the disk into one line.

  Args:
    path: what is written inside the block.

  Raises:
    InputError: it cannot be written.
  """
  try:
    yield
  except OSError as error:
    raise InputError(
      f'{path}: cannot be written: {error.strerror}; run the same command '
      'again when it can, it goes on from the last whole checkpoint'
    ) from error


class AppendedFile:
  """A file that grows by whole pieces. Call `close` at the end."""

  def __init__(self, path: Path):
    """Opens a file, or makes it.

    Raises:
      InputError: it cannot be opened.
    """
    self._path = path
    with write_errors(path):
      self._file = path.open('ab', buffering=0)

  def append(self, piece: bytes) -> None:
    """Writes a piece at the end; takes back what a full disk cuts off.

    Raises:
      InputError: it cannot be written.
    """
    size = os.fstat(self._file.fileno()).st_size
    with write_errors(self._path):
      try:
        if self._file.write(piece) < len(piece):
          raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
      except OSError:
        self._file.truncate(size)
        raise

  def close(self) -> None:
    """Closes the file."""
    with write_errors(self._path):
      self._file.close()
