"""Timed steps on request, so that several programs can take turns.

A contestant is a process that answers every line of its stdin, a number of
steps, by one line of JSON on its stdout. By hand:

    echo 5 | python -m benchmarks.contestants step --size=small

Only the standard library: peers in other environments import this too.
"""

import argparse
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from benchmarks.sizes import SIZES, Task

# Cores that every contestant may use; all are wanted beside an accelerator.
CORES = int(os.environ.get('BENCHMARK_CORES', '2'))
ROOT = Path(__file__).resolve().parent.parent
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


def add_size(parser: argparse.ArgumentParser) -> None:
  parser.add_argument('--size', choices=SIZES, default='small')


def add_task(parser: argparse.ArgumentParser) -> None:
  """The flags of all contestants that translate."""
  add_size(parser)
  for name in Task._fields:
    parser.add_argument(f'--{name}', type=int, default=1)


def task_of(arguments: argparse.Namespace) -> Task:
  return Task(*(getattr(arguments, name) for name in Task._fields))


def peak_memory_mb() -> float:
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def serve(make: Callable[[], Contestant], warm_up_steps: int = 3) -> None:
  """Makes a contestant and answers requests until stdin ends.

  The first answer comes unasked, after the warm-up, with no timed steps.
  Each request is preceded by one untimed step: others had the caches. Where a
  step takes so long that caches do not matter, it is left out.
  """
  answers = os.fdopen(os.dup(1), 'w', buffering=1)
  os.dup2(2, 1)  # What libraries print must not mix with the answers.
  limit_cores()
  begin = time.perf_counter()
  contestant = make()
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
