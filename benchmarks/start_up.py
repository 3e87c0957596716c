r"""From the command to the first finished step of a training of the Base model.

    python -m benchmarks.start_up [--runs=5] [--config=NAME] \
        [--config.FIELD=VALUE]

The corpus is prepared first, and is not timed. The first run starts with an
empty compilation cache, all others with what it left; each is a process of
its own with a run directory of its own, stopped after its first step. A part
ends with the line of the log that it is named by.
"""

import itertools
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.common import (
  RESULTS,
  as_flags,
  circumstances,
  log,
  make_parser,
  table,
  write_results,
)
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
_BASE = {
  'model.width': 512,
  'model.filter': 2048,
  'model.heads': 8,
  'model.encoder_layers': 6,
  'model.decoder_layers': 6,
  'data.tokenizer.vocabulary_size': 8000,
  'data.tokenizer.algorithm': 'bpe',
  'data.batch.tokens': 512,
  'data.batch.shapes': 2,
}


class Start(NamedTuple):
  """One start.

  parts: seconds of each part.
  total: seconds from the command to the first step.
  programs: compiled or read from the cache.
  compiling: seconds for them, without tracing.
  busy: seconds of all its threads on a processor; where other programs run at
    the same time this is what can be compared.
  load: the load average of the machine at the end.
  """

  parts: Mapping[str, float]
  total: float
  programs: int
  compiling: float
  busy: float
  load: float


def started(flags: Sequence[str], cache: Path, workdir: Path) -> Start:
  """Starts a training, waits for its first step, and stops it."""
  others = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith(('JAX_COMPILATION', 'JAX_PERSISTENT'))
  }
  begin = time.monotonic()
  process = subprocess.Popen(
    [sys.executable, 'train.py', *flags, f'--workdir={workdir}'],
    cwd=ROOT,
    env=others | {'XDG_CACHE_HOME': str(cache)},
    stderr=subprocess.PIPE,
    text=True,
  )
  ends, compiled, waiting = [0.0], None, list(_PARTS.values())
  for line in process.stderr:
    log(line.rstrip())
    if waiting and re.search(waiting[0], line):
      ends.append(time.monotonic() - begin)
      del waiting[0]
    compiled = _COMPILED.search(line)
    if compiled and not waiting:
      break
  process.kill()
  usage = os.wait4(process.pid, 0)[2]
  if not compiled:
    raise RuntimeError('train.py ended before its first step')
  laps = (end - before for before, end in itertools.pairwise(ends))
  return Start(
    dict(zip(_PARTS, laps, strict=True)),
    ends[-1],
    int(compiled[1]),
    float(compiled[2]),
    usage.ru_utime + usage.ru_stime,
    os.getloadavg()[0],
  )


def report(cold: Start, warm: Sequence[Start]) -> str:
  """The table of the parts, and the compilations."""
  rows = []
  for name in [*_PARTS, 'total', 'processor time']:
    first, *others = (
      (each.parts | {'total': each.total, 'processor time': each.busy})[name]
      for each in (cold, *warm)
    )
    row = statistics.median(others), min(others), first
    rows.append((name, *(f'{value:.2f}' for value in row)))
  last, loads = warm[-1], ', '.join(f'{start.load:.1f}' for start in warm)
  return (
    f'{table(("seconds", "median", "min", "empty cache"), rows)}\n'
    f'{last.programs} programs: {cold.compiling:.1f} s to compile, '
    f'{last.compiling:.1f} s from the cache; load average {loads}'
  )


@one_line_errors
def main(argv: list[str]) -> None:
  parser = make_parser(__doc__, RESULTS / 'start_up.json')
  parser.add_argument('--runs', type=int, default=5, help='with a warm cache')
  parser.add_argument('--config', default='')
  arguments, overrides = parser.parse_known_args(argv)
  base = [] if arguments.config else as_flags(_BASE, 'config.')
  config = arguments.config or 'configs/quickstart.py'
  flags = [f'--config={config}', *base, *overrides]
  with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    own = [*flags, f'--config.data.prepared={folder / "prepared"}']
    own += ['--config.training.log_every=1']
    prepare = [sys.executable, '-m', 'fusion_jax.data.prepare', *own]
    subprocess.run(prepare, cwd=ROOT, check=True, stdout=sys.stderr)
    cold, *warm = (
      started(own, folder / 'cache', folder / f'run_{index}')
      for index in range(arguments.runs + 1)
    )
  results = {'flags': flags, 'cold': cold._asdict()}
  results['warm'] = [start._asdict() for start in warm]
  write_results(arguments.output, circumstances() | results)
  print(report(cold, warm))


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
