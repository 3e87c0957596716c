"""Which config the flags of training choose."""

import pytest
from saved_runs import SavedRun

from fusion_jax.cli import train


@pytest.fixture
def taken(monkeypatch):
  """The config and the run directory that training is called with."""
  calls = []
  monkeypatch.setattr(train, 'start_logging', lambda: None)
  monkeypatch.setattr(
    'fusion_jax.training.loop.run', lambda *given: calls.append(given) or 0
  )
  return calls


def test_the_run_directory_alone_resumes_with_its_config(taken, tmp_path):
  run = SavedRun(tmp_path / 'run', steps=70)
  assert train.main([f'--workdir={run.workdir}']) == 0
  ((config, workdir, _),) = taken
  assert (config, workdir) == (run.config, run.workdir)


def test_without_a_run_a_config_is_needed(taken, tmp_path, capsys):
  assert train.main([f'--workdir={tmp_path}']) == 2
  assert not taken
  message = capsys.readouterr().err
  assert message.startswith(f'error: --config is needed: {tmp_path} has no run')
