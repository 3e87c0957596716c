"""Several processes that train as one, each with its own devices."""

import argparse
import functools
import logging
import operator
import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pydantic

from fusion_jax.bounds import Natural, Positive, number
from fusion_jax.errors import InputError, first_line

Result = TypeVar('Result')

# Timeouts in seconds: until all processes must have joined, until JAX gives up
# a process without a heartbeat (the module `heartbeat` does so earlier, and
# reports more), and until the other processes must have ended.
_START, _LOST, _END = 300, 300, 30

# Variables with the number of processes that srun, Open MPI, and MPICH or Intel
# MPI started, and with the number of TPU slices. The number of srun is that of
# this step, because a shell of salloc is alone in its own step.
_COUNTS = (
  'SLURM_STEP_NUM_TASKS',
  'OMPI_COMM_WORLD_SIZE',
  'PMI_SIZE',
  'MEGASCALE_NUM_SLICES',
)
# Variables with the hosts of a TPU slice on GKE.
_HOSTS = ('TPU_PROCESS_ADDRESSES', 'TPU_WORKER_HOSTNAMES')


class Processes(NamedTuple):
  """Process 0 as 'HOST:PORT', how many there are, and which this is.

  None: JAX asks the cluster.
  """

  coordinator: str | None = None
  total: int | None = None
  number: int | None = None


def add_process_flags(parser: argparse.ArgumentParser) -> None:
  """Add --coordinator, --processes, --process and --distributed."""
  add, count, index = parser.add_argument, number(Positive), number(Natural)
  add('--distributed', action='store_true', help='ask the cluster for these:')
  add('--coordinator', help='HOST:PORT of process 0')
  add('--processes', type=count, help='the number of processes')
  add('--process', type=index, help='of this process, from 0')


def processes_of(arguments: argparse.Namespace) -> Processes | None:
  """Return what the flags and the environment say about the processes."""
  flags = vars(arguments)
  several = flags.pop('distributed')
  given = Processes(
    flags.pop('coordinator'), flags.pop('processes'), flags.pop('process')
  )
  coordinator, total, own = given
  if coordinator and total and own is not None:
    if own < total:
      return given
    raise InputError(
      f'--process: must be less than --processes={total}, got {own}'
    )
  if given != Processes():
    raise InputError(
      '--coordinator=HOST:PORT, --processes and --process belong together: '
      'give all three, or none where SLURM, GKE or Cloud TPU say it'
    )
  return given if several or _in_a_cluster(os.environ) else None


def _in_a_cluster(environment: Mapping[str, str]) -> bool:
  """Return whether srun, mpirun or GKE started several processes."""
  counts = (environment.get(name) or '1' for name in _COUNTS)
  hosts = (environment.get(name, '') for name in _HOSTS)
  return any(count != '1' for count in counts) or ',' in ' '.join(hosts)


def start(processes: Processes | None) -> None:
  """Join the other processes; call it before anything else of JAX.

  Afterwards only process 0 logs messages below a warning.
  """
  if processes is None:
    return
  import jax

  try:
    jax.distributed.initialize(
      *processes,
      initialization_timeout=_START,
      heartbeat_timeout_seconds=_LOST,
      shutdown_timeout_seconds=_END,
    )
  except (RuntimeError, ValueError) as error:
    where = processes.coordinator or (
      'the cluster (where JAX cannot ask it, give --coordinator, --processes '
      'and --process)'
    )
    raise InputError(
      f'the processes cannot be joined through {where}: {first_line(error)}'
    ) from error
  if jax.process_index() > 0:
    logging.getLogger().setLevel(logging.WARNING)


def gather(value: bytes) -> list[bytes]:
  """Return the values of all processes on each of them, in process order."""
  import jax
  from jax.experimental import multihost_utils

  if jax.process_count() == 1:
    return [value]
  sizes = multihost_utils.process_allgather(np.int32(len(value)))
  padded = np.zeros(max(sizes.max(), 1), np.uint8)
  padded[: len(value)] = np.frombuffer(value, np.uint8)
  all_bytes = multihost_utils.process_allgather(padded)
  return [
    row[:size].tobytes() for row, size in zip(all_bytes, sizes, strict=True)
  ]


def on_all(
  action: Callable[[], Result],
  kinds: tuple[type[Exception], ...] = (InputError,),
) -> Result:
  """Run an action on every process, and fail on all if it fails on one."""
  results, failure = [], b''
  try:
    results.append(action())
  except kinds as error:
    failure = f'{type(error).__name__} {error}'.encode()
  failures = gather(failure)
  for process, told in enumerate(failures):
    if told:
      name, _, message = told.decode().partition(' ')
      where = f'process {process}: ' if len(failures) > 1 else ''
      raise {kind.__name__: kind for kind in kinds}[name](where + message)
  return results[0]


def any_of_all(value: bool) -> bool:
  """Return whether the value is true on one of the processes."""
  return any(gather(b'1' if value else b''))


def of_first(action: Callable[[], Result], kind: Any) -> Result:
  """Return the result of process 0 on all processes."""
  results = on_all(lambda: {0: action()} if is_first() else {})
  return merged(results, kind)[0]


def first_then_others(action: Callable[[], Result]) -> Result:
  """Run an action on process 0 and then, if that succeeded, on the others."""
  if not is_first():
    on_all(lambda: None)
    return on_all(action)
  result = on_all(action)
  on_all(lambda: None)
  return result


def is_first() -> bool:
  """Return whether this process is the one that writes files and logs."""
  import jax

  return jax.process_index() == 0


def merged(results: dict[int, Result], kind: Any) -> dict[int, Result]:
  """Return the findings of all processes on each of them.

  They travel as JSON and are checked against their type on arrival: bytes of
  other processes are data, and are never executed.
  """
  import jax

  if jax.process_count() == 1:
    return results
  form = pydantic.TypeAdapter(
    dict[int, kind], config=pydantic.ConfigDict(ser_json_inf_nan='constants')
  )
  shares = gather(form.dump_json(results))
  return functools.reduce(operator.or_, map(form.validate_json, shares))
