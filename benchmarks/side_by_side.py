"""Programs side by side: each a process, all taking turns, round by round.

Every round is saved: the same command resumes where it stopped, and tries again
those programs that could not start.
"""

import contextlib
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.common import PEERS_PYTHON, log, spread, write_results
from benchmarks.serving import ROOT


class Program(NamedTuple):
  """How a contestant is started."""

  module: str
  flags: tuple[str, ...] = ()
  python: str = sys.executable
  huge_pages: bool = True


def peer(module: str, *flags: str, huge_pages: bool = True) -> Program:
  """A contestant that runs in the environment of the peers."""
  module = f'benchmarks.peers.{module}'
  return Program(module, flags, str(PEERS_PYTHON), huge_pages)


class Worker:
  """A contestant's process, seen from the program that compares."""

  def __init__(self, program: Program, seconds: float = math.inf):
    """Starts it and waits until it is warm, for some seconds at most."""
    self._errors = tempfile.TemporaryFile('w+')  # noqa: SIM115
    tunables = f'glibc.malloc.hugetlb={int(program.huge_pages)}'
    self._process = subprocess.Popen(
      [program.python, '-m', program.module, *program.flags],
      cwd=ROOT,
      env=os.environ | {'GLIBC_TUNABLES': tunables},
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


def measure(
  results: dict[str, Any],
  programs: Mapping[str, Program],
  rounds: int,
  steps: int,
  path: Path,
) -> None:
  """Adds the rounds of some steps that are missing, in turns."""
  done = results['rounds']
  workers = _started(
    {
      name: program
      for name, program in programs.items()
      if len(done.get(name, ())) < rounds
    }
  )
  for index in range(rounds):
    for name in list(workers):
      if len(done.get(name, ())) > index:
        continue
      try:
        answer = workers[name].ask(steps)
      except (RuntimeError, OSError) as error:
        log(f'{name}: {error}')
        workers.pop(name)
        continue
      done.setdefault(name, []).append(answer)
      write_results(path, results)
      median = statistics.median(answer['seconds'])
      log(f'round {index + 1} of {rounds}, {name}: {median:.3f} s')
  for worker in workers.values():
    worker.close()


def rates(
  answers: Sequence[dict[str, Any]], name: str, amount: float
) -> dict[str, Any]:
  """The last answer, with the spread of an amount by the seconds of steps."""
  seconds = [taken for answer in answers for taken in answer['seconds']]
  last = {key: value for key, value in answers[-1].items() if key != 'seconds'}
  return last | {name: spread([amount / taken for taken in seconds])}


def _started(programs: Mapping[str, Program]) -> dict[str, Worker]:
  workers = {}
  for name, program in programs.items():
    try:
      workers[name] = Worker(program)
      seconds = workers[name].hello['start_seconds']
      log(f'{name}: ready, first step after {seconds:.1f} s')
    except (RuntimeError, OSError) as error:
      log(f'{name}: could not start: {error}')
  return workers


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
