"""The validation text of a run, kept in its run directory.

Who looks at a run later needs no other file, and a run directory that comes
from elsewhere cannot make a program read files or start downloads that its
config names.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

from fusion_jax.data.prepared import PreparedCorpus
from fusion_jax.data.text_files import read_pairs
from fusion_jax.errors import InputError
from fusion_jax.files import write_errors, write_whole

_FOLDER = 'validation'


def write_validation(workdir: Path, corpus: PreparedCorpus) -> None:
  """Keep the validation text of a corpus in the run directory.

  Raises:
    InputError: It cannot be written.
  """
  if not corpus.has_split('valid'):
    return
  folder = workdir / _FOLDER
  with write_errors(folder):
    folder.mkdir(exist_ok=True)
  for direction in corpus.split('valid').directions:
    texts = corpus.split('valid', direction).texts()
    for path, lines in zip(_texts(folder, direction), texts, strict=True):
      if not path.exists():
        write_whole(path, ''.join(f'{line}\n' for line in lines).encode())


def copy_validation(workdir: Path, to: Path) -> None:
  """Copy the validation text, if there is one, into another run directory."""
  if (workdir / _FOLDER).is_dir():
    shutil.copytree(workdir / _FOLDER, to / _FOLDER)


def read_validation(workdir: Path, direction: str) -> Iterator[tuple[str, str]]:
  """Read the validation text of a run.

  Args:
    workdir: Run directory.
    direction: Name of the direction, 'en-de' for example.

  Yields:
    Source and target line, normalised.

  Raises:
    InputError: The run holds no such text.
  """
  source, target = _texts(workdir / _FOLDER, direction)
  if not (source.is_file() and target.is_file()):
    raise InputError(
      f'{workdir}: holds no validation text of {direction}; give --source and '
      '--target'
    )
  yield from read_pairs(source, target)


def _texts(folder: Path, direction: str) -> tuple[Path, Path]:
  if '/' in direction:
    raise InputError(f'{direction!r}: is no name of a direction')
  return folder / f'{direction}.source', folder / f'{direction}.target'
