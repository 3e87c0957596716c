"""The run directory: its files, and who trains in it.

`docs/training.md` lists the files. A later look at a run needs no other. And a
run directory that comes from elsewhere cannot make a program read files or
start downloads that its config names.
"""

import contextlib
import datetime
import fcntl
import json
import logging
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from fusion_jax import __version__
from fusion_jax.config import ExperimentConfig, serialization
from fusion_jax.data.corpora import read_files
from fusion_jax.data.tokenizer import Tokenizer
from fusion_jax.errors import InputError
from fusion_jax.files import (
  check_regular,
  parse_json,
  read_errors,
  read_json,
  write_errors,
  write_whole,
)

logger = logging.getLogger(__name__)

# What a start leaves that ends before config.json is written.
_BEFORE_CONFIG = {'lock', 'source.model', 'target.model'}


def read_config(workdir: Path) -> ExperimentConfig:
  """Read the config of a run directory."""
  path = workdir / 'config.json'
  if not path.exists():
    raise InputError(
      f'{workdir}: not a run directory: it has no config.json; '
      'give the --workdir of a training run'
    )
  return serialization.from_json(path)


def read_tokenizers(workdir: Path) -> tuple[Tokenizer, Tokenizer]:
  """Read the source and the target tokenizer of a run directory."""
  source, target = (
    Tokenizer.from_file(workdir / f'{side}.model')
    for side in ('source', 'target')
  )
  return source, target


def write_version(workdir: Path) -> None:
  """Record the version of this package, and its commit in a checkout."""
  root, version = Path(__file__).parents[2], __version__
  if (root / '.git').exists():
    git = ['git', '-C', str(root), 'describe', '--always', '--dirty']
    with contextlib.suppress(OSError, subprocess.SubprocessError):
      commit = subprocess.check_output(
        [*git, '--exclude=*'], text=True, stderr=subprocess.DEVNULL, timeout=60
      )
      version += f', commit {commit.strip()}'
  write_whole(workdir / 'version', f'{version}\n'.encode())


def read_version(workdir: Path) -> str:
  """Return the version that began a run; '' where it was not recorded."""
  path = workdir / 'version'
  with read_errors(path):
    return path.read_text('utf-8', 'replace').strip() if path.is_file() else ''


# Files and folders that belong to the run itself.
_OWN = re.compile(
  r'config\.json|(source|target)\.model|corpus|checkpoints|damaged|heartbeat|'
  r'lock|metrics\.jsonl|version|wandb_id|translations|'
  r'events\.out\.tfevents.*'
)


def check_output(path: str | Path, flag: str = '--output') -> None:
  """Refuse to write what belongs to a run."""
  final = Path(os.path.realpath(path))
  for folder in final.parents if path else ():
    name = final.relative_to(folder).parts[0]
    others = 'source.model', 'checkpoints'
    is_run = (folder / 'config.json').exists() and any(
      (folder / other).exists() for other in others
    )
    if is_run and _OWN.fullmatch(name):
      raise InputError(
        f'{flag}={path}: {name} belongs to the run {folder}; give another'
      )


def check_workdir(workdir: Path, config: ExperimentConfig) -> None:
  """Refuse a directory that this config must not train in."""
  if workdir.exists() and not workdir.is_dir():
    raise InputError(f'{workdir}: --workdir must be a directory')
  if (workdir / 'config.json').exists():
    _check_same(workdir, config)
  elif workdir.is_dir() and set(os.listdir(workdir)) - _BEFORE_CONFIG:
    raise InputError(
      f'{workdir}: not empty and not a run directory; '
      'choose a new or empty --workdir'
    )


def _check_same(workdir: Path, given: ExperimentConfig) -> None:
  saved = read_config(workdir)
  old, new = serialization.flatten(saved), serialization.flatten(given)
  listed = ', '.join(
    f'{name} ({old.get(name)!r} there, {new.get(name)!r} given)'
    for name in serialization.differing_fields(saved, given)
  )
  if listed:
    raise InputError(
      f'{workdir} belongs to a run with another config: {listed}; '
      'choose another --workdir or give the same values; a resumed run may '
      f'change {", ".join(serialization.resumable_fields(given))}'
    )


def create_run(
  workdir: Path, config: ExperimentConfig, source: Tokenizer, target: Tokenizer
) -> None:
  """Write what decoding needs beside checkpoints; config.json last."""
  with write_errors(workdir):
    workdir.mkdir(parents=True, exist_ok=True)
  for name, tokenizer in (('source', source), ('target', target)):
    path = workdir / f'{name}.model'
    check_regular(path)
    if not path.exists():
      write_whole(path, tokenizer.model)
    elif path.read_bytes() != tokenizer.model:
      raise InputError(
        f'{path}: not the tokenizer of the prepared corpus; the run was '
        'trained on other text or its tokenizer was replaced'
      )
  write_whole(workdir / 'config.json', serialization.to_json(config).encode())


@contextlib.contextmanager
def locked(workdir: Path) -> Iterator[None]:
  """Hold the lock of a run directory within the block.

  The lock is on the open file, so that it is gone with its process, however
  that ends. Hosts that share a file system with locks (NFS, Lustre, GPFS) see
  each other's.
  """
  path = workdir / 'lock'
  with write_errors(path):
    workdir.mkdir(parents=True, exist_ok=True)
    # Not truncated, so that the text of the current holder stays.
    file = path.open('a+', encoding='utf-8', errors='replace')
  with file:
    _take(file, path)
    yield


def _take(file: IO[str], path: Path) -> None:
  try:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    file.seek(0)
    holder = file.readline(200).strip() or 'another process'
    raise InputError(
      f'{path.parent}: {holder} trains in it; wait until it ends, stop it, or '
      'give another --workdir'
    ) from None
  except OSError as error:
    logger.warning(
      '%s: cannot be locked (%s): see to it that no other training runs in it',
      path.parent,
      error.strerror,
    )
  now = datetime.datetime.now(datetime.UTC).strftime('%Y-%m-%d %H:%M:%S UTC')
  about = f'process {os.getpid()} of {socket.gethostname()}, since {now},'
  with write_errors(path):
    file.truncate(0)
    file.write(f'{about}\n')
    file.flush()


def write_corpus(
  workdir: Path,
  report: Mapping[str, Any],
  validation: Mapping[str, tuple[Sequence[str], Sequence[str]]],
) -> None:
  """Write the report of a corpus and the validation text of each direction."""
  folder = workdir / 'corpus'
  with write_errors(folder):
    folder.mkdir(exist_ok=True)
  text = json.dumps(report, ensure_ascii=False, indent=1)
  write_whole(folder / 'report.json', text.encode() + b'\n')
  for direction, sides in validation.items():
    for path, lines in zip(_texts(folder, direction), sides, strict=True):
      if not path.exists():
        write_whole(path, ''.join(f'{line}\n' for line in lines).encode())


def copy_corpus(workdir: Path, to: Path) -> None:
  """Copy the kept part of a corpus, if any, into another run directory."""
  folder = workdir / 'corpus'
  if folder.is_dir():
    with read_errors(folder):
      shutil.copytree(folder, to / 'corpus')


def read_report(workdir: Path) -> dict[str, Any]:
  """Read the report of the prepared corpus; {} where it was not kept."""
  path = workdir / 'corpus' / 'report.json'
  return read_json(path, dict[str, Any]) if path.is_file() else {}


def read_validation(workdir: Path, direction: str) -> Iterator[tuple[str, str]]:
  """Read the validation text of a run."""
  source, target = _texts(workdir / 'corpus', direction)
  if not (source.is_file() and target.is_file()):
    raise InputError(
      f'{workdir}: holds no validation text of {direction}; give --source and '
      '--target'
    )
  yield from read_files(source, target)


def _texts(folder: Path, direction: str) -> tuple[Path, Path]:
  if '/' in direction:
    raise InputError(f'{direction!r}: is no name of a direction')
  return folder / f'{direction}.source', folder / f'{direction}.target'


def read_metrics(path: Path) -> list[dict[str, Any]]:
  """Read the lines of metrics.jsonl.

  Damaged lines are left out, with one warning that counts them. An incomplete
  last line, which a training may be writing, is left out silently.
  """
  if not path.exists():
    return []
  check_regular(path)
  with read_errors(path):
    lines = path.read_bytes().split(b'\n')[:-1]
  rows = [_row(line) for line in lines]
  damaged = [number for number, row in enumerate(rows, 1) if row is None]
  if damaged:
    logger.warning(
      '%s: %d damaged of %d lines are left out, the first is line %d',
      path,
      len(damaged),
      len(rows),
      damaged[0],
    )
  return [row for row in rows if row is not None]


def _row(line: bytes) -> dict[str, Any] | None:
  """Return the object of a line; None if it is not one that training writes."""
  try:
    row = parse_json(line, '', dict[str, Any])
  except InputError:
    return None
  numbers = (value for name, value in row.items() if name != 'kind')
  is_whole = (
    type(row.get('step')) is int
    and isinstance(row.get('kind'), str)
    and all(value is None or type(value) in (int, float) for value in numbers)
  )
  return row if is_whole else None
