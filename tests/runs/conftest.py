import shutil

import pytest
from saved_runs import SavedRun


@pytest.fixture(scope='session')
def saved(tmp_path_factory):
  """A run with one checkpoint, which nothing has happened to."""
  run = SavedRun(tmp_path_factory.mktemp('runs') / 'base')
  run.save({10: 1.0})
  return run


@pytest.fixture
def workdir(saved, tmp_path):
  """A copy of it."""
  return shutil.copytree(saved.workdir, tmp_path / 'run')
