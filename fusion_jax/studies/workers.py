"""Processes that carry out the runs of a study, some at a time."""

import concurrent.futures
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO

from fusion_jax.files import write_whole
from fusion_jax.studies.carry_out import BUSY, Folder
from fusion_jax.studies.plan import Run, Study, with_needs

logger = logging.getLogger(__name__)

# Carries out one run.
COMMAND = sys.executable, '-m', 'fusion_jax', 'study'
# Seconds between two looks at what others do.
_LOOK = 1.0
# Exit codes of a run that was stopped.
_STOPPED = (75, 130, -15, -2)


def end_with(parent: int) -> None:
  """Ask this process to save and end as soon as its parent has died."""

  def watch() -> None:
    while os.getppid() == parent:
      time.sleep(_LOOK)
    os.kill(os.getpid(), signal.SIGTERM)

  threading.Thread(target=watch, daemon=True).start()


class Workers:
  """Carries out runs in processes, some at a time.

  Args:
    jobs: Runs at a time, each with its part of the devices and cores.
    part, parts: Runs number PART, PART + PARTS, ... are this command's.
  """

  def __init__(
    self,
    study: Study,
    folder: Folder,
    jobs: int = 1,
    part: int = 1,
    parts: int = 1,
  ):
    self._study, self._folder, self._jobs = study, folder, jobs
    own = study.runs[part - 1 :: parts]
    self._mine = [*dict.fromkeys(x for run in own for x in with_needs(run))]
    self._places: queue.SimpleQueue[int] = queue.SimpleQueue()
    for place in range(jobs):
      self._places.put(place)
    self._processes: set[subprocess.Popen] = set()
    self.stopped, self._stopping = threading.Event(), threading.RLock()

  def carry_out(self, on_result: Callable[[Run], object]) -> None:
    """Carry out this command's runs and what they need; all are tried once."""
    with concurrent.futures.ThreadPoolExecutor(self._jobs) as pool:
      try:
        self._carry_out(pool, on_result)
      except BaseException:
        self.stop()  # Else the pool would wait for what it has not begun.
        raise

  def _carry_out(
    self, pool: concurrent.futures.Executor, on_result: Callable[[Run], object]
  ) -> None:
    left = self._mine.copy()
    running: dict[concurrent.futures.Future, Run] = {}
    while (left or running) and not self.stopped.is_set():
      for run in [run for run in left if self._is_ready(run)]:
        left.remove(run)
        if not self._folder.is_finished(run):
          running[pool.submit(self._work, run)] = run
      waits = not any(map(self._is_ready, left))
      if not running and waits and self._is_hopeless(left):
        break
      done, _ = concurrent.futures.wait(running, timeout=_LOOK)
      for future in done:
        run = running.pop(future)
        if future.result() == BUSY:
          left.append(run)
          self.stopped.wait(_LOOK)
        on_result(run)

  def time(self) -> None:
    """Do a few updates, unless a finished run tells how long they take."""
    runs = *self._study.runs, self._study.timing
    if not any(map(self._folder.is_finished, runs)):
      self._work(self._study.timing)

  def stop(self) -> None:
    """Ask all processes to save and end, and begin no other; asks once."""
    with self._stopping:
      is_first = not self.stopped.is_set()
      self.stopped.set()
    for process in list(self._processes) if is_first else ():
      process.terminate()

  def _is_ready(self, run: Run) -> bool:
    return all(map(self._folder.is_finished, run.needs))

  def _is_hopeless(self, left: Sequence[Run]) -> bool:
    """Whether everything that is left waits for a run that failed."""
    return all(
      any(self._folder.failure(needed) for needed in run.needs) for run in left
    )

  def _work(self, run: Run) -> int:
    folder = self._folder.of(run)
    folder.mkdir(parents=True, exist_ok=True)
    place, log = self._places.get(), folder / 'log.txt'
    try:
      with log.open('ab') as file:
        code = self._process(run, place, file)
    finally:
      self._places.put(place)
    failed = folder / 'failed.txt'
    if code == 0:
      failed.unlink(missing_ok=True)
    elif code not in (BUSY, *_STOPPED):
      lines = log.read_text('utf-8', 'replace').splitlines()
      said = lines[-1] if lines and code > 0 else f'killed by signal {-code}'
      write_whole(failed, f'{said}\n'.encode())
    return code

  def _process(self, run: Run, place: int, log: IO[bytes]) -> int:
    flags = [f'--workdir={self._folder.workdir}', f'--run={run.name}']
    flags += [f'--parent={os.getpid()}', *self._cores(place)]
    command = [*COMMAND, str(self._study.path), *flags]
    # A session of its own: an interruption of the study is not one of the run,
    # which `stop` asks to save.
    with self._stopping:
      if self.stopped.is_set():
        return _STOPPED[0]
      process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env=os.environ | self._devices(place),
        start_new_session=True,
      )
      self._processes.add(process)
    logger.info('%s begins', run.name)
    code = process.wait()
    self._processes.discard(process)
    logger.info('%s ends with exit code %d', run.name, code)
    return code

  def _devices(self, place: int) -> Mapping[str, str]:
    """Give each of several jobs its part of the GPUs that are visible."""
    visible = os.environ.get('CUDA_VISIBLE_DEVICES', '')
    names = [name for name in visible.split(',') if name]
    if self._jobs == 1 or not names:
      return {}
    return {'CUDA_VISIBLE_DEVICES': ','.join(names[place :: self._jobs])}

  def _cores(self, place: int) -> list[str]:
    """Return the flags that give a job its part of the cores."""
    cores = sorted(os.sched_getaffinity(0))
    if self._jobs == 1 or len(cores) < self._jobs:
      return []
    return [f'--cores={",".join(map(str, cores[place :: self._jobs]))}']
