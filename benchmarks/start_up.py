r"""From the command to the first finished step of a training of the Base model.

    python -m benchmarks.start_up [--runs=5] [--config=configs/NAME.py] \
        [--config.FIELD=VALUE]

The corpus is prepared first, and is not timed. The first run starts with an
empty compilation cache, all others with what it left; each is a process of
its own with a run directory of its own, stopped after its first step. A part
ends with the line of the log that it is named by.
"""

import argparse
import dataclasses
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS, circumstances, log, table, write_results
from benchmarks.serving import ROOT
from fusion_jax.startup import one_line_errors

# What each part ends with, a regular expression of a line of the log.
_PARTS = {
  'imports, fingerprints of the corpus': 'prepared corpus found',
  'shapes and order of the batches': ' pairs, .* batches an epoch',
  'model and layout: a trace': ' parameters, vocabularies',
  'fresh state, trace, program, first step': ' step 1 of ',
}
_COMPILED = re.compile(r'(\d+) programs compiled in ([\d.]+) s')

# Base on the corpus in the package, in one batch of about 500 tokens a step.
_FLAGS = (
  '--config.model.width=512',
  '--config.model.filter=2048',
  '--config.model.heads=8',
  '--config.model.encoder_layers=6',
  '--config.model.decoder_layers=6',
  '--config.data.tokenizer.vocabulary_size=8000',
  '--config.data.tokenizer.algorithm=bpe',
  '--config.data.batch.tokens=512',
  '--config.data.batch.shapes=2',
)


@dataclasses.dataclass(frozen=True)
class Start:
  """One start.

  Attributes:
    parts: seconds of each part.
    total: seconds from the command to the first step.
    programs: compiled or read from the cache.
    compiling: seconds for them, without tracing.
    busy: seconds of all its threads on a processor; where other programs run
      at the same time this is what can be compared.
    load: the load average of the machine at the end.
  """

  parts: Mapping[str, float]
  total: float
  programs: int
  compiling: float
  busy: float
  load: float


def started(command: Sequence[str], cache: Path, workdir: Path) -> Start:
  """Starts a training, waits for its first step, and stops it.

  Args:
    command: of Python, without --workdir.
    cache: the folder for $XDG_CACHE_HOME.
    workdir: of the run.

  Returns:
    What it took.

  Raises:
    RuntimeError: it ended before its first step.
  """
  begin = time.monotonic()
  process = subprocess.Popen(
    [sys.executable, *command, f'--workdir={workdir}'],
    cwd=ROOT,
    env=_environment(cache),
    stderr=subprocess.PIPE,
    text=True,
  )
  ends, compiled = {}, None
  waiting = list(_PARTS)
  for line in process.stderr:
    now = time.monotonic() - begin
    log(line.rstrip())
    if waiting and re.search(_PARTS[waiting[0]], line):
      ends[waiting.pop(0)] = now
    compiled = _COMPILED.search(line)
    if compiled and not waiting:
      break
  process.kill()
  usage = os.wait4(process.pid, 0)[2]
  if not compiled:
    raise RuntimeError('train.py ended before its first step')
  programs, seconds = compiled.groups()
  return _start(ends, int(programs), float(seconds), usage)


def _environment(cache: Path) -> dict[str, str]:
  ours = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith(('JAX_COMPILATION', 'JAX_PERSISTENT'))
  }
  return ours | {'XDG_CACHE_HOME': str(cache)}


def _start(
  ends: Mapping[str, float],
  programs: int,
  compiling: float,
  usage: resource.struct_rusage,
) -> Start:
  begins = [0.0, *ends.values()]
  parts = {
    name: end - before
    for (name, end), before in zip(ends.items(), begins, strict=False)
  }
  busy, load = usage.ru_utime + usage.ru_stime, os.getloadavg()[0]
  return Start(parts, begins[-1], programs, compiling, busy, load)


def report(cold: Start, warm: Sequence[Start]) -> str:
  """The table of the parts, and the compilations."""
  names = [*_PARTS, 'total', 'processor time']
  rows = []
  for name in names:
    values = [_part(start, name) for start in warm]
    row = statistics.median(values), min(values), _part(cold, name)
    rows.append((name, *(f'{value:.2f}' for value in row)))
  last = warm[-1]
  return '\n'.join(
    [
      table(('seconds', 'median', 'min', 'empty cache'), rows),
      f'{last.programs} programs: {cold.compiling:.1f} s to compile, '
      f'{last.compiling:.1f} s from the cache; load average '
      + ', '.join(f'{start.load:.1f}' for start in warm),
    ]
  )


def _part(start: Start, name: str) -> float:
  whole = {'total': start.total, 'processor time': start.busy}
  return whole[name] if name in whole else start.parts[name]


def _measured(flags: Sequence[str], folder: Path, runs: int) -> list[Start]:
  prepared = f'--config.data.prepared={folder / "prepared"}'
  flags = [*flags, prepared, '--config.training.log_every=1']
  subprocess.run(
    [sys.executable, '-m', 'fusion_jax.data.prepare', *flags],
    cwd=ROOT,
    check=True,
    stdout=sys.stderr,
  )
  return [
    started(['train.py', *flags], folder / 'cache', folder / f'run_{index}')
    for index in range(runs + 1)
  ]


@one_line_errors
def main(argv: list[str]) -> None:
  """Starts, prints the table and writes the results."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument('--runs', type=int, default=5, help='with a warm cache')
  parser.add_argument('--config', default='')
  parser.add_argument('--output', type=Path, default=RESULTS / 'start_up.json')
  arguments, overrides = parser.parse_known_args(argv)
  flags = [f'--config={arguments.config}', *overrides]
  if not arguments.config:
    flags = ['--config=configs/quickstart.py', *_FLAGS, *overrides]
  with tempfile.TemporaryDirectory() as folder:
    cold, *warm = _measured(flags, Path(folder), arguments.runs)
  results: dict[str, Any] = {
    'flags': flags,
    'cold': dataclasses.asdict(cold),
    'warm': [dataclasses.asdict(start) for start in warm],
  }
  write_results(arguments.output, circumstances() | results)
  print(report(cold, warm))


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
