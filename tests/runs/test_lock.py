"""One training at a time in a run directory."""

import contextlib
import errno
import fcntl
import os
import re
import signal
import subprocess
import sys

import pytest

from fusion_jax.config import ExperimentConfig
from fusion_jax.errors import InputError
from fusion_jax.runs import run_directory
from fusion_jax.runs.lock import held

_HOLDER = (
  'import pathlib, sys, time\n'
  'from fusion_jax.runs.lock import held\n'
  'with held(pathlib.Path(sys.argv[1])):\n'
  "  print('held', flush=True)\n"
  '  time.sleep(120)\n'
)


@contextlib.contextmanager
def _another_holder(workdir):
  with subprocess.Popen(
    [sys.executable, '-c', _HOLDER, workdir], stdout=subprocess.PIPE
  ) as process:
    assert process.stdout.readline() == b'held\n'
    yield process
    process.kill()


def _refused(workdir):
  with pytest.raises(InputError) as error, held(workdir):
    pass
  return str(error.value)


def test_the_second_is_told_who_is_there(tmp_path):
  with _another_holder(tmp_path) as other:
    message = _refused(tmp_path)
    assert re.fullmatch(
      rf'{tmp_path}: process {other.pid} of {os.uname().nodename}, since '
      r'\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC, trains in it; wait until it ends, '
      'stop it, or give another --workdir',
      message,
    )


@pytest.mark.parametrize('number', [signal.SIGKILL, signal.SIGTERM])
def test_it_is_gone_with_its_holder(tmp_path, number):
  with _another_holder(tmp_path) as other:
    other.send_signal(number)
    other.wait(timeout=30)
    with held(tmp_path):
      assert str(os.getpid()) in _refused(tmp_path)
  with held(tmp_path):
    pass


def test_a_holder_that_has_not_written_yet(tmp_path):
  with (tmp_path / 'lock').open('w') as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    for content in (
      '',
      'no JSON',
      '[]',
      '[' * 100_000,
      '{"process": "x", "host": 1}',
    ):
      (tmp_path / 'lock').write_text(content)
      assert f'{tmp_path}: another process trains in it' in _refused(tmp_path)


def test_file_systems_without_locks(tmp_path, monkeypatch, caplog):
  def no_locks(*_):
    raise OSError(errno.ENOLCK, 'No locks available')

  monkeypatch.setattr(fcntl, 'flock', no_locks)
  with held(tmp_path):
    (record,) = caplog.records
  assert 'its file system has no locks (No locks' in record.getMessage()


def test_a_directory_with_nothing_but_a_lock_is_new(tmp_path):
  with held(tmp_path / 'run'):
    run_directory.check(tmp_path / 'run', ExperimentConfig())
  # Left by a start that a full disk ended.
  (tmp_path / 'run' / 'source.model').touch()
  run_directory.check(tmp_path / 'run', ExperimentConfig())
  (tmp_path / 'run' / 'thesis').touch()
  with pytest.raises(InputError, match='not empty and not a run directory'):
    run_directory.check(tmp_path / 'run', ExperimentConfig())


def test_a_directory_that_cannot_be_made(tmp_path):
  (tmp_path / 'file').touch()
  assert 'cannot be written' in _refused(tmp_path / 'file' / 'run')
