"""What a program does before JAX starts."""

import gc
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fusion_jax.command import command
from fusion_jax.startup import keep_compiled, lasting_imports, use_huge_pages

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


def test_a_folder_of_the_users_own_is_left(environment):
  environment['JAX_COMPILATION_CACHE_DIR'] = 'mine'
  keep_compiled()
  assert environment['JAX_COMPILATION_CACHE_DIR'] == 'mine'
  assert 'JAX_COMPILATION_CACHE_MAX_SIZE' not in environment


def test_without_a_folder_nothing_is_kept(environment, tmp_path):
  Path(tmp_path / 'file').write_text('')
  environment['XDG_CACHE_HOME'] = str(tmp_path / 'file')
  keep_compiled()
  assert 'JAX_COMPILATION_CACHE_DIR' not in environment


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


def test_an_import_that_fails_leaves_the_collector_running():
  with pytest.raises(ImportError), lasting_imports():
    raise ImportError
  assert gc.isenabled()


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

startup.use_huge_pages = lambda: None
startup.run_program(main)
"""


def run(main, python=sys.executable, **variables):
  return subprocess.run(
    [python, '-c', _PROGRAM.format(main), 'läufe'],
    env=os.environ | {'PYTHONPATH': str(_ROOT)} | variables,
    capture_output=True,
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
    (
      'raise MemoryError("Unable to allocate 3 TiB")',
      1,
      'failed: not enough memory: Unable to allocate 3 TiB\n',
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
  use_huge_pages()
  # Ctrl-C would have waited for the new program, and reaches the old one.
  assert masks == [{signal.SIGINT}]
  assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()


def test_the_command_imports_nothing_before_it_handles_ctrl_c():
  code = """
import sys, fusion_jax.command
print([name for name in sys.modules if name.startswith('fusion_jax')])
"""
  names = subprocess.check_output([sys.executable, '-c', code], text=True)
  assert names == "['fusion_jax', 'fusion_jax.command']\n"


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
