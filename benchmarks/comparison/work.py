"""Carries out a plan: run by run, what is finished is not repeated."""

import contextlib
import fcntl
import math
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from benchmarks.common import log
from benchmarks.comparison.estimate import duration
from benchmarks.comparison.measure import Finished
from benchmarks.comparison.plan import Run
from benchmarks.comparison.results import Results
from fusion_jax.errors import CheckFailed, InputError

_FAILURES = subprocess.CalledProcessError, CheckFailed, InputError


class Measure(Protocol):
  """What `Runner` is to a plan."""

  def __call__(self, run: Run, rate: float | None) -> Finished:
    """Does what is left of a run."""

  def clean(self, run: Run) -> None:
    """Deletes what nobody needs of a finished run."""


def carry_out(
  runs: Sequence[Run],
  results: Results,
  measure: Measure,
  seconds: Callable[[Run], float],
  limit: int | None = None,
  deadline: float | None = None,
) -> list[str]:
  """Does the runs that have no results yet."""
  failed, done = [], 0
  for number, run in enumerate(runs, start=1):
    if run in results:
      measure.clean(run)
      continue
    if done == limit or (deadline and time.monotonic() >= deadline):
      log('the rest is left for the next time: the same command resumes')
      break
    try:
      _announce(run, number, runs, results, seconds)
      _do(run, results, measure)
    except _FAILURES as error:
      log(f'{run.name}: failed: {error}')
      failed.append(run.name)
    except subprocess.TimeoutExpired:
      log(f'{run.name}: the time is over: the same command resumes')
      break
    done += 1
  return failed


def chosen_rate(run: Run, results: Results) -> float | None:
  """The fusion's rate of a run: its own, or the best of its trials."""
  if not run.trials:
    return run.rate
  losses = {
    trial.rate: results[trial]['validation_nll']
    for trial in run.trials
    if trial in results
  }
  if not losses:
    raise CheckFailed('no run of its tuning is finished')
  return min(
    losses, key=lambda rate: math.inf if losses[rate] is None else losses[rate]
  )


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[int]:
  """A file descriptor that only one comparison in a folder has at a time.

  Programs that inherit it hold the lock too: where this one was killed, the
  next waits for the training that continues without it.
  """
  folder.mkdir(parents=True, exist_ok=True)
  with (folder / 'lock').open('w') as file:
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      log(f'{folder}: another comparison or its last training runs: waiting')
      fcntl.flock(file, fcntl.LOCK_EX)
    yield file.fileno()


def _do(run: Run, results: Results, measure: Measure) -> None:
  if run.start and run.start not in results:
    raise CheckFailed(f'it starts from {run.start.name}, which is not finished')
  finished = measure(run, chosen_rate(run, results))
  results.add(run, finished.numbers, finished.translations)
  measure.clean(run)


def _announce(
  run: Run,
  number: int,
  runs: Sequence[Run],
  results: Results,
  seconds: Callable[[Run], float],
) -> None:
  left = sum(seconds(other) for other in runs if other not in results)
  log(
    f'{run.name}: run {number} of {len(runs)}, about {duration(seconds(run))}; '
    f'{duration(left)} left for all'
  )
