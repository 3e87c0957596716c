"""Runs that are killed again and again, against one that nobody disturbs.

    python -m benchmarks.killed_runs --kills=20 --workdir=DIR [--processes=2]

A tiny run is killed at random moments, in a mixture of ways, and started again
with the same command each time. It must end with the same parameters as an
unbroken one, bit for bit, and must have logged the same numbers. Prints a
table of the kills; the exit code is 1 if anything differs.
"""

import argparse
import contextlib
import dataclasses
import itertools
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np

from benchmarks.common import log, table
from benchmarks.programs import metrics
from benchmarks.serving import ROOT
from fusion_jax.errors import CheckFailed, InputError, one_line_errors
from fusion_jax.training.trained import load_run

_SAVING = 'SIGKILL in a save'
_CHECKPOINT_CUT = 'SIGKILL, checkpoint cut off'
_LOG_CUT = 'SIGKILL, metrics.jsonl cut off'
_STARTING = 'SIGKILL at the start'
_WAYS = (
  _SAVING,
  _CHECKPOINT_CUT,
  'SIGTERM',
  _LOG_CUT,
  'SIGKILL',
  _STARTING,
  'SIGINT',
)

# Steps between two kills, and between two checkpoints.
_STRIDE, _SAVE_EVERY = 60, 20
# Seconds: in which a kill at the start comes, and until a run has hung.
_START, _PATIENCE = 5.0, 300
_FLAGS = {
  'data.embedded_pairs': 600,
  'data.tokenizer.vocabulary_size': 300,
  'data.batch.tokens': 512,
  'data.batch.shapes': 1,
  'model.width': 16,
  'model.filter': 32,
  'model.heads': 2,
  'model.encoder_layers': 1,
  'model.decoder_layers': 1,
  'model.dropout': 0.1,
  'training.log_every': 1,
  'training.save_every': _SAVE_EVERY,
  'training.validate_every': 1_000_000,
  'training.keep_last': 3,
  'parallel.lost_after': 4,
}


@dataclasses.dataclass(frozen=True)
class Kill:
  """One of the kills.

  Attributes:
    way: of `_WAYS`.
    step: that the run must have logged.
    wait: seconds after that.
    victims: the processes that are killed.
  """

  way: str
  step: int
  wait: float
  victims: tuple[int, ...]

  @property
  def number(self) -> signal.Signals:
    """The signal."""
    return signal.Signals[self.way[:7].rstrip()]


def plan(kills: int, processes: int, chance: random.Random) -> list[Kill]:
  """As many kills, one in each stride of steps, all ways equally often."""
  # Ctrl-C is not heard by several processes.
  ways = [way for way in _WAYS if processes == 1 or way != 'SIGINT']
  chosen = list(itertools.islice(itertools.cycle(ways), kills))
  chance.shuffle(chosen)
  groups = [*((each,) for each in range(processes)), tuple(range(processes))]
  return [
    Kill(
      way,
      index * _STRIDE + chance.randrange(1, _STRIDE),
      chance.uniform(0, _START if way == _STARTING else 0.05),
      (0,) if way == 'SIGTERM' else chance.choice(groups),
    )
    for index, way in enumerate(chosen)
  ]


class Run:
  """A run of train.py, and the processes that work on it.

  Attributes:
    workdir: the run directory.
  """

  def __init__(self, folder: Path, name: str, steps: int, processes: int):
    self.workdir = folder / name
    self._folder, self._steps, self._count = folder, steps, processes
    self._processes: list[subprocess.Popen] = []

  def start(self) -> None:
    """Starts the processes; what they say goes to files."""
    with socket.socket() as free:
      free.bind(('127.0.0.1', 0))
      port = free.getsockname()[1]
    together = [f'--coordinator=127.0.0.1:{port}', f'--processes={self._count}']
    self._processes = []
    for index in range(self._count):
      own = [*together, f'--process={index}'] if self._count > 1 else []
      with self._log(index).open('w') as output:
        self._processes.append(
          subprocess.Popen(
            [*self._command(), *own],
            cwd=ROOT,
            env=self._environment(),
            stdout=output,
            stderr=output,
          )
        )

  def finish(self) -> list[int]:
    """Waits for all processes; their exit codes."""
    return [process.wait(_PATIENCE) for process in self._processes]

  def complete(self) -> None:
    """Starts the processes and waits for their good end."""
    self.start()
    codes = self.finish()
    if any(codes):
      raise CheckFailed(f'{self.workdir}: exit codes {codes}: {self._said()}')

  def strike(self, kill: Kill) -> list[int]:
    """Kills as it is planned; the exit codes of all processes."""
    if kill.way != _STARTING:
      self._wait(lambda: self.step() >= kill.step)
    time.sleep(kill.wait)
    if kill.way == _SAVING:
      self._wait(self._is_saving)
    for victim in kill.victims:
      self._processes[victim].send_signal(kill.number)
    return self.finish()

  def close(self) -> None:
    """Ends what still runs."""
    for process in self._processes:
      process.kill()

  def step(self) -> int:
    """The last step in metrics.jsonl; 0 if there is none."""
    path = self.workdir / 'metrics.jsonl'
    text = path.read_text()[-4_000:] if path.exists() else ''
    steps = re.findall(r'"step": (\d+)', text)
    return int(steps[-1]) if steps else 0

  def went_on(self) -> str:
    """The step from which the processes went on; '-' if they did not yet."""
    text = self._log(0).read_text()
    found = re.search(r'going on from step (\d+)', text)
    if found:
      return found[1]
    return '0' if ' step ' in text else '-'

  def checkpoints(self) -> list[Path]:
    """The finished ones, by step."""
    folder = self.workdir / 'checkpoints'
    found = [each for each in folder.glob('*') if each.name.isdigit()]
    return sorted(found, key=lambda path: int(path.name))

  def _is_saving(self) -> bool:
    folder = self.workdir / 'checkpoints'
    return any(folder.glob('*.orbax-checkpoint-tmp*'))

  def _wait(self, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not condition():
      codes = [process.poll() for process in self._processes]
      if codes.count(None) < self._count or time.monotonic() > deadline:
        raise CheckFailed(
          f'{self.workdir}: not killed in time, exit codes {codes}: '
          f'{self._said()}'
        )
      time.sleep(0.001)

  def _said(self) -> str:
    lines = [
      self._log(index).read_text().splitlines()[-1:]
      for index in range(self._count)
    ]
    return ' | '.join(itertools.chain(*lines))

  def _log(self, process: int) -> Path:
    return self._folder / f'{self.workdir.name}-{process}.txt'

  def _command(self) -> list[str]:
    flags = _FLAGS | {
      'training.steps': self._steps,
      'data.prepared': self._folder / 'prepared',
    }
    return [
      sys.executable,
      'train.py',
      '--config=configs/quickstart.py',
      f'--workdir={self.workdir}',
      *(f'--config.{name}={value}' for name, value in flags.items()),
    ]

  def _environment(self) -> dict[str, str]:
    return os.environ | {
      'JAX_PLATFORMS': 'cpu',
      'JAX_NUM_CPU_DEVICES': '1',
      'JAX_COMPILATION_CACHE_DIR': str(self._folder / 'cache'),
      'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
    }


def damage(run: Run, way: str, chance: random.Random) -> str:
  """Cuts off what the way says; returns what and where."""
  if way == _LOG_CUT:
    return _cut(run.workdir / 'metrics.jsonl', chance)
  whole = run.checkpoints()
  # Of one alone there is nothing to go back to.
  if way != _CHECKPOINT_CUT or len(whole) < 2:
    return ''
  files = [path for path in whole[-1].rglob('*') if path.is_file()]
  full = sorted(path for path in files if path.stat().st_size)
  return _cut(chance.choice(full), chance)


def _cut(path: Path, chance: random.Random) -> str:
  size = path.stat().st_size
  left = chance.randrange(size)
  os.truncate(path, left)
  return f'{path.parent.name}/{path.name[:20]} at byte {left:,} of {size:,}'


def killed(run: Run, kills: list[Kill], chance: random.Random) -> list[list]:
  """Kills a run so often, and lets it come to its end.

  Args:
    run: not begun.
    kills: in the order of their steps.
    chance: of what is cut off.

  Returns:
    The rows of the table.
  """
  rows = []
  for number, kill in enumerate(kills, 1):
    run.start()
    codes = run.strike(kill)
    if rows:
      rows[-1].append(run.went_on())
    polite = kill.way in ('SIGTERM', 'SIGINT')
    if polite and any(codes):
      raise CheckFailed(f'kill {number}, {kill.way}: exit codes {codes}')
    victims = '+'.join(map(str, kill.victims))
    codes = ' '.join(map(str, codes))
    step = run.step()
    cut = damage(run, kill.way, chance)
    rows.append([number, kill.way, victims, codes, cut, step])
    log(f'kill {number} of {len(kills)}: {kill.way} at step {step}')
  run.complete()
  rows[-1].append(run.went_on())
  return rows


def differences(ours: Path, theirs: Path) -> list[str]:
  """What two runs do not have in common: parameters, and logged numbers.

  Lines of ours that are gone are none: a file was cut off.
  """
  parameters = [load_run(path, 'last').parameters for path in (ours, theirs)]
  leaves = zip(*map(jax.tree.leaves_with_path, parameters), strict=True)
  found = [
    f'parameter {jax.tree_util.keystr(path)}'
    for (path, own), (_, other) in leaves
    if not np.array_equal(own, other)
  ]
  expected = {row['step']: row['loss'] for row in metrics(theirs, 'train')}
  logged = [(row['step'], row['loss']) for row in metrics(ours, 'train')]
  steps = [step for step, _ in logged]
  if steps != sorted(set(steps)):
    found.append('steps in metrics.jsonl that are there twice')
  wrong = [step for step, loss in logged if loss != expected[step]]
  return found + [f'the loss of step {step}' for step in wrong]


@one_line_errors
def main() -> None:
  """Kills, compares, prints."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--workdir', type=Path, required=True)
  parser.add_argument('--kills', type=int, default=20)
  parser.add_argument('--processes', type=int, default=1)
  parser.add_argument('--seed', type=int, default=0)
  arguments = parser.parse_args()
  folder, processes = arguments.workdir.absolute(), arguments.processes
  if folder.exists():
    raise InputError(f'--workdir: {folder} exists; name a new folder')
  folder.mkdir(parents=True)
  # In the last stride there is time for a save to be seen.
  steps = (arguments.kills + 2) * _STRIDE
  chance = random.Random(arguments.seed)
  unbroken = Run(folder, 'unbroken', steps, processes)
  run = Run(folder, 'killed', steps, processes)
  kills = plan(arguments.kills, processes, chance)
  with contextlib.closing(unbroken), contextlib.closing(run):
    unbroken.complete()
    rows = killed(run, kills, chance)
  header = ('kill', 'way', 'process', 'codes', 'cut', 'at step', 'went on from')
  print(table(header, rows))
  found = differences(run.workdir, unbroken.workdir)
  if found:
    raise CheckFailed(f'{len(found)} differences, the first: {found[0]}')
  print(f'{len(rows)} kills; parameters and logged losses are the same')


if __name__ == '__main__':
  sys.exit(main())
