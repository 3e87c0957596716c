"""Starts train.py for a tiny run, and looks at what it leaves.

The runs are of the embedded corpus cut to 600 pairs. Those of one `Program`
share a prepared corpus and a compilation cache.
"""

import contextlib
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax
import numpy as np
from tiny_run import TINY, process_flags

from fusion_jax.runs.loading import CheckpointSelection, load_run

ROOT = Path(__file__).parents[1]
STEPS = 300
FLAGS = TINY | {
  'training.steps': STEPS,
  'training.save_every': 50,
  'training.validate_every': 150,
  'training.translate_sentences': 8,
  'training.keep_last': 3,
}


class Program:
  """Starts train.py with the flags above."""

  def __init__(self, folder: Path):
    self._folder = folder

  def start(
    self,
    workdir: Path,
    limit: int | None = None,
    extra: Sequence[str] = (),
    devices: int = 1,
    folder: Path = ROOT,
    program: Path = ROOT / 'train.py',
    **changes,
  ):
    """Starts a process.

    Args:
      workdir: the run directory.
      limit: the largest file it may write, in KiB.
      extra: more flags.
      devices: of the process.
      folder: that it runs in.
      program: that is started; takes the flags of train.py.
      changes: fields of the config, with __ for the dot.
    """
    flags = (
      FLAGS
      | {'data.prepared': self._folder / 'prepared'}
      | {name.replace('__', '.'): value for name, value in changes.items()}
    )
    command = [
      sys.executable,
      str(program),
      f'--config={ROOT}/configs/quickstart.py',
      f'--workdir={workdir}',
      *extra,
      *(f'--config.{name}={value}' for name, value in flags.items()),
    ]
    environment = os.environ | {
      'JAX_PLATFORMS': 'cpu',
      'JAX_COMPILATION_CACHE_DIR': str(self._folder / 'cache'),
      'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
      'JAX_NUM_CPU_DEVICES': str(devices),
    }
    if limit:
      command = [
        'bash',
        '-c',
        f'ulimit -f {limit}; exec "$@"',
        'bash',
        *command,
      ]
    return subprocess.Popen(
      command,
      cwd=folder,
      env=environment,
      text=True,
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
    )

  def start_together(self, workdir: Path, each=({}, {}), **changes):
    """Starts one process for each of `each`, with its own arguments beside."""
    return [
      self.start(workdir, extra=flags, devices=2, **(changes | own))
      for flags, own in zip(process_flags(len(each)), each, strict=True)
    ]

  def run(self, workdir: Path, **changes) -> tuple[int, str]:
    """Runs to the end; exit code and stderr. stdout must stay empty."""
    out, err, code = self.finish(self.start(workdir, **changes))
    assert out == ''
    return code, err

  def finish(self, process) -> tuple[str, str, int]:
    """Waits for a process; stdout, stderr and exit code."""
    out, err = process.communicate(timeout=300)
    return out, err, process.returncode


def saved_steps(workdir: Path) -> list[int]:
  # A kill may leave an unfinished one, '100.orbax-checkpoint-tmp'.
  names = [path.name for path in (workdir / 'checkpoints').iterdir()]
  return sorted(int(name) for name in names if name.isdigit())


def logged(workdir: Path, kind: str) -> list[dict]:
  lines = (workdir / 'metrics.jsonl').read_text().splitlines()
  return [row for row in map(json.loads, lines) if row['kind'] == kind]


def wait_for_step(workdir: Path, step: int, *processes) -> None:
  """Waits while all processes live."""
  deadline = time.monotonic() + 300
  while time.monotonic() < deadline:
    path = workdir / 'metrics.jsonl'
    if path.exists() and path.read_text().count('"train"') >= step:
      return
    for process in processes:
      assert process.poll() is None, process.communicate()[1]
    time.sleep(0.01)
  raise AssertionError(f'no step {step} in five minutes')


def assert_same_parameters(first: Path, second: Path) -> None:
  jax.tree.map(
    np.testing.assert_array_equal,
    load_run(first, CheckpointSelection('last')).parameters,
    load_run(second, CheckpointSelection('last')).parameters,
  )


@contextlib.contextmanager
def logged_messages() -> Iterator[list[str]]:
  """Gives what is logged within the block, where there is no caplog."""
  messages: list[str] = []
  handler = logging.Handler()
  handler.emit = lambda record: messages.append(record.getMessage())
  logger = logging.getLogger('fusion_jax')
  level = logger.level
  logger.addHandler(handler)
  logger.setLevel(logging.INFO)
  try:
    yield messages
  finally:
    logger.removeHandler(handler)
    logger.setLevel(level)


def one_line(err: str) -> str:
  errors = [line for line in err.splitlines() if line.startswith('error:')]
  assert len(errors) == 1, err
  assert 'Traceback' not in err, err
  return errors[0]
