"""What the user did wrong, told in one line."""

import contextlib
import functools
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any


class InputError(Exception):
  """A mistake in what the user gave: a file, a flag, a config, a checkpoint.

  The message is one line: what is wrong, where, and what would be right.
  """

  def __str__(self) -> str:
    """The message; what is no printable character of it is written out."""
    return ''.join(
      each if each.isprintable() else repr(each)[1:-1]
      for each in super().__str__()
    )


class CheckFailed(Exception):
  """What the user asked to have checked does not hold.

  The message is one line: what does not hold, and where it is seen.
  """


def first_line(error: BaseException) -> str:
  """What an exception says, cut to one line."""
  return (str(error).strip() or type(error).__name__).splitlines()[0]


def require(condition: bool, field: str, message: str) -> None:
  """Refuses a value of a config.

  Args:
    condition: what must hold.
    field: the value's dotted name.
    message: what is wrong and what would be right.

  Raises:
    InputError: it does not hold.
  """
  if not condition:
    raise InputError(f'config.{field}: {message}')


def one_line_errors(main: Callable[..., None]) -> Callable[..., int]:
  """Make `main` end in one line on stderr where the user can do something.

  Exit codes: 2 on `InputError` and on errors of the operating system (a full
  disk, a closed stdout, no permission), 1 on `CheckFailed`, 130 on Ctrl-C, 141
  where the reader of stdout is gone. Every other exception is a bug of ours and
  keeps its traceback. SIGTERM removes files that are not whole, and ends the
  process as ever.

  Args:
    main: Entry point of a program.

  Returns:
    The wrapped entry point; it returns the exit code for `sys.exit`.
  """

  @functools.wraps(main)
  def wrapped(*args, **kwargs) -> int:
    with _nothing_left_by_sigterm():
      code, message = _outcome(lambda: main(*args, **kwargs))
    if code == _BROKEN_PIPE:
      sys.stderr.close()
    elif message:
      print(message, file=sys.stderr)
    return code

  return wrapped


_INTERRUPTED, _BROKEN_PIPE = 130, 141


def _outcome(action: Callable[[], None]) -> tuple[int, str]:
  """The exit code and the line for stderr."""
  try:
    action()
    if sys.stdout:
      sys.stdout.flush()
  except InputError as error:
    return 2, f'error: {error}'
  except CheckFailed as error:
    return 1, f'failed: {error}'
  except KeyboardInterrupt:
    return _INTERRUPTED, 'error: interrupted'
  except BrokenPipeError:
    return _BROKEN_PIPE, ''
  except OSError as error:
    _drop_what_stdout_does_not_take()
    where = error.filename or 'stdout or an open file'
    return 2, f'error: {where}: {error.strerror or first_line(error)}'
  return 0, ''


def _drop_what_stdout_does_not_take() -> None:
  """Else the interpreter tries again, and complains, when it ends."""
  try:
    if sys.stdout:
      sys.stdout.flush()
  except OSError:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextlib.contextmanager
def _nothing_left_by_sigterm() -> Iterator[None]:
  """Within the block, SIGTERM removes unfinished files before it ends all.

  An exception would not do: callbacks of JAX may swallow it. Training, and JAX
  where there are several processes, put handlers of their own in its place.
  """
  in_main = threading.current_thread() is threading.main_thread()
  if not in_main or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
    yield
    return
  signal.signal(signal.SIGTERM, _end)
  try:
    yield
  finally:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _end(number: int, _: Any) -> None:
  from fusion_jax.files import remove_unfinished  # It needs this module.

  remove_unfinished()
  signal.signal(number, signal.SIG_DFL)
  os.kill(os.getpid(), number)
