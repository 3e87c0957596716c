"""What a program does before JAX starts, and how it ends."""

import contextlib
import gc
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fusion_jax import startup
from fusion_jax.__main__ import command
from fusion_jax.errors import CheckFailed, InputError
from fusion_jax.startup import (
  keep_compiled,
  lasting_imports,
  one_line_errors,
  restart_tuned,
)

_ROOT = Path(__file__).parents[1]


@pytest.fixture
def environment(monkeypatch, tmp_path):
  mine = {'XDG_CACHE_HOME': str(tmp_path)}
  monkeypatch.setattr(os, 'environ', mine)
  return mine


def test_compiled_programs_are_kept_in_the_cache_folder(environment, tmp_path):
  keep_compiled()
  assert environment['JAX_COMPILATION_CACHE_DIR'] == str(
    tmp_path / 'fusion_jax' / 'compiled'
  )
  assert (tmp_path / 'fusion_jax' / 'compiled').is_dir()
  # The guide says 4 GiB.
  assert environment['JAX_COMPILATION_CACHE_MAX_SIZE'] == '4294967296'


def test_what_is_imported_is_left_out_of_collections():
  before = gc.get_freeze_count()
  with lasting_imports():
    assert not gc.isenabled()
    kept = [[] for _ in range(100)]
  assert gc.isenabled()
  assert gc.get_freeze_count() >= before + len(kept)


def test_writes_that_nobody_waits_for_are_not_shown():
  """TensorStore calls a loop that has ended since; other faults are shown."""
  code = """
import asyncio, sys, tensorstore
from fusion_jax.startup import run_program

async def wait_for(future):
  await asyncio.wait([asyncio.ensure_future(future)], timeout=0.1)

class Broken:
  def __del__(self):
    raise RuntimeError('another')

def main(argv):
  promise, future = tensorstore.Promise.new()
  loop = asyncio.new_event_loop()
  loop.run_until_complete(wait_for(future))
  loop.close()
  promise.set_result(3)
  future.result()
  Broken()

run_program(main)
"""
  done = subprocess.run(
    [sys.executable, '-c', code], capture_output=True, text=True, check=True
  )
  assert 'RuntimeError: another' in done.stderr
  assert 'loop is closed' not in done.stderr


# How a program ends: `main` is what differs.
_PROGRAM = """
import os
import signal
import threading
import time

from fusion_jax import startup

# A script may have started the tests where Ctrl-C is ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)

@startup.one_line_errors
def main(argv):
  {}

startup.restart_tuned = lambda: None
startup.run_program(main)
"""


def run(main, stdout=subprocess.PIPE, **variables):
  return subprocess.run(
    [sys.executable, '-c', _PROGRAM.format(main), 'läufe'],
    env=os.environ | {'PYTHONPATH': str(_ROOT)} | variables,
    stdout=stdout,
    stderr=subprocess.PIPE,
    timeout=60,
  )


@pytest.mark.parametrize(
  ('main', 'code', 'error'),
  [
    # A thread that nobody can stop, as one in the compiler.
    (
      'threading.Thread(target=time.sleep, args=(100,)).start(); '
      'raise KeyboardInterrupt',
      130,
      'error: interrupted\n',
    ),
    # A callback of JAX that swallows the exception.
    (
      'try: os.kill(os.getpid(), signal.SIGINT)\n'
      '  except KeyboardInterrupt: pass',
      130,
      'error: interrupted\n',
    ),
    # A thread of Orbax that fails after the error that ends the program.
    (
      'threading.Timer(0.5, lambda: 1 / 0).start(); raise OSError(28, "Full")',
      2,
      'error: stdout or an open file: Full\n',
    ),
  ],
)
def test_the_last_line_says_how_a_program_ended(main, code, error):
  ended = run(main)
  assert (ended.returncode, ended.stderr.decode()) == (code, error)


@pytest.mark.parametrize(
  ('error', 'code', 'line'),
  [
    (InputError('a flag'), 2, 'error: a flag'),
    (CheckFailed('a check'), 1, 'failed: a check'),
    (KeyboardInterrupt(), 130, 'error: interrupted'),
    (FileNotFoundError(2, 'No such file', '/none'), 2, 'error: /none: No such'),
    (MemoryError('no 3 TiB'), 1, 'failed: not enough memory: no 3 TiB'),
  ],
)
def test_a_line_and_an_exit_code(error, code, line, capsys):
  @one_line_errors
  def main():
    raise error

  assert main() == code
  (printed,) = capsys.readouterr().err.splitlines()
  assert printed.startswith(line)


def test_our_bugs_keep_their_traceback():
  with pytest.raises(ZeroDivisionError):
    one_line_errors(lambda: 1 / 0)()


@pytest.mark.parametrize(
  ('unbuffered', 'text'), [('', "'x'"), ('1', "'x'"), ('', "'x' * 99_999")]
)
def test_a_full_stdout(unbuffered, text):
  with open('/dev/full', 'wb') as full:
    ended = run(f'print({text})', stdout=full, PYTHONUNBUFFERED=unbuffered)
  assert ended.returncode == 2
  assert ended.stderr == (
    b'error: stdout or an open file: No space left on device\n'
  )


def test_a_reader_that_is_gone():
  reader, writer = os.pipe()
  os.close(reader)
  with contextlib.closing(os.fdopen(writer, 'wb', 0)) as gone:
    ended = run("print('x' * 9_999_999)", stdout=gone)
  assert (ended.returncode, ended.stderr) == (141, b'')


def test_a_closed_stdout():
  program = [sys.executable, '-c', _PROGRAM.format("print('x')")]
  ended = subprocess.run(
    ['sh', '-c', 'exec "$@" >&-', 'sh', *program], stderr=subprocess.PIPE
  )
  assert (ended.returncode, ended.stderr) == (0, b'')


def test_paths_and_streams_are_utf8_in_any_locale():
  own = r'print(argv[0], os.fsencode(argv[0]) == "l\xe4ufe".encode())'
  ended = run(own, PYTHONUTF8='0', PYTHONCOERCECLOCALE='0', LC_ALL='C')
  assert (ended.returncode, ended.stderr) == (0, b'')
  assert ended.stdout.decode() == 'läufe True\n'


def test_a_program_that_may_not_be_restarted_goes_on(monkeypatch):
  masks = []

  def refuse(*_):
    masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, []))
    raise PermissionError

  monkeypatch.setattr(os, 'execve', refuse)
  monkeypatch.delenv('GLIBC_TUNABLES', raising=False)
  restart_tuned()
  # Ctrl-C would have waited for the new program, and reaches the old one.
  assert masks == [{signal.SIGINT}]
  assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()


def test_the_command_imports_nothing_before_it_handles_ctrl_c():
  code = """
import sys, fusion_jax.__main__
print([name for name in sys.modules if name.startswith('fusion_jax')])
"""
  names = subprocess.check_output([sys.executable, '-c', code], text=True)
  assert names == "['fusion_jax', 'fusion_jax.__main__']\n"


@pytest.mark.parametrize(
  ('before', 'meanwhile'),
  [
    (signal.default_int_handler, signal.SIG_DFL),
    (signal.SIG_IGN, signal.SIG_IGN),
  ],
)
def test_ctrl_c_that_is_ignored_stays_so(monkeypatch, before, meanwhile):
  seen = []
  monkeypatch.setattr(
    'fusion_jax.startup.run_program',
    lambda _: seen.append(signal.getsignal(signal.SIGINT)),
  )
  outside = signal.signal(signal.SIGINT, before)
  try:
    command()
  finally:
    signal.signal(signal.SIGINT, outside)
  assert seen == [meanwhile]


@pytest.mark.parametrize(
  ('total', 'done', 'line', 'last'),
  [
    (None, 1, '1 line, ', '1 line, '),
    (None, 2, '2 lines, ', '2 lines, '),
    (1, 1, '1 of 1 line, ', '1 line, '),
    (1_200, 1, '1 of 1,200 lines, ', '1 line, '),
  ],
)
def test_one_is_singular(caplog, monkeypatch, total, done, line, last):
  caplog.set_level(logging.INFO)
  monkeypatch.setattr(startup, '_SECONDS_BETWEEN_LINES', 0)
  progress = startup.Progress(total, 'lines')
  progress.add(done)
  progress.finish()
  for message, start in zip(caplog.messages, (line, last), strict=True):
    assert message.startswith(start)


def test_the_cache_makes_room(tmp_path):
  """Of two programs that do not fit together the later one stays."""
  code = 'import jax; [jax.jit(lambda x: x + n)(1.0) for n in range(8)]'
  bound = {
    'JAX_COMPILATION_CACHE_DIR': str(tmp_path),
    'JAX_COMPILATION_CACHE_MAX_SIZE': '20000',
    'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
  }
  subprocess.run(
    [sys.executable, '-c', code], env=os.environ | bound, check=True
  )
  kept = [path.stat().st_size for path in tmp_path.glob('*-cache')]
  assert 0 < sum(kept) <= 20_000
