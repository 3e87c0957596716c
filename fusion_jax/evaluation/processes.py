"""Work for all cores."""

import concurrent.futures
import contextlib
import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from typing import Any

Map = Callable[..., Iterable[Any]]


@contextlib.contextmanager
def in_processes(count: int) -> Iterator[Map]:
  """A `map` whose calls are made in several processes.

  Processes are started anew and not forked: JAX has threads of its own.

  Args:
    count: of the processes; 1: all is done in this one.

  Yields:
    Takes a function of the top of a module and its arguments, as `map` does,
    and gives the answers in order.
  """
  if count == 1:
    yield map
    return
  context = multiprocessing.get_context('spawn')
  with concurrent.futures.ProcessPoolExecutor(count, context) as pool:
    yield pool.map
