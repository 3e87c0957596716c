"""The lock of a run directory, which belongs to one training at a time.

The lock is on the open file DIR/lock, so that it is gone with the process that
holds it, however that process ends. Hosts that share a file system with locks
(NFS, Lustre, GPFS) see the locks of each other. The file names the holder.
"""

import contextlib
import datetime
import errno
import fcntl
import json
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from fusion_jax.errors import InputError
from fusion_jax.files import write_errors

logger = logging.getLogger(__name__)

NAME = 'lock'
# Errors from file systems that have no locks.
_NO_LOCKS = errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL


@contextlib.contextmanager
def held(workdir: Path) -> Iterator[None]:
  """Hold the lock of a run directory within the block."""
  path = workdir / NAME
  with write_errors(path):
    workdir.mkdir(parents=True, exist_ok=True)
    # Not truncated, so that the text of the current holder stays.
    file = path.open('a+', encoding='utf-8')
  with file:
    _take(file, path)
    yield


def _take(file: IO[str], path: Path) -> None:
  try:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    raise InputError(
      f'{path.parent}: {_holder(file)} trains in it; wait until it ends, stop '
      'it, or give another --workdir'
    ) from None
  except OSError as error:
    if error.errno not in _NO_LOCKS:
      raise InputError(f'{path}: cannot be locked: {error.strerror}') from error
    logger.warning(
      '%s: its file system has no locks (%s): see to it that no other training '
      'runs in this directory',
      path.parent,
      error.strerror,
    )
    return
  now = datetime.datetime.now(datetime.UTC).strftime('%Y-%m-%d %H:%M:%S UTC')
  about = {'host': socket.gethostname(), 'process': os.getpid(), 'since': now}
  with write_errors(path):
    file.truncate(0)
    file.write(json.dumps(about) + '\n')
    file.flush()


def _holder(file: IO[str]) -> str:
  """Return a description of the process that wrote the file."""
  file.seek(0)
  try:
    about = json.loads(file.read())
    return (
      f'process {about["process"]:d} of {about["host"]}, since '
      f'{about["since"]},'
    )
  except (ValueError, KeyError, TypeError, RecursionError):
    return 'another process'
