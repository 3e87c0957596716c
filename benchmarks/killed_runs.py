"""Runs that are killed again and again, against one that nobody disturbs.

    python -m benchmarks.killed_runs --kills=20 --workdir=DIR [--processes=2]

A run is killed at random moments, in a mixture of ways, and started again with
the same command. It must end with the parameters of an unbroken one, bit for
bit, and must have logged the same numbers; otherwise the exit code is 1.
"""

import contextlib
import itertools
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from benchmarks import common
from benchmarks.serving import ROOT
from fusion_jax.errors import CheckFailed, InputError
from fusion_jax.runs.loading import CheckpointSelection, load_run
from fusion_jax.startup import one_line_errors
from fusion_jax.training.loop import EXIT_CODES

# Seconds until a run has hung, and a step of it.
_PATIENCE, _A_STEP = 300, 1
# All that a run holds a state of: where a resumed one could differ.
_FIELDS = common.data_of(__file__)
_SAVING = 'SIGKILL in a save'
_CHECKPOINT_CUT = 'SIGKILL, checkpoint cut off'
_LOG_CUT = 'SIGKILL, metrics.jsonl cut off'
_STARTING = 'SIGKILL at the start'
_WAYS = (
  *(_SAVING, _CHECKPOINT_CUT, 'SIGTERM', _LOG_CUT),
  *('SIGKILL', _STARTING, 'SIGINT'),
)
# Steps between two checkpoints.
_SAVE_EVERY = _FIELDS['training.save_every']
# Steps between two kills, and the seconds in which one at the start comes.
_STRIDE, _START = 3 * _SAVE_EVERY, 5.0


def _process_flags(count: int) -> list[list[str]]:
  if count == 1:
    return [[]]
  with socket.socket() as free:
    free.bind(('127.0.0.1', 0))
    port = free.getsockname()[1]
  together = [f'--coordinator=127.0.0.1:{port}', f'--processes={count}']
  return [[*together, f'--process={index}'] for index in range(count)]


class Run:
  """A tiny run of train.py, by one or several processes."""

  def __init__(self, folder: Path, name: str, steps: int, processes: int):
    self.workdir = folder / name
    self._checkpoints = self.workdir / 'checkpoints'
    self._patience = _PATIENCE + _A_STEP * steps
    self._logs = [folder / f'{name}-{index}.txt' for index in range(processes)]
    self._processes: list[subprocess.Popen] = []
    fields = {'training.steps': steps, 'data.prepared': folder / 'prepared'}
    config = '--config=configs/quickstart.py', f'--workdir={self.workdir}'
    flags = *config, *common.as_flags(_FIELDS | fields, 'config.')
    self._command = [sys.executable, 'train.py', *flags]
    self._environment = os.environ | {
      'JAX_PLATFORMS': 'cpu',
      'JAX_NUM_CPU_DEVICES': '1',
      'JAX_COMPILATION_CACHE_DIR': str(folder / 'cache'),
      'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
    }

  def start(self) -> None:
    self._processes = []
    every = _process_flags(len(self._logs))
    for flags, path in zip(every, self._logs, strict=True):
      with path.open('w') as output:
        command, place = [*self._command, *flags], {'cwd': ROOT}
        streams = {'stdout': output, 'stderr': output}
        process = subprocess.Popen(
          command, env=self._environment, **place, **streams
        )
        self._processes.append(process)

  def complete(self) -> None:
    self.start()
    codes = self._finish()
    if any(codes):
      raise CheckFailed(f'{self.workdir}: exit codes {codes}: {self._said()}')

  def close(self) -> None:
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
    text = self._logs[0].read_text()
    resumed = re.search(r'resuming from step (\d+)', text)
    if resumed:
      return resumed[1]
    return '0' if ' step ' in text else '-'

  def newest_checkpoint(self) -> Path | None:
    """The last finished one; None if there is none before it to go back to."""
    finished = [
      path for path in self._checkpoints.glob('*') if path.name.isdigit()
    ]
    if len(finished) < 2:
      return None
    return max(finished, key=lambda path: int(path.name))

  def is_saving(self) -> bool:
    return any(self._checkpoints.glob('*.orbax-checkpoint-tmp*'))

  def kill(self, victims: Sequence[int], number: signal.Signals) -> list[int]:
    """Sends a signal to some processes; the exit codes of all."""
    for victim in victims:
      self._processes[victim].send_signal(number)
    return self._finish()

  def wait_until(self, condition: Callable[[], bool]) -> None:
    """Waits while all processes live; raises CheckFailed when one does not."""
    deadline = time.monotonic() + _PATIENCE
    while not condition():
      codes = [process.poll() for process in self._processes]
      if codes != [None] * len(codes) or time.monotonic() > deadline:
        where, said = self.workdir, self._said()
        raise CheckFailed(f'{where}: not killed in time: {codes}: {said}')
      time.sleep(0.001)

  def _finish(self) -> list[int]:
    return [process.wait(self._patience) for process in self._processes]

  def _said(self) -> str:
    lines = (path.read_text().splitlines()[-1:] for path in self._logs)
    return ' | '.join(line for last in lines for line in last)


class Kill(NamedTuple):
  """One of the kills: some seconds after the run has logged a step."""

  way: str
  step: int
  wait: float
  victims: tuple[int, ...]

  @property
  def number(self) -> signal.Signals:
    return signal.Signals[self.way[:7].rstrip()]


def plan(kills: int, processes: int, chance: random.Random) -> list[Kill]:
  """As many kills, one in each stride of steps, all ways equally often."""
  # Ctrl-C is not heard by several processes.
  ways = [way for way in _WAYS if processes == 1 or way != 'SIGINT']
  chosen = list(itertools.islice(itertools.cycle(ways), kills))
  chance.shuffle(chosen)
  groups = [*((one,) for one in range(processes)), tuple(range(processes))]
  return [
    Kill(
      way,
      index * _STRIDE + chance.randrange(1, _STRIDE),
      chance.uniform(0, _START if way == _STARTING else 0.05),
      (0,) if way == 'SIGTERM' else chance.choice(groups),
    )
    for index, way in enumerate(chosen)
  ]


def strike(run: Run, kill: Kill) -> list[int]:
  """Kills as it is planned; the exit codes of all processes."""
  if kill.way != _STARTING:
    run.wait_until(lambda: run.step() >= kill.step)
  time.sleep(kill.wait)
  if kill.way == _SAVING:
    run.wait_until(run.is_saving)
  return run.kill(kill.victims, kill.number)


def damage(run: Run, way: str, chance: random.Random) -> str:
  """Cuts off what the way says; returns what and where."""
  if way == _LOG_CUT:
    return _cut(run.workdir / 'metrics.jsonl', chance)
  newest = run.newest_checkpoint()
  if way != _CHECKPOINT_CUT or newest is None:
    return ''
  files = (path for path in newest.rglob('*') if path.is_file())
  full = sorted(path for path in files if path.stat().st_size)
  return _cut(chance.choice(full), chance)


def _cut(path: Path, chance: random.Random) -> str:
  size = path.stat().st_size
  left = chance.randrange(size)
  os.truncate(path, left)
  return f'{path.parent.name}/{path.name[:20]} at byte {left:,} of {size:,}'


def killed(run: Run, kills: list[Kill], chance: random.Random) -> list[list]:
  """Kills a run so often, and lets it come to its end."""
  rows = []
  for number, kill in enumerate(kills, 1):
    run.start()
    codes = strike(run, kill)
    if rows:
      rows[-1].append(run.went_on())
    expected = EXIT_CODES.get(kill.number)
    if expected and set(codes) != {expected}:
      raise CheckFailed(f'kill {number}, {kill.way}: exit codes {codes}')
    victims = '+'.join(map(str, kill.victims))
    codes = ' '.join(map(str, codes))
    step = run.step()
    cut = damage(run, kill.way, chance)
    rows.append([number, kill.way, victims, codes, cut, step])
    common.log(f'kill {number} of {len(kills)}: {kill.way} at step {step}')
  run.complete()
  rows[-1].append(run.went_on())
  return rows


def differences(ours: Path, theirs: Path) -> list[str]:
  """What two runs do not have in common: parameters, and logged numbers.

  Lines of ours that are gone are none: a file was cut off.
  """
  different = [
    f'{kind} parameter {jax.tree_util.keystr(path)}'
    for kind in ('last', 'ema')
    for (path, one), (_, other) in zip(
      *(_leaves(path, kind) for path in (ours, theirs)), strict=True
    )
    if not np.array_equal(one, other)
  ]
  expected = {
    row['step']: row['loss'] for row in common.metrics(theirs, 'train')
  }
  logged = [(row['step'], row['loss']) for row in common.metrics(ours, 'train')]
  steps = [step for step, _ in logged]
  if steps != sorted(set(steps)):
    different.append('steps in metrics.jsonl that are there twice')
  wrong = [step for step, loss in logged if loss != expected[step]]
  return different + [f'the loss of step {step}' for step in wrong]


def _leaves(workdir: Path, kind: str) -> list[tuple[Any, Any]]:
  run = load_run(workdir, CheckpointSelection('last', parameters=kind))
  return jax.tree.leaves_with_path(run.parameters)


@one_line_errors
def main(argv: list[str]) -> None:
  parser = common.make_parser(__doc__)
  parser.add_argument('--workdir', type=Path, required=True)
  for name, value in (('kills', 20), ('processes', 1), ('seed', 0)):
    parser.add_argument(f'--{name}', type=int, default=value)
  arguments = parser.parse_args(argv)
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
  print(common.table(header, rows))
  different = differences(run.workdir, unbroken.workdir)
  if different:
    count = len(different)
    raise CheckFailed(f'{count} differences, the first: {different[0]}')
  print(f'{len(rows)} kills; parameters and logged losses are the same')


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
