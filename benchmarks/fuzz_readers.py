"""Fuzz the readers of files that come from outside, guided by coverage.

    pip install -r requirements-fuzz.txt
    python -m benchmarks.fuzz_readers --minutes=60 --output=DIR

Each reader gets the same share of the time, in a process of its own. An
exception that is no InputError, or one of several lines, is kept in
DIR/findings with its input, and so is an input that takes too long or too much
memory; the exit code is then 1. A second run continues with the inputs of the
first.
"""

import logging
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

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
from fusion_jax.errors import CheckFailed, InputError
from fusion_jax.startup import one_line_errors


class Fuzzed(NamedTuple):
  """Inputs that were read, those that reached something new, and findings."""

  inputs: int
  kept: int
  findings: tuple[str, ...]


def fuzz(folder: Path, name: str, seconds: int) -> Fuzzed:
  """Fuzz one reader in a process of its own, on a copy of the files."""
  work = folder.parent / 'work'
  shutil.rmtree(work, ignore_errors=True)
  shutil.copytree(folder, work)
  command = [sys.executable, '-m', 'benchmarks.fuzzing.fuzz']
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
  files = [path for path in where.glob(f'{name}*') if path.is_file()]
  files += where.glob(f'{name}/*.txt')
  return Fuzzed(
    int(counted[1]) if counted else 0,
    len(list((folder.parent / 'inputs' / name).iterdir())),
    tuple(sorted(map(str, files))),
  )


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
  rows = [
    [name, f'{one.inputs:,}', one.kept, len(one.findings)]
    for name, one in fuzzed.items()
  ]
  total = sum(one.inputs for one in fuzzed.values())
  print(table(('reader', 'inputs', 'kept', 'findings'), rows))
  print(f'{total:,} inputs')
  results = {'minutes': arguments.minutes}
  results |= {'readers': {name: one._asdict() for name, one in fuzzed.items()}}
  write_results(RESULTS / 'fuzz_readers.json', circumstances() | results)
  findings = [path for one in fuzzed.values() for path in one.findings]
  if findings:
    raise CheckFailed(f'{len(findings)} findings, the first: {findings[0]}')


if __name__ == '__main__':
  sys.exit(main())
