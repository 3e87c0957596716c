"""What a program does before JAX starts."""

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fusion_jax.startup import keep_compiled, lasting_imports


@pytest.fixture
def environment(monkeypatch, tmp_path):
  mine = {'XDG_CACHE_HOME': str(tmp_path)}
  monkeypatch.setattr(os, 'environ', mine)
  return mine


def test_compiled_programs_are_kept_in_the_cache_folder(environment, tmp_path):
  keep_compiled()
  assert environment['JAX_COMPILATION_CACHE_DIR'] == str(
    tmp_path / 'fusion_jax' / 'xla'
  )
  assert (tmp_path / 'fusion_jax' / 'xla').is_dir()


def test_a_folder_of_the_users_own_is_left(environment):
  environment['JAX_COMPILATION_CACHE_DIR'] = 'mine'
  keep_compiled()
  assert environment['JAX_COMPILATION_CACHE_DIR'] == 'mine'


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


def test_an_import_that_fails_leaves_the_collector_running():
  with pytest.raises(ImportError), lasting_imports():
    raise ImportError
  assert gc.isenabled()


# A thread that nobody can stop, as one in the compiler.
_INTERRUPTED = """
import threading
import time

from fusion_jax import startup

@startup.one_line_errors
def main(_):
  threading.Thread(target=time.sleep, args=(100,)).start()
  raise KeyboardInterrupt

startup.use_huge_pages = lambda: None
startup.run_program(main)
"""


def test_ctrl_c_does_not_wait_for_threads():
  ended = subprocess.run(
    [sys.executable, '-c', _INTERRUPTED],
    env=os.environ | {'PYTHONPATH': str(Path(__file__).parents[1])},
    capture_output=True,
    text=True,
    timeout=60,
    check=False,
  )
  assert ended.returncode == 130
  assert ended.stderr == 'error: interrupted\n'
