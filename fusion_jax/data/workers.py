"""Work spread over processes that gives its results in order.

The processes are new interpreters that run this module. They import neither
the user's script, which `multiprocessing` would run again where it has no
guard, nor JAX, whose threads a fork would not survive. They end when their pipe
does, and so with the process that started them, however it ends.
"""

import collections
import contextlib
import functools
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import Pipe, connection
from typing import Any, Generic, NoReturn, TypeVar

from fusion_jax.errors import InputError

# Results for each process that are awaited at most.
_AHEAD = 2

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
    """Prepare to start them; with 1, this process does the work itself."""
    self.state = state
    self._count = count if count > 1 else 0
    self._processes: list[_Process] = []
    self._idle: list[_Process] = []
    # Numbers of the items in work by the pipe, and results by that number.
    self._working: dict[Any, tuple[_Process, int]] = {}
    self._results: dict[int, Any] = {}
    self._numbers = itertools.count()

  def __enter__(self) -> 'Workers[_StateT]':
    try:
      for _ in range(self._count):
        self._processes.append(_Process())
      for process in self._processes:
        process.send(self.state)
    except BaseException:
      self.__exit__()
      raise
    self._idle = list(self._processes)
    return self

  def __exit__(self, *_) -> None:
    for process in self._processes:
      process.kill()

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
      InputError: The function raised it, or a process has died.
    """
    if not self._processes:
      yield from map(functools.partial(function, self.state), items)
      return
    numbers: collections.deque[int] = collections.deque()
    for item in items:
      numbers.append(self._start(function, item))
      if len(numbers) >= _AHEAD * self._count:
        yield self._result(numbers.popleft())
    while numbers:
      yield self._result(numbers.popleft())

  def _start(self, *question: Any) -> int:
    while not self._idle:
      self._receive()
    process = self._idle.pop()
    process.send(question)
    number = next(self._numbers)
    self._working[process.pipe] = process, number
    return number

  def _result(self, number: int) -> Any:
    while number not in self._results:
      self._receive()
    result = self._results.pop(number)
    if isinstance(result, Exception):
      raise result
    return result

  def _receive(self) -> None:
    for pipe in connection.wait(list(self._working)):
      process, number = self._working.pop(pipe)
      self._results[number] = process.receive()
      self._idle.append(process)


class _Process:
  """A process that runs `_serve`, at the other end of a pipe."""

  def __init__(self):
    self.pipe, other = Pipe()
    try:
      self._process = subprocess.Popen(
        [sys.executable, '-P', '-m', __name__],
        stdin=other.fileno(),
        stdout=subprocess.DEVNULL,
        env=os.environ | {'PYTHONPATH': os.pathsep.join(sys.path)},
        # Ctrl-C is for the process that started this one.
        process_group=0,
      )
    except OSError as error:
      self.pipe.close()
      raise InputError(
        f'a process that encodes text cannot be started: {error.strerror}'
      ) from error
    finally:
      other.close()

  def send(self, value: Any) -> None:
    try:
      self.pipe.send(value)
    except OSError:
      self._tell_death()

  def receive(self) -> Any:
    try:
      return self.pipe.recv()
    except (OSError, EOFError):
      self._tell_death()

  def _tell_death(self) -> NoReturn:
    code = self._process.wait()
    if code >= 0:
      end = f'ended with code {code}; what it wrote to stderr may say why'
    else:
      name = signal.Signals(-code).name
      end = f'was killed by {name}; was the memory full? Fewer cores need less'
    raise InputError(f'a process that encodes text {end}')

  def kill(self) -> None:
    self.pipe.close()
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
