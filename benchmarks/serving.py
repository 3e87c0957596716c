"""Timed steps on request, so that several programs can take turns.

A contestant is a process that answers every line of its stdin, a number of
steps, by one line of JSON on its stdout. By hand:

    echo 5 | python -m benchmarks.fusion_jax_step --size=small

Only the standard library: peers in other environments import this too.
"""

import argparse
import contextlib
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from benchmarks.sizes import SIZES, Size

# Cores that every contestant may use; all are wanted beside an accelerator.
CORES = int(os.environ.get('BENCHMARK_CORES', '2'))
ROOT = Path(__file__).resolve().parent.parent
_WARM_UP_STEPS = 3
# Steps that take longer are not preceded by one that is not timed.
_LONG_SECONDS = 20.0


class Contestant(Protocol):
  """What is timed."""

  def step(self) -> None:
    """One step of training, or one pass of decoding; returns when done."""

  def report(self) -> dict[str, Any]:
    """Version, parameters and whatever else belongs into the results."""


def limit_cores() -> None:
  """Binds this process and its children to CORES cores, where it can."""
  os.environ['OMP_NUM_THREADS'] = str(CORES)
  if hasattr(os, 'sched_setaffinity'):
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[:CORES])


def contestant_parser() -> argparse.ArgumentParser:
  """The flags that all contestants have."""
  parser = argparse.ArgumentParser()
  parser.add_argument('--size', choices=SIZES, default='small')
  return parser


def peak_memory_mb() -> float:
  """Largest resident size of this process so far."""
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def serve(
  make: Callable[[Size], Contestant],
  size: Size,
  warm_up_steps: int = _WARM_UP_STEPS,
) -> None:
  """Makes a contestant and answers requests until stdin ends.

  The first answer comes unasked, after the warm-up, with no timed steps.
  Each request is preceded by one untimed step: others had the caches. Where a
  step takes so long that caches do not matter, it is left out.
  """
  answers = os.fdopen(os.dup(1), 'w', buffering=1)
  os.dup2(2, 1)  # What libraries print must not mix with the answers.
  limit_cores()
  begin = time.perf_counter()
  contestant = make(size)
  contestant.step()
  start_seconds = time.perf_counter() - begin
  warm_up = [timed(contestant.step) for _ in range(warm_up_steps)]
  steps = 0
  while True:
    seconds = [timed(contestant.step) for _ in range(steps)]
    answer = {'seconds': seconds, 'start_seconds': start_seconds}
    answer |= {'peak_memory_mb': peak_memory_mb()} | contestant.report()
    answers.write(json.dumps(answer) + '\n')
    request = sys.stdin.readline().strip()
    if not request:
      return
    steps = int(request)
    if warm_up[-1] < _LONG_SECONDS:
      contestant.step()


def timed(step: Callable[[], None]) -> float:
  begin = time.perf_counter()
  step()
  return time.perf_counter() - begin


class Worker:
  """A contestant's process, seen from the program that compares."""

  def __init__(
    self,
    python: str,
    module: str,
    flags: Sequence[str],
    huge_pages: bool = True,
    seconds: float = math.inf,
  ):
    """Starts it and waits until it is warm, for some seconds at most."""
    self._errors = tempfile.TemporaryFile('w+')  # noqa: SIM115
    self._process = subprocess.Popen(
      [python, '-m', module, *flags],
      cwd=ROOT,
      env=os.environ
      | {'GLIBC_TUNABLES': f'glibc.malloc.hugetlb={int(huge_pages)}'},
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      stderr=self._errors,
      text=True,
      bufsize=1,
    )
    with _after(seconds, self._process.kill):
      self.hello = self._answer()

  def ask(self, steps: int) -> dict[str, Any]:
    """Return the answer to a request for a number of timed steps."""
    self._process.stdin.write(f'{steps}\n')
    return self._answer()

  def close(self) -> None:
    """Ends the process when it has answered."""
    self._process.stdin.close()
    self._process.wait()
    self._errors.close()

  def _answer(self) -> dict[str, Any]:
    line = self._process.stdout.readline()
    if line:
      return json.loads(line)
    self._process.wait()
    self._errors.seek(0)
    code = self._process.returncode
    lines = self._errors.read().strip().splitlines()
    raise RuntimeError(lines[-1] if code > 0 and lines else f'it ended: {code}')


@contextlib.contextmanager
def _after(seconds: float, action: Callable[[], None]) -> Iterator[None]:
  """Does something unless the block ends earlier."""
  timer = threading.Timer(min(seconds, threading.TIMEOUT_MAX), action)
  timer.daemon = True
  timer.start()
  try:
    yield
  finally:
    timer.cancel()
