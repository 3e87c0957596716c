"""Programs side by side: each a process, all taking turns, round by round.

Every round is saved: the same command resumes where it stopped, and tries again
those programs that could not start.
"""

import argparse
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

from benchmarks import common
from benchmarks.serving import ROOT, limit_cores
from benchmarks.sizes import SIZES


class Program(NamedTuple):
  """How a contestant is started."""

  module: str
  flags: tuple[str, ...] = ()
  python: str = sys.executable
  huge_pages: bool = True


def peer(module: str, *flags: str, huge_pages: bool = True) -> Program:
  """A contestant that runs in the environment of the peers."""
  module = f'benchmarks.peers.{module}'
  return Program(module, flags, str(common.PEERS_PYTHON), huge_pages)


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
    self._process.stdin.write(f'{steps}\n')
    return self._answer()

  def close(self) -> None:
    self._process.stdin.close()
    self._process.wait()
    self._errors.close()

  def _answer(self) -> dict[str, Any]:
    line = self._process.stdout.readline()
    if line:
      return json.loads(line)
    code = self._process.wait()
    self._errors.seek(0)
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


def add_flags(
  parser: argparse.ArgumentParser, size: str, rounds: int, steps: int
) -> None:
  """The flags of a comparison, with these defaults."""
  add = parser.add_argument
  add('--size', choices=SIZES, default=size)
  add('--peers', action='store_true', help='beside other programs')
  add('--rounds', type=int, default=rounds)
  add('--steps', type=int, default=steps, help='of a round')
  add('--output', type=Path)
  add('--fresh', action='store_true', help='start anew')


class Comparison:
  """Rounds of contestants in a file, for the flags of `add_flags`."""

  def __init__(self, arguments: argparse.Namespace, name: str):
    """Reads what is there."""
    default = common.RESULTS / f'{name}_{arguments.size}.json'
    self.path, self._arguments = arguments.output or default, arguments
    settings = {'size': arguments.size, 'steps': arguments.steps}
    self.results = common.resume(self.path, settings, arguments.fresh)
    self.rounds: dict[str, list[dict[str, Any]]] = self.results['rounds']
    limit_cores()

  def measure(self, programs: Mapping[str, Program]) -> None:
    wanted = self._arguments.rounds
    workers = _started(
      {
        name: program
        for name, program in programs.items()
        if len(self.rounds.get(name, ())) < wanted
      }
    )
    for index in range(wanted):
      for name in list(workers):
        if len(self.rounds.get(name, ())) <= index:
          self._add(name, index, workers)
    for worker in workers.values():
      worker.close()

  def _add(self, name: str, index: int, workers: dict[str, Worker]) -> None:
    try:
      answer = workers[name].ask(self._arguments.steps)
    except (RuntimeError, OSError) as error:
      common.log(f'{name}: {error}')
      workers.pop(name)
      return
    self.rounds.setdefault(name, []).append(answer)
    common.write_results(self.path, self.results)
    median = statistics.median(answer['seconds'])
    common.log(f'round {index + 1}, {name}: {median:.3f} s')

  def save(self, summary: Mapping[str, Any]) -> None:
    self.results['summary'] = summary
    common.write_results(self.path, self.results)


def rates(
  answers: Sequence[dict[str, Any]], name: str, amount: float
) -> dict[str, Any]:
  """The last answer, with the spread of an amount by the seconds of steps."""
  seconds = [taken for answer in answers for taken in answer['seconds']]
  last = {key: value for key, value in answers[-1].items() if key != 'seconds'}
  return last | {name: common.spread([amount / taken for taken in seconds])}


def _started(programs: Mapping[str, Program]) -> dict[str, Worker]:
  workers = {}
  for name, program in programs.items():
    try:
      workers[name] = Worker(program)
      seconds = workers[name].hello['start_seconds']
      common.log(f'{name}: ready, first step after {seconds:.1f} s')
    except (RuntimeError, OSError) as error:
      common.log(f'{name}: could not start: {error}')
  return workers
