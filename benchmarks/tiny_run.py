"""A tiny run of train.py, by one or several processes, that can be killed."""

import itertools
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.serving import ROOT
from fusion_jax.errors import CheckFailed

# Steps between two checkpoints.
SAVE_EVERY = 20
# Seconds until a run has hung, and a step of it.
_PATIENCE, _A_STEP = 300, 1
# Fields of a run that takes seconds.
TINY = {
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
}
# All that a run holds a state of: where a resumed one could differ.
_FLAGS = TINY | {
  'data.batch.packing': True,
  'data.sampling.source_alpha': 0.2,
  'data.sampling.target_alpha': 0.2,
  'optimizer.accumulation': 2,
  'training.ema': 0.9,
  'training.save_every': SAVE_EVERY,
  'training.validate_every': 1_000_000,
  'training.keep_last': 3,
  'parallel.lost_after': 12,
}


def process_flags(count: int) -> list[list[str]]:
  """The flags of each of so many processes on this machine."""
  with socket.socket() as free:
    free.bind(('127.0.0.1', 0))
    port = free.getsockname()[1]
  together = [f'--coordinator=127.0.0.1:{port}', f'--processes={count}']
  return [[*together, f'--process={index}'] for index in range(count)]


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
    alone = self._count == 1
    flags = [[]] if alone else process_flags(self._count)
    self._processes = []
    for index, own in enumerate(flags):
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
    patience = _PATIENCE + _A_STEP * self._steps
    return [process.wait(patience) for process in self._processes]

  def complete(self) -> None:
    """Starts the processes and waits for their good end."""
    self.start()
    codes = self.finish()
    if any(codes):
      raise CheckFailed(f'{self.workdir}: exit codes {codes}: {self._said()}')

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
    found = re.search(r'resuming from step (\d+)', text)
    if found:
      return found[1]
    return '0' if ' step ' in text else '-'

  def checkpoints(self) -> list[Path]:
    """The finished ones, by step."""
    folder = self.workdir / 'checkpoints'
    found = [each for each in folder.glob('*') if each.name.isdigit()]
    return sorted(found, key=lambda path: int(path.name))

  def is_saving(self) -> bool:
    """Whether a checkpoint is being written."""
    folder = self.workdir / 'checkpoints'
    return any(folder.glob('*.orbax-checkpoint-tmp*'))

  def kill(self, victims: Sequence[int], number: signal.Signals) -> list[int]:
    """Sends a signal to some processes; the exit codes of all."""
    for victim in victims:
      self._processes[victim].send_signal(number)
    return self.finish()

  def wait_until(self, condition: Callable[[], bool]) -> None:
    """Waits while all processes live.

    Raises:
      CheckFailed: one has ended, or it takes too long.
    """
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
