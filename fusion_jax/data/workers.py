"""Work spread over processes that gives its results in order.

The processes are new interpreters that run this module. They import neither
the user's script, which `multiprocessing` would run again where it has no
guard, nor JAX, whose threads a fork would not survive. They end when their pipe
does, and so with the process that started them, however it ends.
"""

import collections
import contextlib
import os
import queue
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing import Pipe, connection
from typing import Any, Generic, TypeVar

from fusion_jax.errors import InputError

# Results for each process that are awaited at most.
_AHEAD = 2

_StateT = TypeVar('_StateT')
_ItemT = TypeVar('_ItemT')
_ResultT = TypeVar('_ResultT')


def usable_cores() -> int:
  try:
    return len(os.sched_getaffinity(0))
  except AttributeError:  # Some systems know of no such restriction.
    return os.cpu_count() or 1


class Workers(Generic[_StateT]):
  """Processes that share a state, which pickles, until the block ends."""

  def __init__(self, state: _StateT, count: int):
    """Prepare to start them; with 1, this process does the work itself."""
    self.state, self._count = state, count
    self._processes: list[_Process] = []
    self._idle: queue.SimpleQueue[_Process] = queue.SimpleQueue()
    # Each of its threads waits for one process.
    self._threads = ThreadPoolExecutor(count)

  def __enter__(self) -> 'Workers[_StateT]':
    if self._count > 1:
      self._processes += [_Process() for _ in range(self._count)]
    for process in self._processes:
      process.send(self.state)
      self._idle.put(process)
    return self

  def __exit__(self, *_) -> None:
    for process in self._processes:
      process.kill()
    self._threads.shutdown(cancel_futures=True)

  def in_order(
    self,
    function: Callable[[_StateT, _ItemT], _ResultT],
    items: Iterable[_ItemT],
  ) -> Iterator[_ResultT]:
    """Yield the result for each item, in the order of the items.

    The function is one of a module. What it takes and returns must pickle.
    Items are read a few ahead of the results.
    """
    if not self._processes:
      yield from (function(self.state, item) for item in items)
      return
    results: collections.deque[Future[_ResultT]] = collections.deque()
    for item in items:
      results.append(self._threads.submit(self._ask, function, item))
      if len(results) >= _AHEAD * self._count:
        yield results.popleft().result()
    while results:
      yield results.popleft().result()

  def _ask(self, *question: Any) -> Any:
    process = self._idle.get()
    try:
      return process.answer(question)
    finally:
      self._idle.put(process)


class _Process:
  """A process that runs `_serve`, at the other end of a pipe."""

  def __init__(self):
    self._pipe, other = Pipe()
    with other:
      self._process = subprocess.Popen(
        [sys.executable, '-P', '-m', __name__],
        stdin=other.fileno(),
        stdout=subprocess.DEVNULL,
        env=os.environ | {'PYTHONPATH': os.pathsep.join(sys.path)},
        # Ctrl-C is for the process that started this one.
        process_group=0,
      )

  def send(self, value: Any) -> None:
    with self._telling_death():
      self._pipe.send(value)

  def answer(self, question: Any) -> Any:
    self.send(question)
    with self._telling_death():
      answer = self._pipe.recv()
    if isinstance(answer, Exception):
      raise answer
    return answer

  @contextlib.contextmanager
  def _telling_death(self) -> Iterator[None]:
    try:
      yield
    except (OSError, EOFError):
      raise InputError(
        f'a process that encodes text ended with code {self._process.wait()}; '
        'was the memory full? Fewer cores need less'
      ) from None

  def kill(self) -> None:
    self._process.kill()
    self._process.wait()


def _serve() -> None:
  """Answer the questions of the process that started this one."""
  # That process may end at any moment.
  with connection.Connection(0) as pipe, contextlib.suppress(OSError, EOFError):
    state = pipe.recv()
    while True:
      function, item = pipe.recv()
      try:
        answer = function(state, item)
      except (InputError, MemoryError) as error:
        answer = error
      pipe.send(answer)


if __name__ == '__main__':
  _serve()
