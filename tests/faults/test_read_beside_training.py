"""Runs are loaded while a training writes and prunes their checkpoints."""

import gc
import itertools
import logging
import threading

import chex
import pytest
from saved_runs import SavedRun, iterator

from fusion_jax.errors import InputError
from fusion_jax.runs import integrity, loading
from fusion_jax.runs.checkpoint import Progress
from fusion_jax.runs.loading import load_run

pytestmark = pytest.mark.extended

# Where one array cannot be read, Orbax does not wait for the others.
_MARK = pytest.mark.filterwarnings(
  'ignore::pytest.PytestUnraisableExceptionWarning'
)


def _loads(tmp_path, caplog, count):
  run = SavedRun(tmp_path / 'run', keep_last=1, keep_best=0)
  run.save({1: None})
  ended, steps = threading.Event(), itertools.count(2)

  def train():
    checkpoints = run.checkpoints()
    while not ended.is_set():
      checkpoints.save(run.state(next(steps)), iterator(), Progress(), None)
    checkpoints.close()

  training = threading.Thread(target=train)
  training.start()
  try:
    with caplog.at_level(logging.WARNING):
      found = [load_run(run.workdir) for _ in range(count)]
  finally:
    ended.set()
    training.join()
    # What Orbax has left open complains now, and not in another test.
    caplog.clear()
    gc.collect()
  for loaded in found[:: max(count // 5, 1)]:
    chex.assert_trees_all_equal(loaded.parameters, run.of_step(loaded.step))
  return [loaded.step for loaded in found], next(steps)


@_MARK
def test_some_loads(tmp_path, caplog):
  found, last = _loads(tmp_path, caplog, 8)
  assert found == sorted(found)
  assert last > 3


@_MARK
@pytest.mark.slow
def test_two_hundred_loads(tmp_path, caplog):
  found, last = _loads(tmp_path, caplog, 200)
  assert found == sorted(found)
  assert len(found) == 200
  # It was trained meanwhile, and checkpoints were deleted.
  assert len(set(found)) > 50
  assert last > 50


def test_a_folder_that_loses_files(tmp_path, monkeypatch):
  folder = tmp_path / '10'
  (folder / 'meta').mkdir(parents=True)
  assert not integrity.is_being_deleted(folder)
  left = [folder / 'meta', folder]
  monkeypatch.setattr(integrity.time, 'sleep', lambda _: left.pop(0).rmdir())
  assert integrity.is_being_deleted(folder)
  assert left == [folder]
  assert integrity.is_being_deleted(folder)


def test_checkpoints_that_are_always_gone(tmp_path, monkeypatch):
  run = SavedRun(tmp_path / 'run')
  run.save({1: None})
  monkeypatch.setattr(loading, 'is_being_deleted', lambda _: True)
  monkeypatch.setattr(integrity, '_check_identity', lambda *_: 1 / 0)
  with pytest.raises(InputError, match='deleted faster than they can be read'):
    load_run(run.workdir)
