"""Work spread over processes that gives its results in order.

The processes are new interpreters that run this module. They import neither
the user's script, which `multiprocessing` would run again where it has no
guard, nor JAX, whose threads a fork would not survive. They end when the other
end of their socket does, and so with the process that started them, however it
ends.
"""

import collections
import concurrent.futures
import contextlib
import functools
import os
import pickle
import queue
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import Any, Generic, NoReturn, TypeVar

from fusion_jax.errors import InputError

# Items for each process that are in work, or done and waiting for their turn.
_ITEMS_AHEAD = 2
# Before each message, its number of bytes.
_SIZE = struct.Struct('<Q')

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
  """A process that runs `_serve`, at the other end of a socket."""

  def __init__(self):
    self._socket, other = socket.socketpair()
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
      self._socket.close()
      raise InputError(
        f'a process that encodes text cannot be started: {error.strerror}'
      ) from error
    finally:
      other.close()

  def send(self, value: Any) -> None:
    try:
      _send(value, self._socket)
    except OSError:
      self._tell_death()

  def answer(self, question: Any) -> Any:
    self.send(question)
    try:
      answer = _receive(self._socket)
    except (OSError, EOFError):
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
    self._socket.close()
    self._process.wait()


def _send(value: Any, connection: socket.socket) -> None:
  content = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
  connection.sendall(_SIZE.pack(len(content)))
  connection.sendall(content)


def _receive(connection: socket.socket) -> Any:
  (size,) = _SIZE.unpack(_read(connection, _SIZE.size))
  return pickle.loads(_read(connection, size))


def _read(connection: socket.socket, size: int) -> bytearray:
  # In one call where no signal cuts it short: after each call a thread waits
  # for the one that writes the records.
  content = bytearray(size)
  left = memoryview(content)
  while left:
    count = connection.recv_into(left, flags=socket.MSG_WAITALL)
    if not count:
      raise EOFError
    left = left[count:]
  return content


def _serve() -> None:
  """Answer the questions of the other process until it ends."""
  # It may end at any moment.
  with socket.socket(fileno=0) as other, contextlib.suppress(OSError, EOFError):
    state = _receive(other)
    while True:
      function, item = _receive(other)
      try:
        answer = function(state, item)
      except (InputError, MemoryError) as error:
        answer = error
      _send(answer, other)


if __name__ == '__main__':
  _serve()
