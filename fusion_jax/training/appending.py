"""Files of a run that grow: each piece is whole in them, or not there."""

import errno
import os
from pathlib import Path

from fusion_jax.files import write_errors

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
