"""Fuzz the readers of files that come from outside, guided by coverage.

    pip install -r requirements-fuzz.txt
    python -m benchmarks.fuzz_readers --minutes=60 --output=DIR

Each reader gets the same share of the time, in a process of its own. An
exception that is no InputError, or one of several lines, is kept in
DIR/findings with its input, and so is an input that takes too long or too much
memory; the exit code is then 1. The inputs are then read once more under
coverage.py. A second run continues with the inputs of the first.
"""

import ast
import contextlib
import inspect
import logging
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import coverage

from benchmarks.common import (
  RESULTS,
  circumstances,
  log,
  make_parser,
  table,
  write_results,
)
from benchmarks.fuzzing.readers import READERS, made
from benchmarks.serving import ROOT
from fusion_jax import compressed, json_input
from fusion_jax.analysis import tags
from fusion_jax.cli import line_formats, text_io
from fusion_jax.config import serialization
from fusion_jax.data import arrays, prepared, records, text_files, tokenizer
from fusion_jax.errors import CheckFailed, InputError
from fusion_jax.evaluation import contrastive
from fusion_jax.runs import directory
from fusion_jax.startup import one_line_errors

_MODULES = (
  *(arrays, contrastive, json_input, line_formats, text_io, directory),
  *(prepared, records, serialization, tags, text_files),
  *(compressed, tokenizer),
)


class Fuzzed(NamedTuple):
  """How the fuzzing of a reader went.

  inputs: that were read.
  kept: those that reached something new.
  findings: files with what went wrong.
  """

  inputs: int
  kept: int
  findings: tuple[str, ...]


@contextlib.contextmanager
def _copy(folder: Path) -> Iterator[Path]:
  """A copy of the files, whose one is replaced by every input."""
  work = folder.parent / 'work'
  shutil.rmtree(work, ignore_errors=True)
  shutil.copytree(folder, work)
  yield work
  shutil.rmtree(work)


def fuzz(folder: Path, name: str, seconds: int) -> Fuzzed:
  """Fuzz one reader in a process of its own."""
  command = [sys.executable, '-m', 'benchmarks.fuzzing.fuzz']
  with _copy(folder) as work:
    done = subprocess.run(
      [*command, str(work), name, str(seconds)],
      cwd=ROOT,
      capture_output=True,
      text=True,
      errors='replace',
      check=False,
    )
  (folder.parent / f'{name}.log').write_text(done.stderr)
  counted = re.search(r'number_of_executed_units: (\d+)', done.stderr)
  where = folder.parent / 'findings'
  if done.returncode or not counted:
    where.mkdir(exist_ok=True)
    (where / f'{name}-ended.txt').write_text(done.stderr)
  return Fuzzed(
    int(counted[1]) if counted else 0,
    len(list((folder.parent / 'inputs' / name).iterdir())),
    tuple(
      sorted(str(path) for path in where.glob(f'{name}*') if path.is_file())
      + sorted(str(path) for path in where.glob(f'{name}/*.txt'))
    ),
  )


def reached(folder: Path, names: Sequence[str]) -> dict[str, list[Any]]:
  """The lines of the readers' functions that the kept inputs reach."""
  files = [inspect.getfile(module) for module in _MODULES]
  measured = coverage.Coverage(data_file=None, include=files)
  measured.start()
  for name in names:
    _replay(folder, name)
  measured.stop()
  found = {}
  for module in _MODULES:
    _, statements, _, missing, _ = measured.analysis2(inspect.getfile(module))
    inside = _lines_in_functions(Path(inspect.getfile(module)))
    there = inside.intersection(statements)
    missed = sorted(there.intersection(missing))
    found[module.__name__] = [len(there) - len(missed), len(there), missed]
  return found


def _replay(folder: Path, name: str) -> None:
  reader = READERS[name]
  with _copy(folder) as work:
    for content in sorted((folder.parent / 'inputs' / name).iterdir()):
      shutil.copyfile(content, work / reader.file)
      # What is no InputError was found before.
      with contextlib.suppress(Exception):
        reader.read(work)


def _lines_in_functions(path: Path) -> set[int]:
  """Without the lines that an import runs: definitions and constants."""
  return {
    line
    for node in ast.walk(ast.parse(path.read_text()))
    if isinstance(node, ast.FunctionDef)
    for statement in node.body
    for line in range(statement.lineno, statement.end_lineno + 1)
  }


@one_line_errors
def main() -> None:
  parser = make_parser(__doc__)
  parser.add_argument('--minutes', type=float, default=60.0)
  parser.add_argument('--output', type=Path, required=True)
  parser.add_argument('--readers', default=','.join(READERS))
  arguments = parser.parse_args()
  names = arguments.readers.split(',')
  unknown = set(names) - READERS.keys()
  if unknown:
    raise InputError(f'--readers: not {", ".join(unknown)}; {list(READERS)}')
  logging.disable()
  folder = arguments.output.absolute() / 'files'
  if not folder.exists():
    folder.mkdir(parents=True)
    made(folder)
  seconds = round(60 * arguments.minutes / len(names))
  fuzzed = {}
  for number, name in enumerate(names, 1):
    log(f'{number} of {len(names)}: {name}, {seconds} s')
    fuzzed[name] = fuzz(folder, name, seconds)
  lines = reached(folder, names)
  _tell(fuzzed, lines)
  settings = {'minutes': arguments.minutes}
  results = {'readers': {k: v._asdict() for k, v in fuzzed.items()}}
  write_results(
    RESULTS / 'fuzz_readers.json',
    circumstances() | {'settings': settings} | results | {'lines': lines},
  )
  found = [path for each in fuzzed.values() for path in each.findings]
  if found:
    raise CheckFailed(f'{len(found)} findings, the first: {found[0]}')


def _tell(fuzzed: dict[str, Fuzzed], lines: dict[str, list[Any]]) -> None:
  total = sum(each.inputs for each in fuzzed.values())
  rows = [
    [name, f'{each.inputs:,}', str(each.kept), str(len(each.findings))]
    for name, each in fuzzed.items()
  ]
  rows.append(['all', f'{total:,}', '', ''])
  print(table(('reader', 'inputs', 'kept', 'findings'), rows))
  rows = [
    [name, f'{found} of {there}', ' '.join(map(str, missed))]
    for name, (found, there, missed) in lines.items()
  ]
  print(table(('module', 'lines of functions reached', 'not reached'), rows))


if __name__ == '__main__':
  sys.exit(main())
