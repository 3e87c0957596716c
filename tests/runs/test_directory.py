"""Run directories: what they keep, who trains in them, what may be written."""

import builtins
import contextlib
import dataclasses
import fcntl
import json
import os
import re
import signal
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from saved_runs import SavedRun

from fusion_jax import __version__
from fusion_jax.analysis import TextChoice
from fusion_jax.analysis.run_with_text import RunWithText
from fusion_jax.config import DataConfig, ExperimentConfig
from fusion_jax.config.flags import load_config
from fusion_jax.config.presets import changed
from fusion_jax.data.prepare import prepare
from fusion_jax.errors import InputError
from fusion_jax.runs import directory
from fusion_jax.runs.directory import (
  check_output,
  check_workdir,
  copy_corpus,
  locked,
  read_metrics,
  read_validation,
  read_version,
  write_corpus,
  write_version,
)
from fusion_jax.runs.loading import load_run
from fusion_jax.training.logs import MetricsLog


@pytest.mark.parametrize(
  'name',
  [
    'config.json',
    'target.model',
    'checkpoints/10/x',
    'corpus',
    'lock',
    'version',
  ],
)
def test_no_output_replaces_what_is_of_a_run(tmp_path, name):
  workdir = tmp_path / 'run'
  SavedRun(workdir)
  (workdir / 'link').symlink_to(workdir / name)
  for path in (workdir / name, workdir / 'link'):
    with pytest.raises(InputError, match=f'=.*belongs to the run {workdir}'):
      check_output(path)
  for path in (
    workdir / 'report.html',
    workdir / 'analysis',
    workdir / 'x.txt',
  ):
    check_output(path)
  check_output(workdir.parent / name)


def test_what_is_written_is_read(tmp_path):
  config = changed(
    load_config('configs/quickstart.py'),
    {
      'data.embedded_pairs': 300,
      'data.tokenizer.vocabulary_size': 250,
      'data.prepared': str(tmp_path / 'prepared'),
    },
  )
  corpus = prepare(config.data)
  (direction,) = config.data.all_directions
  (tmp_path / 'run').mkdir()
  (tmp_path / 'mean').mkdir()
  texts = corpus.split('valid', direction.name).texts()
  write_corpus(tmp_path / 'run', corpus.report, {direction.name: texts})
  copy_corpus(tmp_path / 'run', tmp_path / 'mean')
  for name in ('run', 'mean'):
    found = list(read_validation(tmp_path / name, direction.name))
    assert found == list(zip(*texts, strict=True))
  assert len(found) > 5


def test_a_run_from_elsewhere_has_no_file_read(tmp_path, monkeypatch):
  (tmp_path / 'secret.en').write_text('password')
  (tmp_path / 'secret.de').write_text('Kennwort')
  own = SavedRun(tmp_path / 'run')
  own.save({30: None})
  run = load_run(own.workdir)
  data = DataConfig(valid=(str(tmp_path / 'secret.{lang}'),))
  config = dataclasses.replace(run.config, data=data)
  run = dataclasses.replace(run, config=config)
  analysed = RunWithText(own.workdir, run, TextChoice())
  monkeypatch.setattr(builtins, 'open', lambda *_: 1 / 0)
  with pytest.raises(InputError, match='holds no validation text of en-de'):
    _ = analysed.lines


def _written(workdir):
  write_version(workdir)
  return read_version(workdir)


def test_the_commit_of_a_checkout_is_recorded(tmp_path, monkeypatch):
  place = tmp_path / 'fusion_jax' / 'runs' / 'directory.py'
  place.parent.mkdir(parents=True)
  place.write_text('old')
  monkeypatch.setattr(directory, '__file__', str(place))
  run = tmp_path.with_name('run')
  run.mkdir()
  assert read_version(run) == ''
  assert _written(run) == __version__
  git = ['git', '-C', str(tmp_path), '-c', 'user.name=a', '-c', 'user.email=b']
  for command in (['init'], ['add', '.'], ['commit', '--message=one']):
    subprocess.run([*git, *command], check=True, capture_output=True)
  found = re.escape(__version__) + ', commit [0-9a-f]{7,}'
  assert re.fullmatch(found, clean := _written(run))
  place.write_text('new')
  assert _written(run) == f'{clean}-dirty'
  # A machine without git.
  monkeypatch.setenv('PATH', str(tmp_path))
  assert _written(run) == __version__


def test_a_direction_is_no_path(tmp_path):
  (tmp_path / 'run').mkdir()
  (tmp_path / 'x-y.source').write_text('secret')
  (tmp_path / 'x-y.target').write_text('secret')
  with pytest.raises(InputError, match='is no name of a direction'):
    list(read_validation(tmp_path / 'run', '../../x-y'))


def test_what_cannot_be_copied_is_one_line(tmp_path):
  folder = tmp_path / 'run' / 'corpus'
  folder.mkdir(parents=True)
  (folder / 'en-de.source').symlink_to('nowhere')
  (tmp_path / 'mean').mkdir()
  with pytest.raises(InputError, match=f'^{folder}: cannot be read: '):
    copy_corpus(tmp_path / 'run', tmp_path / 'mean')


_HOLDER = (
  'import pathlib, sys, time\n'
  'from fusion_jax.runs.directory import locked\n'
  'with locked(pathlib.Path(sys.argv[1])):\n'
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
  with pytest.raises(InputError) as error, locked(workdir):
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
    with locked(tmp_path):
      assert str(os.getpid()) in _refused(tmp_path)
  with locked(tmp_path):
    pass


def test_a_holder_that_has_not_written_yet(tmp_path):
  with (tmp_path / 'lock').open('w') as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    assert f'{tmp_path}: another process trains in it' in _refused(tmp_path)


def test_a_directory_with_nothing_but_a_lock_is_new(tmp_path):
  with locked(tmp_path / 'run'):
    check_workdir(tmp_path / 'run', ExperimentConfig())
  # Left by a start that a full disk ended.
  (tmp_path / 'run' / 'source.model').touch()
  check_workdir(tmp_path / 'run', ExperimentConfig())
  (tmp_path / 'run' / 'thesis').touch()
  with pytest.raises(InputError, match='not empty and not a run directory'):
    check_workdir(tmp_path / 'run', ExperimentConfig())


_GOOD = {'step': 5, 'kind': 'train', 'loss': 1.5, 'skipped': 0, 'bleu': None}
_DAMAGED = [
  b'',
  b'{"step": 5, "kind": "tra',
  b'[1, 2]',
  b'null',
  b'{"kind": "train"}',
  b'{"step": 5}',
  b'{"step": "5", "kind": "train"}',
  b'{"step": true, "kind": "train"}',
  b'{"step": 5, "kind": 7}',
  b'{"step": 5, "kind": "train", "loss": "low"}',
  b'{"step": 5, "kind": "train", "loss": NaN}',
  b'{"step": 5, "kind": "train", "loss": [1]}',
  b'\xff\xfe\x00',
  b'[' * 100_000,
]


def _write_lines(path, *lines):
  path.write_bytes(b''.join(line + b'\n' for line in lines))


def test_damaged_lines_are_left_out_and_counted(tmp_path, caplog):
  path = tmp_path / 'metrics.jsonl'
  good = json.dumps(_GOOD).encode()
  _write_lines(path, good, *_DAMAGED, good)
  assert read_metrics(path) == [_GOOD, _GOOD]
  (record,) = caplog.records
  total = len(_DAMAGED) + 2
  assert record.getMessage() == (
    f'{path}: {len(_DAMAGED)} damaged of {total} lines are left out, the first '
    'is line 2'
  )


def test_a_line_that_is_being_written_is_no_damage(tmp_path, caplog):
  path = tmp_path / 'metrics.jsonl'
  path.write_bytes(json.dumps(_GOOD).encode() + b'\n{"step": 6, "ki')
  assert read_metrics(path) == [_GOOD]
  assert not caplog.records


def test_a_resumed_run_drops_what_is_damaged_or_later(tmp_path):
  path = tmp_path / 'metrics.jsonl'
  later = json.dumps(_GOOD | {'step': 6}).encode()
  _write_lines(path, *_DAMAGED, json.dumps(_GOOD).encode(), later)
  log = MetricsLog(ExperimentConfig(), tmp_path, 5)
  log.write(7, 'valid', {'loss': 2.5})
  log.close()
  assert [json.loads(line) for line in path.read_text().splitlines()] == [
    _GOOD,
    {'step': 7, 'kind': 'valid', 'loss': 2.5},
  ]


@given(st.binary())
def test_any_bytes_can_be_read(tmp_path_factory, content):
  path = tmp_path_factory.mktemp('any') / 'metrics.jsonl'
  path.write_bytes(content)
  for row in read_metrics(path):
    assert isinstance(row['step'], int)
