"""The part of a corpus that a run directory keeps: counts and validation text.

A later look at a run needs no other file. And a run directory that comes from
elsewhere cannot make a program read files or start downloads that its config
names.

DIR/corpus/report.json                        the report of the prepared corpus
DIR/corpus/DIRECTION.source, DIRECTION.target the validation text
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fusion_jax.data.prepared import PreparedCorpus
from fusion_jax.data.text_files import read_pairs
from fusion_jax.errors import InputError
from fusion_jax.files import (
  check_regular,
  read_errors,
  write_errors,
  write_whole,
)
from fusion_jax.json_input import read_json

_FOLDER, _REPORT = 'corpus', 'report.json'


def write_corpus(workdir: Path, corpus: PreparedCorpus) -> None:
  """Write the report and the validation text of a corpus.

  Raises:
    InputError: The files cannot be written.
  """
  folder = workdir / _FOLDER
  with write_errors(folder):
    folder.mkdir(exist_ok=True)
  report = json.dumps(corpus.report, ensure_ascii=False, indent=1)
  write_whole(folder / _REPORT, report.encode() + b'\n')
  if not corpus.has_split('valid'):
    return
  for direction in corpus.split('valid').directions:
    texts = corpus.split('valid', direction).texts()
    for path, lines in zip(_texts(folder, direction), texts, strict=True):
      if not path.exists():
        write_whole(path, ''.join(f'{line}\n' for line in lines).encode())


def copy_corpus(workdir: Path, to: Path) -> None:
  """Copy the kept part of a corpus, if any, into another run directory.

  Raises:
    InputError: A file cannot be read, or is none.
  """
  folder = workdir / _FOLDER
  if not folder.is_dir():
    return
  (to / _FOLDER).mkdir()
  for path in folder.iterdir():
    check_regular(path)
    with read_errors(path):
      content = path.read_bytes()
    (to / _FOLDER / path.name).write_bytes(content)


def read_report(workdir: Path) -> dict[str, Any]:
  """Read the report of the prepared corpus; {} where it was not kept.

  Raises:
    InputError: The report is damaged.
  """
  path = workdir / _FOLDER / _REPORT
  return read_json(path, dict[str, Any]) if path.is_file() else {}


def read_validation(workdir: Path, direction: str) -> Iterator[tuple[str, str]]:
  """Read the validation text of a run.

  Args:
    workdir: Run directory.
    direction: Name of the direction, 'en-de' for example.

  Yields:
    Source and target line, as they stand in the corpus.

  Raises:
    InputError: The run directory does not hold this text.
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
