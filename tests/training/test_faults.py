"""Faults that a run survives, or that end it with one line: done to it.

A disk that is full, damaged or hangs, and kills at bad moments. Runs of one
and of two processes; they share a prepared corpus and a compilation cache.
"""

import shutil
import signal
import subprocess
import sys
import time

import pytest
from programs import ROOT, logged, one_line, saved_steps, wait_for_step

# Two processes, and the waits of the programs.
pytestmark = pytest.mark.slow

_RUN = {
  'training__steps': 60,
  'training__save_every': 20,
  'training__validate_every': 9_999,
  'parallel__lost_after': 9,
}


@pytest.fixture(scope='module')
def first(program, tmp_path_factory):
  """A whole run; it has made the corpus that all of them share."""
  workdir = tmp_path_factory.mktemp('first') / 'run'
  code, err = program.run(workdir, **_RUN)
  assert code == 0, err
  return workdir


def _last_line(err: str) -> str:
  """The line of the error; C++ threads may write before it."""
  assert 'Traceback' not in err, err
  last = err.splitlines()[-1]
  assert last.startswith('error: '), err
  return last


def test_killed_runs_end_in_the_same_parameters(tmp_path):
  done = subprocess.run(
    [
      sys.executable,
      '-m',
      'benchmarks.killed_runs',
      '--kills=1',
      f'--workdir={tmp_path}/runs',
    ],
    cwd=ROOT,
    capture_output=True,
    text=True,
    timeout=600,
    check=False,
  )
  assert done.returncode == 0, done.stderr
  assert '1 kills; parameters and logged losses are the same' in done.stdout
  # The seed is fixed; more kills have other ways.
  assert 'in a save' in done.stdout


@pytest.mark.usefixtures('first')
def test_a_damaged_record_ends_both_processes(program, shared, tmp_path):
  (corpus,) = (shared / 'prepared').iterdir()
  folder = shutil.copytree(corpus, tmp_path / 'prepared' / corpus.name)
  shard = folder / 'parallel_text-train.array_record-00000'
  content = bytearray(shard.read_bytes())
  # The shard has 256 KiB; the records take these, one after the other.
  content[20_000:100_000:500] = bytes(160)
  shard.write_bytes(content)
  both = program.start_together(
    tmp_path / 'run', **_RUN, data__prepared=tmp_path / 'prepared'
  )
  for process in both:
    _, err, code = program.finish(process)
    assert code == 2, err
    message = _last_line(err)
    assert f'{shard}, record ' in message
    assert f'delete the folder {folder} and prepare it again' in message


def test_a_disk_that_fills_up_with_logs_is_one_line(program, first, tmp_path):
  workdir = shutil.copytree(first, tmp_path / 'run')
  # Nothing but the log is so large.
  with (workdir / 'metrics.jsonl').open('a') as file:
    file.write('{"step": 1, "kind": "note"}\n' * 10_000)
  longer = _RUN | {'training__steps': 100}
  process = program.start(workdir, limit=300, **longer)
  _, err, code = program.finish(process)
  assert code == 2, err
  assert 'metrics.jsonl: cannot be written' in _last_line(err)


@pytest.mark.usefixtures('first')
def test_both_killed_in_a_save_and_one_resumes(program, tmp_path):
  workdir = tmp_path / 'run'
  both = program.start_together(workdir, **(_RUN | {'training__steps': 9_999}))
  wait_for_step(workdir, 25, *both)
  deadline = time.monotonic() + 120
  unfinished = 'checkpoints/*.orbax-checkpoint-tmp*'
  while not (saved_steps(workdir) and any(workdir.glob(unfinished))):
    assert time.monotonic() < deadline
    time.sleep(0.001)
  for process in both:
    process.send_signal(signal.SIGKILL)
  for process in both:
    assert program.finish(process)[2] == -signal.SIGKILL
  (*_, last) = saved_steps(workdir)
  again = _RUN | {'training__steps': last + 20}
  code, err = program.run(workdir, **again)
  assert code == 0, err


@pytest.mark.usefixtures('first')
def test_one_killed_where_it_restores_ends_the_other(
  program, tmp_path, monkeypatch
):
  monkeypatch.setenv('PYTHONPATH', str(ROOT))
  killed = ROOT / 'tests' / 'training' / 'killed_in_restore.py'
  both = program.start_together(
    tmp_path / 'run', [{}, {'program': killed}], **_RUN
  )
  assert program.finish(both[1])[2] == -signal.SIGKILL
  _, err, code = program.finish(both[0])
  assert code == 75, err
  assert 'no heartbeat for 9 s from process 1' in _last_line(err)


@pytest.mark.usefixtures('first')
def test_an_input_that_hangs_on_one_process_ends_both(
  program, tmp_path, monkeypatch
):
  monkeypatch.setenv('PYTHONPATH', str(ROOT))
  workdir = tmp_path / 'run'
  both = program.start_together(
    workdir,
    [{}, {'program': ROOT / 'tests' / 'training' / 'hanging_input.py'}],
    **_RUN,
    parallel__stalled_after=30,
  )
  for process in both:
    _, err, code = program.finish(process)
    assert code == 75, err
    message = one_line(err.replace(err.partition('error:')[0], ''))
    assert 'no process has begun a step for 30 s' in message
    assert '30 on process 1, which still waits for its input' in message
  assert saved_steps(workdir) == [20]
  assert len(logged(workdir, 'train')) < 60
