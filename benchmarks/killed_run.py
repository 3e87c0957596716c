"""A tiny run of train.py, by one or several processes, that can be killed."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.common import as_flags
from benchmarks.serving import ROOT
from fusion_jax.errors import CheckFailed

# Steps between two checkpoints.
SAVE_EVERY = 20
# Seconds until a run has hung, and a step of it.
_PATIENCE, _A_STEP = 300, 1
# All that a run holds a state of: where a resumed one could differ.
_FIELDS = {
  'data.embedded_pairs': 600,
  'data.tokenizer.vocabulary_size': 300,
  'data.batch.tokens': 512,
  'data.batch.shapes': 1,
  'data.batch.packing': True,
  'data.sampling.source_alpha': 0.2,
  'data.sampling.target_alpha': 0.2,
  'model.width': 16,
  'model.filter': 32,
  'model.heads': 2,
  'model.encoder_layers': 1,
  'model.decoder_layers': 1,
  'model.dropout': 0.1,
  'optimizer.accumulation': 2,
  'training.log_every': 1,
  'training.ema': 0.9,
  'training.save_every': SAVE_EVERY,
  'training.validate_every': 1_000_000,
  'training.keep_last': 3,
  'parallel.lost_after': 12,
}


def _process_flags(count: int) -> list[list[str]]:
  """Return the flags of each of `count` processes on this machine."""
  if count == 1:
    return [[]]
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
    self._checkpoints = self.workdir / 'checkpoints'
    self._patience = _PATIENCE + _A_STEP * steps
    self._logs = [folder / f'{name}-{index}.txt' for index in range(processes)]
    self._processes: list[subprocess.Popen] = []
    own = {'training.steps': steps, 'data.prepared': folder / 'prepared'}
    config = '--config=configs/quickstart.py', f'--workdir={self.workdir}'
    flags = *config, *as_flags(_FIELDS | own, 'config.')
    self._command = [sys.executable, 'train.py', *flags]
    self._environment = os.environ | {
      'JAX_PLATFORMS': 'cpu',
      'JAX_NUM_CPU_DEVICES': '1',
      'JAX_COMPILATION_CACHE_DIR': str(folder / 'cache'),
      'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
    }

  def start(self) -> None:
    """Starts the processes; what they say goes to files."""
    self._processes = []
    for flags, log in zip(
      _process_flags(len(self._logs)), self._logs, strict=True
    ):
      with log.open('w') as output:
        self._processes.append(
          subprocess.Popen(
            [*self._command, *flags],
            cwd=ROOT,
            env=self._environment,
            stdout=output,
            stderr=output,
          )
        )

  def complete(self) -> None:
    """Starts the processes and waits for their good end."""
    self.start()
    codes = self._finish()
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
    text = self._logs[0].read_text()
    found = re.search(r'resuming from step (\d+)', text)
    if found:
      return found[1]
    return '0' if ' step ' in text else '-'

  def checkpoints(self) -> list[Path]:
    """The finished ones, by step."""
    found = [
      each for each in self._checkpoints.glob('*') if each.name.isdigit()
    ]
    return sorted(found, key=lambda path: int(path.name))

  def is_saving(self) -> bool:
    """Whether a checkpoint is being written."""
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
        raise CheckFailed(
          f'{self.workdir}: not killed in time, exit codes {codes}: '
          f'{self._said()}'
        )
      time.sleep(0.001)

  def _finish(self) -> list[int]:
    return [process.wait(self._patience) for process in self._processes]

  def _said(self) -> str:
    lines = (log.read_text().splitlines()[-1:] for log in self._logs)
    return ' | '.join(line for last in lines for line in last)
