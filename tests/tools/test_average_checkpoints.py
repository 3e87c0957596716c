"""Means of checkpoints, on the fly and as run directories."""

import os
import shutil

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from saved_runs import SavedRun, edit_meta, iterator, meta_path
from tiers import extended_but

from fusion_jax.config.serialization import FORMAT
from fusion_jax.errors import InputError
from fusion_jax.models.transformer import initial_parameters
from fusion_jax.runs.integrity import read_meta
from fusion_jax.runs.loading import CheckpointSelection, load_run
from fusion_jax.testing import assert_close
from fusion_jax.tools import average_checkpoints
from fusion_jax.training import warm_start

# The two best are neither the last two nor beside each other.
_QUALITIES = {10: 3.0, 20: None, 30: 9.0, 40: 1.0, 50: 7.0, 60: None}


@pytest.fixture(scope='module')
def saved(tmp_path_factory):
  run = SavedRun(tmp_path_factory.mktemp('runs') / 'base')
  run.save(_QUALITIES)
  return run


def _assert_mean(run, saved, steps):
  assert run.steps == steps
  assert run.step == steps[-1]
  trees = [saved.of_step(step) for step in steps]
  expected = jax.tree.map(
    lambda *leaves: np.mean(leaves, axis=0, dtype=np.float64), *trees
  )
  assert_close(run.parameters, expected, units=16)


def _average(*flags):
  return average_checkpoints.main([str(flag) for flag in flags])


def _error(capsys):
  (line,) = capsys.readouterr().err.splitlines()
  return line


@pytest.mark.parametrize(
  ('arguments', 'steps'),
  [
    ((40, 3), (20, 30, 40)),
    (('best', 1, 'best'), (30,)),
    (('best', 3), (40, 50, 60)),
    (('last', 3, 'best'), (10, 30, 50)),
    ((40, 2, 'best'), (10, 30)),
  ],
)
def test_the_mean_by_hand(saved, arguments, steps):
  _assert_mean(
    load_run(saved.workdir, CheckpointSelection(*arguments)), saved, steps
  )


@pytest.mark.parametrize('part', extended_but(['arrays', 'meta'], ['meta']))
def test_damage_is_told_and_what_is_before_is_used(
  saved, tmp_path, caplog, part
):
  workdir = shutil.copytree(saved.workdir, tmp_path / 'copy')
  for step in (30, 60):
    path = meta_path(workdir, step)
    path.write_text(path.read_text().replace('"digest": "', '"digest": "0', 1))
    if part == 'arrays':
      edit_meta(workdir, step)
  cases = [
    (('last', 3), (20, 40, 50), 60),
    (('best', 1), (50,), 60),
    (('best', 2, 'best'), (10, 50), 30),
  ]
  for arguments, steps, left_out in cases:
    caplog.clear()
    assert load_run(workdir, CheckpointSelection(*arguments)).steps == steps
    (path,) = workdir.glob(f'checkpoints/{left_out}')
    assert f'checkpoint {path} is damaged and is left out: ' in caplog.text


@pytest.fixture
def mean(saved, tmp_path, capsys):
  """The directory of the mean of the two best."""
  output = tmp_path / 'new' / 'mean'
  flags = ('--average=2', '--average_of=best', f'--output={output}')
  assert _average(f'--workdir={saved.workdir}', *flags) == 0
  assert capsys.readouterr().out == f'{output}\n'
  return output


def test_a_saved_mean_is_the_mean_on_the_fly(saved, mean):
  here = load_run(saved.workdir, CheckpointSelection('best', 2, 'best'))
  there = load_run(mean)
  jax.tree.map(np.testing.assert_array_equal, there.parameters, here.parameters)
  assert there.step == here.step == 50
  assert there.config == here.config
  assert there.target_tokenizer.model == here.target_tokenizer.model
  assert [path.name for path in mean.parent.iterdir()] == ['mean']
  names = ['checkpoints', 'config.json', 'source.model', 'target.model']
  assert sorted(path.name for path in mean.iterdir()) == names
  with ocp.CheckpointManager(mean / 'checkpoints') as manager:
    meta = read_meta(manager, 50)
  assert meta['mean'] == {'run': 'base', 'steps': [30, 50]}
  assert meta['format'] == FORMAT
  assert not (mean / 'checkpoints' / '50' / 'training').exists()


@pytest.mark.extended
def test_training_starts_from_a_saved_mean_but_does_not_resume(saved, mean):
  run = load_run(mean)
  fresh = initial_parameters(run.model, 1)
  tokenizers = run.source_tokenizer, run.target_tokenizer
  baseline = warm_start.read_baseline(fresh, run.model, tokenizers, mean)
  started = warm_start.with_baseline(fresh, run.model, baseline)
  jax.tree.map(np.testing.assert_array_equal, started, run.parameters)
  there = SavedRun(mean)
  message = (
    f'{mean}: holds no optimizer state to resume from; start another --workdir '
    f'with --init_from={mean}'
  )
  checkpoints = there.checkpoints()
  with pytest.raises(InputError) as error:
    checkpoints.restore(there.state(0), iterator())
  checkpoints.close()
  assert str(error.value) == message


def test_a_failing_write_leaves_nothing(saved, tmp_path, monkeypatch, capsys):
  def fail(*arguments, **named):
    raise OSError('no space left on device\nand more')

  monkeypatch.setattr(os, 'replace', fail)
  output = tmp_path / 'mean'
  flags = (f'--workdir={saved.workdir}', '--average=2', f'--output={output}')
  assert _average(*flags) == 2
  assert 'cannot be written: no space left on device' in _error(capsys)
  assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
  ('flags', 'message'),
  [
    (['--average=7'], '6 readable checkpoints, 7 asked for'),
    (
      ['--average=5', '--average_of=best'],
      '4 readable checkpoints with a validation, 5 asked for',
    ),
    (
      ['--average=2', '--step=soon'],
      "argument --step: must be a step, 'best' or 'last', got 'soon'",
    ),
  ],
)
def test_mistakes_end_in_one_line(saved, tmp_path, capsys, flags, message):
  output = tmp_path / 'mean'
  workdir = f'--workdir={saved.workdir}'
  assert _average(workdir, f'--output={output}', *flags) == 2
  assert message in _error(capsys)
  assert list(tmp_path.iterdir()) == []
