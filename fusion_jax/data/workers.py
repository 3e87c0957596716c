"""Work spread over processes that gives its results in order.

The processes are new interpreters that run this module. They import neither
the user's script, which `multiprocessing` would run again where it has no
guard, nor JAX, whose threads a fork would not survive. They end when the pipe
from the process that started them does, and so with it, however it ends.
"""

import collections
import concurrent.futures
import contextlib
import functools
import os
import pickle
import queue
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import Any, Generic, NoReturn, TypeVar

from fusion_jax.errors import InputError

# Items for each process that are in work, or done and waiting for their turn.
_ITEMS_AHEAD = 2

_StateT = TypeVar('_StateT')
_ItemT = TypeVar('_ItemT')
_ResultT = TypeVar('_ResultT')


def usable_cores() -> int:
  """Return the number of cores that this process may use."""
  try:
    return len(os.sched_getaffinity(0))
  except AttributeError:  # Some systems know of no such restriction.
    return os.cpu_count() or 1


class Workers(Generic[_StateT]):
  """Processes that share a state, until the block ends.

  Attributes:
    state: The state, which pickles.
  """

  def __init__(self, state: _StateT, count: int):
    """Prepare to start them.

    Args:
      state: What every function is called with.
      count: Number of processes. With 1, this process does the work itself.
    """
    self.state = state
    self._count = count
    self._processes: list[_Process] = []
    self._idle: queue.SimpleQueue[_Process] = queue.SimpleQueue()
    self._threads = concurrent.futures.ThreadPoolExecutor(count)

  def __enter__(self) -> 'Workers[_StateT]':
    try:
      if self._count > 1:
        self._processes.extend(_Process() for _ in range(self._count))
      for process in self._processes:
        process.send(self.state)
        self._idle.put(process)
    except BaseException:
      self.__exit__()
      raise
    return self

  def __exit__(self, *_) -> None:
    for process in self._processes:
      process.kill()
    self._threads.shutdown(cancel_futures=True)
    for process in self._processes:
      process.close()

  def in_order(
    self,
    function: Callable[[_StateT, _ItemT], _ResultT],
    items: Iterable[_ItemT],
  ) -> Iterator[_ResultT]:
    """Yield the result for each item, in the order of the items.

    Args:
      function: Function of a module, of the state and an item. What it takes
        and returns must pickle.
      items: Read a few ahead of the results.

    Yields:
      The results.

    Raises:
      InputError: The function or the items raised it, after all results before
        it; or a process has died.
    """
    if not self._processes:
      yield from map(functools.partial(function, self.state), items)
      return
    ahead = _ITEMS_AHEAD * len(self._processes)
    waiting: collections.deque[Future[_ResultT]] = collections.deque()
    for future in self._submitted(function, items):
      waiting.append(future)
      if len(waiting) > ahead:
        yield waiting.popleft().result()
    while waiting:
      yield waiting.popleft().result()

  def _submitted(
    self,
    function: Callable[[_StateT, _ItemT], _ResultT],
    items: Iterable[_ItemT],
  ) -> Iterator[Future[_ResultT]]:
    """Yield a future for each item, and for the error that ends them."""
    try:
      for item in items:
        yield self._threads.submit(self._result, function, item)
    except InputError as error:
      failed: Future[_ResultT] = Future()
      failed.set_exception(error)
      yield failed

  def _result(self, *question: Any) -> Any:
    process = self._idle.get()
    try:
      return process.answer(question)
    finally:
      self._idle.put(process)


class _Process:
  """A process that runs `_serve`."""

  def __init__(self):
    try:
      self._process = subprocess.Popen(
        [sys.executable, '-P', '-m', __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {'PYTHONPATH': os.pathsep.join(sys.path)},
        # Ctrl-C is for the process that started this one.
        process_group=0,
      )
    except OSError as error:
      raise InputError(
        f'a process that encodes text cannot be started: {error.strerror}'
      ) from error
    self._questions: Any = self._process.stdin
    self._answers: Any = self._process.stdout

  def send(self, value: Any) -> None:
    try:
      _write(value, self._questions)
    except OSError:
      self._tell_death()

  def answer(self, question: Any) -> Any:
    self.send(question)
    try:
      answer = pickle.load(self._answers)
    except (OSError, EOFError, pickle.UnpicklingError):
      self._tell_death()
    if isinstance(answer, Exception):
      raise answer
    return answer

  def _tell_death(self) -> NoReturn:
    code = self._process.wait()
    if code >= 0:
      end = f'ended with code {code}; what it wrote to stderr may say why'
    else:
      name = signal.Signals(-code).name
      end = f'was killed by {name}; was the memory full? Fewer cores need less'
    raise InputError(f'a process that encodes text {end}')

  def kill(self) -> None:
    self._process.kill()

  def close(self) -> None:
    # What a dead process did not read cannot be flushed.
    with contextlib.suppress(OSError):
      self._questions.close()
    self._answers.close()
    self._process.wait()


def _write(value: Any, file: Any) -> None:
  pickle.dump(value, file, pickle.HIGHEST_PROTOCOL)
  file.flush()


def _serve() -> NoReturn:
  """Answer the questions on stdin until there are no more."""
  questions, answers = sys.stdin.buffer, sys.stdout.buffer
  # Nothing else may be written between the answers.
  sys.stdout = sys.stderr
  # The other process may end at any moment.
  with contextlib.suppress(EOFError, BrokenPipeError, pickle.UnpicklingError):
    state = pickle.load(questions)
    while True:
      function, item = pickle.load(questions)
      try:
        answer = function(state, item)
      except (InputError, MemoryError) as error:
        answer = error
      _write(answer, answers)
  os._exit(0)


if __name__ == '__main__':
  _serve()
