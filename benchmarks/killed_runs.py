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
import signal
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from benchmarks.common import log, make_parser, table
from benchmarks.killed_run import SAVE_EVERY, Run
from benchmarks.programs import metrics
from fusion_jax.errors import CheckFailed, InputError
from fusion_jax.runs.loading import CheckpointSelection, load_run
from fusion_jax.startup import one_line_errors

_SAVING = 'SIGKILL in a save'
_CHECKPOINT_CUT = 'SIGKILL, checkpoint cut off'
_LOG_CUT = 'SIGKILL, metrics.jsonl cut off'
_STARTING = 'SIGKILL at the start'
_WAYS = (
  *(_SAVING, _CHECKPOINT_CUT, 'SIGTERM', _LOG_CUT),
  *('SIGKILL', _STARTING, 'SIGINT'),
)

# Steps between two kills, and the seconds in which one at the start comes.
_STRIDE, _START = 3 * SAVE_EVERY, 5.0


class Kill(NamedTuple):
  """One of the kills.

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
  """Kills a run so often, and lets it come to its end."""
  rows = []
  for number, kill in enumerate(kills, 1):
    run.start()
    codes = strike(run, kill)
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
  found = [
    f'{kind} parameter {jax.tree_util.keystr(path)}'
    for kind in ('last', 'ema')
    for (path, own), (_, other) in zip(
      *(_leaves(path, kind) for path in (ours, theirs)), strict=True
    )
    if not np.array_equal(own, other)
  ]
  expected = {row['step']: row['loss'] for row in metrics(theirs, 'train')}
  logged = [(row['step'], row['loss']) for row in metrics(ours, 'train')]
  steps = [step for step, _ in logged]
  if steps != sorted(set(steps)):
    found.append('steps in metrics.jsonl that are there twice')
  wrong = [step for step, loss in logged if loss != expected[step]]
  return found + [f'the loss of step {step}' for step in wrong]


def _leaves(workdir: Path, kind: str) -> list[tuple[Any, Any]]:
  run = load_run(workdir, CheckpointSelection('last', parameters=kind))
  return jax.tree.leaves_with_path(run.parameters)


@one_line_errors
def main() -> None:
  parser = make_parser(__doc__)
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
