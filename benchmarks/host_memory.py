"""The memory of a training process over thousands of steps.

    python -m benchmarks.host_memory [--steps=4000] [--most=8]

A tiny model is trained in several batch shapes, with a validation every 200
steps and a checkpoint every 100. The exit code is 1 if the resident memory
grows, in the second half of the steps, by more than --most MiB in 1,000: in
the first the allocators' pools and the shapes still settle. Linux only: it
reads /proc.
"""

import argparse
import dataclasses
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.common import RESULTS, circumstances, table, write_results
from benchmarks.serving import ROOT
from fusion_jax.errors import CheckFailed, InputError
from fusion_jax.startup import one_line_errors

# Steps between two lines of the table.
_LINE = 200
# Seconds between two looks.
_WAIT = 0.2

_FLAGS = {
  'data.embedded_pairs': 4_000,
  'data.tokenizer.vocabulary_size': 500,
  'data.batch.tokens': 512,
  'model.width': 32,
  'model.filter': 64,
  'model.encoder_layers': 1,
  'model.decoder_layers': 1,
  'training.log_every': 10,
  'training.validate_every': 200,
  'training.save_every': 100,
  'training.translate_sentences': 20,
}


class Sample(NamedTuple):
  """One look: the last step that is logged, and MiB of resident memory."""

  step: int
  resident: float


@dataclasses.dataclass(frozen=True)
class Growth:
  """How the memory develops in the second half of the steps.

  Attributes:
    per_thousand: MiB in 1,000 steps, the slope of least squares.
    largest: MiB at any time.
  """

  per_thousand: float
  largest: float


def growth(samples: Sequence[Sample]) -> Growth:
  """Of the samples of a whole run; what comes after its last step is not."""
  steps, resident = np.array(samples, float).T
  warm = (steps >= steps[-1] / 2) & (steps < steps[-1])
  slope = np.polyfit(steps[warm], resident[warm], 1)[0]
  return Growth(1_000 * float(slope), float(resident.max()))


def watch(steps: int, folder: Path) -> list[Sample]:
  """Trains in a process of its own and looks at its memory.

  Args:
    steps: of the training.
    folder: for its files.

  Returns:
    The samples, in order.

  Raises:
    CheckFailed: the training failed.
  """
  flags = _FLAGS | {
    'data.prepared': folder / 'prepared',
    'training.steps': steps,
  }
  process = subprocess.Popen(
    [
      sys.executable,
      'train.py',
      '--config=configs/quickstart.py',
      f'--workdir={folder / "run"}',
      *(f'--config.{name}={value}' for name, value in flags.items()),
    ],
    cwd=ROOT,
  )
  samples = []
  try:
    while process.poll() is None:
      samples += _look(process.pid, folder / 'run' / 'metrics.jsonl')
      time.sleep(_WAIT)
  finally:
    process.kill()
  if process.wait():
    raise CheckFailed(f'train.py ended with exit code {process.returncode}')
  return samples


def _look(process: int, metrics: Path) -> list[Sample]:
  """A sample; none before the first step and after the last."""
  status = Path(f'/proc/{process}/status').read_text().splitlines()
  resident = [line for line in status if line.startswith('VmRSS:')]
  lines = metrics.read_text().splitlines() if metrics.exists() else []
  if not resident or len(lines) < 2:
    return []
  # The last line may not be whole yet.
  step = json.loads(lines[-2])['step']
  return [Sample(step, int(resident[0].split()[1]) / 1024)]


def lines(samples: Sequence[Sample]) -> dict[int, tuple[float, float]]:
  """Median and largest memory of every 200 steps, by the first of them."""
  found = {}
  for first in range(0, samples[-1].step + 1, _LINE):
    own = [x.resident for x in samples if first <= x.step < first + _LINE]
    if own:
      found[first] = statistics.median(own), max(own)
  return found


def report(samples: Sequence[Sample]) -> str:
  """The same as a table."""
  rows = [
    (f'from {first:,}', *(f'{value:,.0f}' for value in row))
    for first, row in lines(samples).items()
  ]
  return table(('step', 'median MiB', 'largest MiB'), rows)


@one_line_errors
def main(argv: list[str]) -> None:
  """Trains, prints the table, writes the results and judges."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument('--steps', type=int, default=4_000)
  parser.add_argument('--most', type=float, default=8.0, help='MiB a 1,000')
  parser.add_argument(
    '--output', type=Path, default=RESULTS / 'host_memory.json'
  )
  arguments = parser.parse_args(argv)
  if not sys.platform.startswith('linux'):
    raise InputError(f'memory is read from /proc, which {sys.platform} has not')
  with tempfile.TemporaryDirectory() as folder:
    samples = watch(arguments.steps, Path(folder))
  grown = growth(samples)
  results = {'flags': _FLAGS, 'steps': arguments.steps, 'lines': lines(samples)}
  found = results | dataclasses.asdict(grown)
  write_results(arguments.output, circumstances() | found)
  print(report(samples))
  told = f'{grown.per_thousand:+.1f} MiB in 1,000 steps, in the second half'
  print(told)
  if grown.per_thousand > arguments.most:
    raise CheckFailed(f'{told}, at most {arguments.most:g} is allowed')


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
