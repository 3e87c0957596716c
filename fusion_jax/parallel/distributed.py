"""Several processes that train as one, each with its own devices."""

import argparse
import dataclasses
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import numpy as np

from fusion_jax.errors import InputError

Result = TypeVar('Result')

# Seconds: until all processes must be there, until JAX gives up one that shows
# no sign of life (`heartbeat` does so before, and says more), and until the
# others must have come to the end.
_START, _LOST, _END = 300, 300, 30


@dataclasses.dataclass(frozen=True)
class Processes:
  """Which process this is.

  Attributes:
    coordinator: 'HOST:PORT' of process 0; empty: JAX asks the cluster.
    count: all processes; 0: JAX asks.
    index: of this one; -1: JAX asks.
  """

  coordinator: str = ''
  count: int = 0
  index: int = -1

  def __post_init__(self):
    named = bool(self.coordinator), self.count > 0, self.index >= 0
    if len(set(named)) > 1:
      raise InputError(
        '--coordinator=HOST:PORT, --processes and --process belong together: '
        'give all three, or none where SLURM, GKE or Cloud TPU say it'
      )
    if any(named) and self.index >= self.count:
      raise InputError(
        f'--process: must be less than --processes={self.count}, '
        f'got {self.index}'
      )


def add_process_flags(parser: argparse.ArgumentParser) -> None:
  """Adds --coordinator, --processes, --process and --distributed."""
  add = parser.add_argument
  add('--distributed', action='store_true', help='ask the cluster for these:')
  add('--coordinator', default='', help='HOST:PORT of process 0')
  add('--processes', type=int, default=0, help='the number of processes')
  add('--process', type=int, default=-1, help='of this process, from 0')


def processes_of(arguments: argparse.Namespace) -> Processes | None:
  """What the flags and the environment say; None: this process is alone.

  Raises:
    InputError: flags that do not fit together.
  """
  given = Processes(
    arguments.coordinator, arguments.processes, arguments.process
  )
  if given.coordinator or arguments.distributed or _in_a_cluster(os.environ):
    return given
  return None


def _in_a_cluster(environment: Mapping[str, str]) -> bool:
  """Whether srun, mpirun or GKE started several processes."""
  tasks = ('SLURM_STEP_NUM_TASKS', 'OMPI_COMM_WORLD_SIZE')
  several = any(int(environment.get(name) or 1) > 1 for name in tasks)
  return several or ',' in environment.get('TPU_WORKER_HOSTNAMES', '')


def start(processes: Processes | None) -> None:
  """Joins the other processes; call it before anything else of JAX.

  Only process 0 logs what goes well.

  Args:
    processes: of `processes_of`.

  Raises:
    InputError: the others cannot be reached.
  """
  if processes is None:
    return
  import jax

  known = {}
  if processes.coordinator:
    known = {
      'coordinator_address': processes.coordinator,
      'num_processes': processes.count,
      'process_id': processes.index,
    }
  try:
    jax.distributed.initialize(
      **known,
      initialization_timeout=_START,
      heartbeat_timeout_seconds=_LOST,
      shutdown_timeout_seconds=_END,
    )
  except (RuntimeError, ValueError) as error:
    where = processes.coordinator or 'the cluster'
    raise InputError(
      f'the processes cannot be joined through {where}: '
      f'{str(error).splitlines()[0]}'
    ) from error
  if jax.process_index() > 0:
    logging.getLogger().setLevel(logging.WARNING)


def gather(value: bytes) -> list[bytes]:
  """What each process gives, by the number of the process, on all of them."""
  import jax
  from jax.experimental import multihost_utils

  if jax.process_count() == 1:
    return [value]
  sizes = multihost_utils.process_allgather(np.int32(len(value)))
  own = np.zeros(max(sizes.max(), 1), np.uint8)
  own[: len(value)] = np.frombuffer(value, np.uint8)
  all_bytes = multihost_utils.process_allgather(own)
  return [
    row[:size].tobytes() for row, size in zip(all_bytes, sizes, strict=True)
  ]


def on_all(action: Callable[[], Result]) -> Result:
  """Does something on every process; what stops one of them stops all.

  Args:
    action: the same on all of them.

  Returns:
    What it returns here.

  Raises:
    InputError: on all processes, what the first that failed says.
  """
  result, failure = None, b''
  try:
    result = action()
  except InputError as error:
    failure = str(error).encode() or b'?'
  failures = gather(failure)
  for process, message in enumerate(failures):
    if message:
      where = f'process {process}: ' if len(failures) > 1 else ''
      raise InputError(where + message.decode())
  return result


def first_then_others(action: Callable[[], Result]) -> Result:
  """Does something on process 0, then, if that went well, on the others."""
  import jax

  first = jax.process_index() == 0
  result = on_all(action if first else lambda: None)
  others = on_all((lambda: None) if first else action)
  return result if first else others


def own_share(items: Sequence[Result]) -> Sequence[Result]:
  """Every n-th item, from the number of this process on."""
  import jax

  return items[jax.process_index() :: jax.process_count()]


def joined(shares: list[list[Result]]) -> Iterator[Result]:
  """What was shared out by `own_share`, in the first order."""
  longest = max(map(len, shares))
  for index in range(longest):
    for share in shares:
      if index < len(share):
        yield share[index]
