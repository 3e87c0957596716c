"""Heartbeats among several processes: a lost or hung one ends the others.

Collective operations wait for all processes, and wait forever if one of them is
gone. So each process writes its current step into DIR/heartbeat/PROCESS every
few seconds, and reads the files of the others. Clocks need not agree, because
only the time for which a file has not changed counts. A process that cannot
continue writes the reason.
"""

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import jax

from fusion_jax.config.parallel import ParallelConfig
from fusion_jax.errors import InputError, first_line
from fusion_jax.files import write_errors, write_whole
from fusion_jax.parallel.processes import gather, is_first

logger = logging.getLogger(__name__)

# EX_TEMPFAIL of sysexits.h: the same command may succeed when it is run again.
_EXIT_CODE = 75
# Exit code of an InputError, which would be raised again.
_ERROR_CODE = 2

_ADVICE = (
  'start all processes again with the same command, it resumes from the last '
  'whole checkpoint'
)


def name_start() -> str:
  """Return a name of this start that all processes share; all must call it."""
  return gather(os.urandom(8))[0].hex()


class Watch:
  """Record of how long the files of some processes have not changed."""

  def __init__(self, folder: Path, processes: int, start: str):
    """Watch the files from now on."""
    now = time.monotonic()
    self._folder, self._start = folder, start
    self._seen = [('', now) for _ in range(processes)]
    # The step of each process, and whether it has its batch.
    self._steps = [((-1, False), now) for _ in range(processes)]
    self._failures: dict[int, str] = {}

  def look(self) -> None:
    """Read all files."""
    now = time.monotonic()
    for process, (last, _) in enumerate(self._seen):
      content = ''
      with contextlib.suppress(OSError):
        content = (self._folder / str(process)).read_text()
      start, _, text = content.partition(' ')
      if start != self._start or text == last:
        continue
      self._seen[process] = text, now
      step, has_batch, _, *failure = text.split(maxsplit=3)
      place = int(step), bool(int(has_batch))
      if place != self._steps[process][0]:
        self._steps[process] = place, now
      if failure:
        self._failures[process] = failure[0]

  def failed(self) -> str:
    """Return why the first of the failed processes failed; '' if none did."""
    first = min(self._failures.items(), default=None)
    return f'process {first[0]}: {first[1]}' if first else ''

  def lost(self, seconds: float) -> str:
    """Return a message about processes without a heartbeat; '' if none."""
    now = time.monotonic()
    gone = [
      f'process {process} (last seen at step {self._steps[process][0][0]})'
      for process, (_, changed) in enumerate(self._seen)
      if now - changed > seconds
    ]
    listed = ', '.join(gone)
    return f'no heartbeat for {seconds:g} s from {listed}' if gone else ''

  def stalled(self, seconds: float) -> str:
    """Return a message if no process makes progress; '' if one does."""
    steps = [place for place, _ in self._steps]
    newest = max(changed for _, changed in self._steps)
    if time.monotonic() - newest <= seconds:
      return ''
    behind = [
      str(process) for process, place in enumerate(steps) if place == min(steps)
    ]
    (first, has_batch), (last, _) = min(steps), max(steps)
    return (
      f'no process has begun a step for {seconds:g} s: the last is {last}, '
      f'and {first} on process {", ".join(behind)}'
      + ('' if has_batch else ', which still waits for its input')
    )


class Heartbeat:
  """Thread that writes and watches heartbeats, if several processes train."""

  def __init__(self, workdir: Path, options: ParallelConfig, start: str):
    """Start the thread."""
    self._folder = workdir / 'heartbeat'
    self._options, self._start = options, start
    lost, stalled = options.lost_after, options.stalled_after
    self._pause = min(lost or stalled, stalled or lost, 20) / 4
    self._step, self._has_batch, self._beats = 0, False, 0
    self._ended = threading.Event()
    self._thread = None
    if jax.process_count() > 1 and self._pause:
      with write_errors(self._folder):
        self._folder.mkdir(exist_ok=True)
      self._thread = threading.Thread(target=self._run, daemon=True)
      self._thread.start()

  def begin_step(self, step: int) -> None:
    """Record that this process begins a step, and waits for its batch."""
    self._step, self._has_batch = step, False

  def record_batch(self) -> None:
    """Record that the batch has arrived."""
    self._has_batch = True

  def close(self) -> None:
    """End the thread."""
    self._ended.set()
    if self._thread:
      self._thread.join()

  @contextlib.contextmanager
  def telling(self) -> Iterator[None]:
    """Report an error inside the block to the other processes, and end all.

    Without this, an error of one process alone leaves the others waiting.
    """
    try:
      yield
    except InputError as error:
      if not self._thread:
        raise
      self.close()
      self._beat(f' {error}')
      _leave(str(error), _ERROR_CODE, self._pause)
    except jax.errors.JaxRuntimeError as error:
      # A computation with a lost process fails at once, or never; the thread
      # finds out which process it is.
      if self._thread:
        logger.warning('%s; looking for lost processes', first_line(error))
        time.sleep(self._options.lost_after + 2 * self._pause)
      raise

  def _run(self) -> None:
    lost, stalled = self._options.lost_after, self._options.stalled_after
    watch = Watch(self._folder, jax.process_count(), self._start)
    while not self._ended.wait(self._pause):
      self._beat()
      watch.look()
      if watch.failed():
        _leave(watch.failed(), _ERROR_CODE, self._pause)
      trouble = lost and watch.lost(lost)
      trouble = trouble or (stalled and watch.stalled(stalled))
      if trouble:
        _leave(f'{trouble}; {_ADVICE}', _EXIT_CODE, self._pause)

  def _beat(self, failure: str = '') -> None:
    """Write a heartbeat, or warn: a full disk may have room later."""
    self._beats += 1
    place = f'{self._step} {self._has_batch:d} {self._beats}'
    text = f'{self._start} {place}{failure}'
    try:
      write_whole(self._folder / str(jax.process_index()), text.encode())
    except InputError as error:
      logger.warning('no heartbeat for the other processes: %s', error)


def _leave(message: str, code: int, pause: float) -> NoReturn:
  """End this process, whose other threads may wait forever.

  Process 0 ends a little later, because JAX aborts the others when it is gone.
  """
  print(f'error: {message}', file=sys.stderr, flush=True)
  if is_first():
    time.sleep(2 * pause)
  os._exit(code)
