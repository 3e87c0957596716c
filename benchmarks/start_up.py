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
from typing import Any

from benchmarks.common import (
  RESULTS,
  as_flags,
  circumstances,
  log,
  make_parser,
  start,
  table,
  write_results,
)
from benchmarks.serving import ROOT
from fusion_jax.errors import CheckFailed
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


def started(
  flags: Sequence[str], cache: Path, workdir: Path
) -> dict[str, float]:
  """Starts a training, and stops it after its first step: seconds of each part.

  Those of all its threads on a processor can be compared where other programs
  run at the same time. Programs are compiled, or read from the cache.
  """
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
    raise CheckFailed('train.py ended before its first step')
  laps = (end - before for before, end in itertools.pairwise(ends))
  return dict(zip(_PARTS, laps, strict=True)) | {
    'total': ends[-1],
    'processor time': usage.ru_utime + usage.ru_stime,
    'programs': int(compiled[1]),
    'compiling': float(compiled[2]),
    'load average': os.getloadavg()[0],
  }


def report(cold: Mapping[str, float], warm: Sequence[Any]) -> str:
  """The table of the parts."""
  rows = []
  for name, first in cold.items():
    values = [one[name] for one in warm]
    row = statistics.median(values), min(values), first
    rows.append((name, *(f'{value:.2f}' for value in row)))
  return table(('seconds', 'median', 'min', 'empty cache'), rows)


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
    every = [*flags, f'--config.data.prepared={folder / "prepared"}']
    every += ['--config.training.log_every=1']
    start('-m', 'fusion_jax.data.prepare', *every)
    cold, *warm = (
      started(every, folder / 'cache', folder / f'run_{index}')
      for index in range(arguments.runs + 1)
    )
  results = {'flags': flags, 'cold': cold, 'warm': warm}
  write_results(arguments.output, circumstances() | results)
  print(report(cold, warm))


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
