"""How a program of the project starts: memory, compiled code, logs."""

import contextlib
import gc
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

_TUNABLE = 'glibc.malloc.hugetlb=1'


def use_huge_pages() -> None:
  """Starts this program again with huge pages for large allocations.

  XLA on a CPU allocates its temporary memory anew at each step; in pages of
  2 MiB instead of 4 KiB a training step is a tenth faster. glibc reads the
  setting only at the start of a process; other systems ignore it. Call it
  first, and only where the process is the program's own. GLIBC_TUNABLES, if
  set, is left as it is.
  """
  if sys.platform == 'linux' and 'GLIBC_TUNABLES' not in os.environ:
    environment = os.environ | {'GLIBC_TUNABLES': _TUNABLE}
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)


def keep_compiled() -> None:
  """Keeps what JAX compiles in the user's cache folder, for the next start.

  The folder is $XDG_CACHE_HOME/fusion_jax/xla, by default in ~/.cache. Call it
  before JAX is imported. JAX's own variables, where they are set, are left as
  they are: JAX_ENABLE_COMPILATION_CACHE=false keeps nothing. Where the folder
  cannot be made, nothing is kept.
  """
  base = os.environ.get('XDG_CACHE_HOME') or '~/.cache'
  folder = Path(base).expanduser() / 'fusion_jax' / 'xla'
  try:
    folder.mkdir(parents=True, exist_ok=True)
  except OSError:
    return
  os.environ.setdefault('JAX_COMPILATION_CACHE_DIR', str(folder))
  # Many small programs make a slow start too.
  os.environ.setdefault('JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS', '0')


@contextlib.contextmanager
def lasting_imports() -> Iterator[None]:
  """What is imported within the block is never looked at as garbage.

  JAX and its company are 300,000 objects that stay; to go through them again
  and again is a fifth of the time that it takes to trace a model.
  """
  gc.disable()
  try:
    yield
  finally:
    gc.freeze()
    gc.enable()


def start_logging() -> None:
  """Sends log lines to stderr; libraries are silent, their errors reach us."""
  logging.basicConfig(
    level=logging.INFO,
    format='%(asctime)s %(message)s',
    datefmt='%H:%M:%S',
    stream=sys.stderr,
  )
  for library in ('absl', 'asyncio', 'grain', 'jax', 'orbax'):
    logging.getLogger(library).setLevel(logging.CRITICAL)
