"""Signs of life among several processes: a lost or hung one ends the others.

Collective operations wait for all processes, for ever if one of them is gone.
So each process writes the step it is at into DIR/heartbeat/PROCESS every few
seconds, and reads those of the others. Clocks need not agree: what counts is
how long a file has not changed.
"""

import logging
import os
import threading
import time
from pathlib import Path

import jax

from fusion_jax.parallel_options import ParallelConfig
from fusion_jax.training.run_directory import write_atomically

logger = logging.getLogger(__name__)

# EX_TEMPFAIL of sysexits.h: the same command may go well when it is run again.
_EXIT_CODE = 75

_ADVICE = (
  'start all processes again with the same command, it goes on from the last '
  'whole checkpoint'
)


class Watch:
  """How long the files of some processes have not changed."""

  def __init__(self, folder: Path, processes: int):
    now = time.monotonic()
    self._folder = folder
    self._seen = [('', now) for _ in range(processes)]
    self._steps = [(-1, now) for _ in range(processes)]

  def look(self) -> None:
    """Reads all files."""
    now = time.monotonic()
    for process, (last, _) in enumerate(self._seen):
      text = self._read(process)
      if text in ('', last):
        continue
      self._seen[process] = text, now
      step = int(text.split()[0])
      if step != self._steps[process][0]:
        self._steps[process] = step, now

  def lost(self, seconds: float) -> str:
    """What is to be told of processes without a sign of life; '' of none."""
    now = time.monotonic()
    gone = [
      f'process {process} (last seen at step {self._steps[process][0]})'
      for process, (_, changed) in enumerate(self._seen)
      if now - changed > seconds
    ]
    if not gone:
      return ''
    return f'no sign of life for {seconds:g} s from {", ".join(gone)}'

  def stalled(self, seconds: float) -> str:
    """What is to be told where no process comes further; '' where one does."""
    steps = [step for step, _ in self._steps]
    newest = max(changed for _, changed in self._steps)
    if time.monotonic() - newest <= seconds:
      return ''
    behind = [
      str(process) for process, step in enumerate(steps) if step == min(steps)
    ]
    return (
      f'no process has begun a step for {seconds:g} s: the last is '
      f'{max(steps)}, and {min(steps)} on process {", ".join(behind)}'
    )

  def _read(self, process: int) -> str:
    try:
      return (self._folder / str(process)).read_text()
    except OSError:
      return ''


class Heartbeat:
  """Writes and watches in a thread, where there are several processes."""

  def __init__(self, workdir: Path, options: ParallelConfig):
    """Starts the thread.

    Args:
      workdir: the run directory, on a disk that all processes share.
      options: after what time to give up.
    """
    self._folder = workdir / 'heartbeat'
    self._options = options
    self._step, self._beats = 0, 0
    self._ended = threading.Event()
    self._thread = None
    if jax.process_count() > 1:
      self._folder.mkdir(exist_ok=True)
      self._thread = threading.Thread(target=self._run, daemon=True)
      self._thread.start()

  def at(self, step: int) -> None:
    """Says that this process begins a step."""
    self._step = step

  def close(self) -> None:
    """Ends the thread."""
    self._ended.set()
    if self._thread:
      self._thread.join()

  def _run(self) -> None:
    lost, stalled = self._options.lost_after, self._options.stalled_after
    pause = min(lost or stalled, stalled or lost, 20) / 4
    watch = Watch(self._folder, jax.process_count())
    while pause and not self._ended.wait(pause):
      self._beats += 1
      write_atomically(
        self._folder / str(jax.process_index()),
        f'{self._step} {self._beats}'.encode(),
      )
      watch.look()
      trouble = lost and watch.lost(lost)
      trouble = trouble or (stalled and watch.stalled(stalled))
      if trouble:
        logger.error('error: %s; %s', trouble, _ADVICE)
        # The other threads wait for what will not come.
        os._exit(_EXIT_CODE)
