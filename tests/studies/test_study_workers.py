"""Runs of a study in processes: order, failures, parts and locks."""

import subprocess
import sys
import threading
import time

import pytest

from fusion_jax.studies import plan, workers
from fusion_jax.studies.carry_out import BUSY, Folder, held
from fusion_jax.studies.workers import Workers

_STUDY = """
config = "quickstart"
seeds = [0, 1]
[contestants.plain]
[contestants.long]
match = { seconds = "fused" }
[contestants.fused]
start = "plain"
"""
# In place of a training: waits a little and is done, or fails by its name.
_WORKER = """
import json, pathlib, sys, time
from fusion_jax.studies.carry_out import BUSY, held
_, workdir, name, *_ = (flag.partition('=')[2] for flag in sys.argv[1:])
workdir = pathlib.Path(workdir)
folder = workdir / 'runs' / name
with held(folder) as mine:
  if not mine:
    sys.exit(BUSY)
  if (folder / 'result.json').exists():
    sys.exit(0)
  time.sleep(0.2)
  with open(workdir / 'order.txt', 'a') as order:
    print(name, file=order)
  if (workdir / 'fail').exists() and 'fused/0' in name:
    sys.exit('error: it fails')
  (folder / 'result.json').write_text(json.dumps({'seconds_an_update': 1.0}))
"""


@pytest.fixture
def study(tmp_path):
  path = tmp_path / 'study.toml'
  path.write_text(_STUDY)
  return plan.read(path)


@pytest.fixture
def team(tmp_path, study, monkeypatch):
  worker = tmp_path / 'worker.py'
  worker.write_text(_WORKER)
  monkeypatch.setattr(workers, 'COMMAND', (sys.executable, str(worker)))
  folder = Folder(tmp_path / 'work')
  folder.workdir.mkdir()
  return lambda **sharing: Workers(study, folder, **sharing)


def _done(tmp_path):
  return (tmp_path / 'work' / 'order.txt').read_text().split()


def test_all_are_done_once_and_after_what_they_need(tmp_path, study, team):
  seen = []
  team(jobs=3).carry_out(seen.append)
  done = _done(tmp_path)
  assert sorted(done) == sorted(run.name for run in study.runs)
  for run in study.runs:
    for needed in run.needs:
      assert done.index(needed.name) < done.index(run.name)
  assert len(seen) == 6
  team().carry_out(seen.append)
  assert _done(tmp_path) == done


def test_a_failed_run_has_a_reason_and_others_go_on(tmp_path, study, team):
  (tmp_path / 'work' / 'fail').touch()
  team(jobs=2).carry_out(lambda run: None)
  folder = Folder(tmp_path / 'work')
  failed = [run for run in study.runs if folder.failure(run)]
  assert [run.contestant for run in failed] == ['fused']
  assert folder.failure(failed[0]) == 'error: it fails'
  open_runs = [run for run in study.runs if not folder.is_finished(run)]
  assert {(run.contestant, run.seed) for run in open_runs} == {
    ('fused', 0),
    ('long', 0),
  }
  (tmp_path / 'work' / 'fail').unlink()
  team().carry_out(lambda run: None)
  assert all(map(folder.is_finished, study.runs))
  assert not any(map(folder.failure, study.runs))


@pytest.mark.extended
def test_two_parts_share_the_runs(tmp_path, study, team):
  halves = [
    threading.Thread(
      target=team(part=part, parts=2).carry_out, args=(lambda run: None,)
    )
    for part in (1, 2)
  ]
  for half in halves:
    half.start()
  for half in halves:
    half.join(60)
  done = _done(tmp_path)
  assert sorted(done) == sorted(run.name for run in study.runs)


def test_a_lock_is_held_once(tmp_path):
  with held(tmp_path / 'run') as mine, held(tmp_path / 'run') as again:
    assert mine
    assert not again
  with held(tmp_path / 'run') as mine:
    assert mine
  assert BUSY not in (0, 1, 2)


def test_what_a_killed_command_has_done_is_not_repeated(tmp_path, study, team):
  del team  # It has made the worker and its folder.
  work = tmp_path / 'work'
  command = f"""
import sys
from pathlib import Path
from fusion_jax.studies import plan, workers
from fusion_jax.studies.carry_out import Folder
workers.COMMAND = sys.executable, {str(tmp_path / 'worker.py')!r}
study, folder = plan.read(Path({str(study.path)!r})), Path({str(work)!r})
team = workers.Workers(study, Folder(folder), jobs=2)
team.carry_out(lambda run: None)
"""
  killed = subprocess.Popen([sys.executable, '-c', command])
  while not (work / 'order.txt').exists():
    assert killed.poll() is None
    time.sleep(0.05)
  killed.kill()
  killed.wait()
  subprocess.run([sys.executable, '-c', command], check=True, timeout=120)
  assert sorted(_done(tmp_path)) == sorted(run.name for run in study.runs)


def test_a_team_that_is_stopped_begins_nothing(tmp_path, study, team):
  ours = team()
  ours.carry_out(lambda run: ours.stop())
  # On a busy machine the next run may end before the stop.
  assert 1 <= len(_done(tmp_path)) <= 2
  with pytest.raises(KeyboardInterrupt):
    team().carry_out(_interrupt)
  assert 2 <= len(_done(tmp_path)) <= 4
  assert not any(map(Folder(tmp_path / 'work').failure, study.runs))


def _interrupt(run):
  raise KeyboardInterrupt


def test_a_worker_ends_with_the_command_that_began_it():
  worker = """
import os, time
from fusion_jax.studies.workers import end_with
end_with(os.getppid())
print('ready', flush=True)
time.sleep(60)
print('still there', flush=True)
"""
  command = f"""
import subprocess, sys
subprocess.run([sys.executable, '-c', {worker!r}], start_new_session=True)
"""
  with subprocess.Popen(
    [sys.executable, '-c', command], stdout=subprocess.PIPE, text=True
  ) as killed:
    assert killed.stdout.readline() == 'ready\n'
    killed.kill()
    # The pipe ends when the last process that writes to it does.
    assert killed.stdout.read() == ''


def test_a_few_updates_tell_the_hours_unless_a_run_does(tmp_path, study, team):
  team().time()
  assert _done(tmp_path) == [study.timing.name]
  team().time()
  assert len(_done(tmp_path)) == 1
  assert study.timing.config.training.steps == 40
  assert study.timing.name.startswith('plain/trial-0-')
