"""A folder that is written whole or not at all."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from fusion_jax.errors import InputError


def check_new(path: Path) -> None:
  """Refuses to write over something.

  Raises:
    InputError: the path is a file, or a folder that is not empty.
  """
  if path.exists() and not path.is_dir():
    raise InputError(f'--output={path}: is a file; give a new or empty folder')
  if path.is_dir() and any(path.iterdir()):
    raise InputError(f'--output={path}: not empty; give a new or empty folder')


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
  """A neighbour of a folder, which gets its name when all is written.

  If something fails, the neighbour is removed.

  Args:
    path: of the folder; it does not exist or is empty.

  Yields:
    The folder to write into.

  Raises:
    InputError: the folder is not empty or cannot be written.
  """
  check_new(path)
  final = Path(os.path.realpath(path))
  written = final.with_name(f'.{final.name}.{os.getpid()}')
  try:
    written.mkdir(parents=True)
    yield written
    os.replace(written, final)
  except OSError as error:
    raise InputError(
      f'--output={path}: cannot be written ({error.strerror})'
    ) from error
  finally:
    shutil.rmtree(written, ignore_errors=True)
