"""Start and end of a program: memory, compiled code, logs, exit codes.

And a log line every few seconds: how far, how fast, how long still.
"""

import contextlib
import functools
import gc
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from fusion_jax.errors import CheckFailed, InputError, first_line
from fusion_jax.files import remove_unfinished

logger = logging.getLogger(__name__)


def restart_tuned() -> None:
  """Restart this program with UTF-8, and huge pages for large allocations.

  Python takes the encoding of paths and streams from the locale otherwise. XLA
  on a CPU allocates its temporary memory anew at each step; with pages of 2 MiB
  instead of 4 KiB, a training step is a tenth faster. Both are read only at the
  start of a process. Call this function first, and only if the process belongs
  to the program alone. Ctrl-C waits until the new one can handle it; where the
  restart fails, the program goes on. If GLIBC_TUNABLES is already set, it is
  left unchanged.
  """
  _let_ctrl_c_in()
  variables = {}
  names = sys.getfilesystemencoding(), getattr(sys.stdout, 'encoding', 'utf-8')
  if not sys.flags.utf8_mode and {'utf-8'} != set(map(str.lower, names)):
    variables['PYTHONUTF8'] = '1'
  if sys.platform == 'linux' and 'GLIBC_TUNABLES' not in os.environ:
    variables['GLIBC_TUNABLES'] = 'glibc.malloc.hugetlb=1'
  if variables:
    arguments = [sys.executable, *sys.orig_argv[1:]]
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    with contextlib.suppress(OSError):
      os.execve(sys.executable, arguments, os.environ | variables)
    _let_ctrl_c_in()


def _let_ctrl_c_in() -> None:
  signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def keep_compiled() -> None:
  """Keep the programs that JAX compiles in the user's cache folder.

  The folder is $XDG_CACHE_HOME/fusion_jax/compiled, by default in ~/.cache.
  Call this function before JAX is imported. What was used longest ago makes
  room when there are 4 GiB. JAX's own variables are left unchanged if they are
  set: JAX_ENABLE_COMPILATION_CACHE=false turns the cache off. If the folder
  cannot be created, nothing is kept.
  """
  base = os.environ.get('XDG_CACHE_HOME') or '~/.cache'
  folder = Path(base).expanduser() / 'fusion_jax' / 'compiled'
  try:
    folder.mkdir(parents=True, exist_ok=True)
  except OSError:
    return
  # JAX cannot bound a folder that others fill without a bound.
  if 'JAX_COMPILATION_CACHE_DIR' not in os.environ:
    os.environ['JAX_COMPILATION_CACHE_DIR'] = str(folder)
    os.environ.setdefault('JAX_COMPILATION_CACHE_MAX_SIZE', str(4 * 2**30))
  # Many small programs also make a start slow.
  os.environ.setdefault('JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS', '0')


def run_program(main: Callable[[list[str]], int]) -> NoReturn:
  """Run the main function of a program on its command line, and exit."""
  restart_tuned()
  keep_compiled()
  sys.unraisablehook = _show_unraisable
  code = main(sys.argv[1:])
  if code:
    # Threads that compile or write would be waited for, and say how they fail
    # after the line that says why.
    for stream in filter(None, (sys.stdout, sys.stderr)):
      with contextlib.suppress(OSError, ValueError):
        stream.flush()
    os._exit(code)
  sys.exit(code)


def _show_unraisable(seen: 'sys.UnraisableHookArgs') -> None:
  """Show what a thread could not raise, but no write without a listener.

  Where one write of a checkpoint fails, TensorStore's threads say this of each
  of the others.
  """
  if str(seen.exc_value) != 'Event loop is closed':
    sys.__unraisablehook__(seen)


@contextlib.contextmanager
def lasting_imports() -> Iterator[None]:
  """Exclude what is imported inside the block from garbage collection.

  JAX and its dependencies are 300,000 objects that stay alive; visiting them
  again and again takes a fifth of the time needed to trace a model.
  """
  gc.disable()
  try:
    yield
  finally:
    gc.freeze()
    gc.enable()


def start_logging() -> None:
  """Send log lines to stderr, and silence the logs of libraries."""
  logging.basicConfig(
    level=logging.INFO,
    format='%(asctime)s %(message)s',
    datefmt='%H:%M:%S',
    stream=sys.stderr,
  )
  for library in ('absl', 'asyncio', 'grain', 'jax', 'orbax'):
    logging.getLogger(library).setLevel(logging.CRITICAL)


def one_line_errors(main: Callable[..., int | None]) -> Callable[..., int]:
  """Make `main` report errors that the user can fix as one line on stderr.

  Exit codes: 2 on `InputError` and on errors of the operating system (a full
  disk, a closed stdout, no permission), 1 on `CheckFailed` and where the memory
  is too small, 130 on Ctrl-C, 141 if the reader of stdout is gone. Every other
  exception is a bug in this package and keeps its traceback. SIGTERM removes
  unfinished files and then ends the process as usual.
  """

  @functools.wraps(main)
  def wrapped(*args, **kwargs) -> int:
    with _handling_signals() as interrupted:
      code, message = _outcome(lambda: main(*args, **kwargs))
    if interrupted and not code:
      code, message = _INTERRUPTED, 'error: interrupted'
    if code == _BROKEN_PIPE:
      sys.stderr.close()
    elif message:
      print(message, file=sys.stderr)
    return code

  return wrapped


_INTERRUPTED, _BROKEN_PIPE = 130, 141


def _outcome(action: Callable[[], int | None]) -> tuple[int, str]:
  """Return the exit code and the line for stderr."""
  try:
    code = action() or 0
    if sys.stdout:
      sys.stdout.flush()
  except InputError as error:
    return 2, f'error: {error}'
  except CheckFailed as error:
    return 1, f'failed: {error}'
  except MemoryError as error:
    return 1, f'failed: not enough memory: {first_line(error)}'
  except KeyboardInterrupt:
    return _INTERRUPTED, 'error: interrupted'
  except BrokenPipeError:
    return _BROKEN_PIPE, ''
  except OSError as error:
    _drop_what_stdout_does_not_take()
    where = error.filename or 'stdout or an open file'
    return 2, f'error: {where}: {error.strerror or first_line(error)}'
  return code, ''


def _drop_what_stdout_does_not_take() -> None:
  """Discard what stdout refuses, or the interpreter would fail at its end."""
  try:
    if sys.stdout:
      sys.stdout.flush()
  except OSError:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextlib.contextmanager
def _handling_signals() -> Iterator[list[int]]:
  """Note SIGINT, and let SIGTERM remove unfinished files before the end.

  Callbacks of JAX may swallow exceptions. Training, and JAX with several
  processes, install handlers of their own.
  """
  seen: list[int] = []

  def note(number: int, frame: Any) -> None:
    seen.append(number)
    signal.default_int_handler(number, frame)

  before: dict[signal.Signals, Any] = {}
  if threading.current_thread() is threading.main_thread():
    for number, handler, replaced in (
      (signal.SIGINT, note, (signal.default_int_handler, signal.SIG_DFL)),
      (signal.SIGTERM, _end, (signal.SIG_DFL,)),
    ):
      if signal.getsignal(number) in replaced:
        before[number] = signal.signal(number, handler)
  try:
    yield seen
  finally:
    for number, handler in before.items():
      signal.signal(number, handler)


def _end(number: int, _: Any) -> None:
  remove_unfinished()
  signal.signal(number, signal.SIG_DFL)
  os.kill(os.getpid(), number)


_SECONDS_BETWEEN_LINES = 4.0
_SECONDS_BETWEEN_BEATS = 10.0
# Asking for the time costs as much as reading a line.
_ITEMS_BETWEEN_LOOKS = 256
_ItemT = TypeVar('_ItemT')


class Progress:
  """Count work that is done; log the count, the rate and the time left."""

  def __init__(self, total: int | None, unit: str, what: str = ''):
    """Start the clock."""
    self._total, self._unit = total, unit
    self._name = f'{what}: ' if what else ''
    self._done = 0
    self._start = self._last = time.monotonic()

  def add(self, count: int) -> None:
    """Count, and log if the last line is some seconds old."""
    self._done += count
    now = time.monotonic()
    if now - self._last >= _SECONDS_BETWEEN_LINES:
      self._last = now
      logger.info('%s%s', self._name, self._state(now - self._start))

  def skip(self, count: int) -> None:
    """Leave out units that were done before."""
    self._total = self._total and self._total - count

  def finish(self) -> None:
    """Log the whole."""
    seconds = time.monotonic() - self._start
    self._total = None
    logger.info('%s%s, in %.1f s', self._name, self._state(seconds), seconds)

  def _state(self, seconds: float) -> str:
    """Return how many are done, how many a second, and how long it takes."""
    number, rate = self._total or self._done, self._done / max(seconds, 1e-9)
    unit = self._unit.removesuffix('s') if number == 1 else self._unit
    of = f'{self._done:,} of ' if self._total else ''
    state = f'{of}{number:,} {unit}, {rate:,.1f} per second'
    left = number - self._done
    return f'{state}, {left / rate:,.0f} s left' if left > 0 < rate else state


@contextlib.contextmanager
def tell_how_long(
  what: str, every: float = _SECONDS_BETWEEN_BEATS
) -> Iterator[None]:
  """Log how long the block works, which cannot say how far it is."""
  ended, start = threading.Event(), time.monotonic()

  def beat() -> None:
    while not ended.wait(every):
      logger.info('%s: since %.0f s', what, time.monotonic() - start)

  thread = threading.Thread(target=beat, daemon=True)
  thread.start()
  try:
    yield
  finally:
    ended.set()
    thread.join()


def with_progress(
  items: Iterable[_ItemT], what: str, total: int, unit: str = 'pairs'
) -> Iterator[_ItemT]:
  """Pass items on and log how far they are."""
  progress, unseen = Progress(total, unit, what), 0
  for item in items:
    yield item
    unseen += 1
    if unseen == _ITEMS_BETWEEN_LOOKS:
      progress.add(unseen)
      unseen = 0
  progress.add(unseen)
  progress.finish()


def log_table(rows: Iterable[Sequence[Any]]) -> str:
  """Align rows of texts, whole numbers, and shares as percentages."""

  def text(cell: Any) -> str:
    if isinstance(cell, str):
      return cell
    return f'{cell:.1%}' if isinstance(cell, float) else f'{cell:,}'

  return '\n'.join(
    ' '.join(f'{text(cell):>12}' for cell in row) for row in rows
  )
