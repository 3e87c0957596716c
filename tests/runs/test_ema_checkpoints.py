"""Moving averages in checkpoints: who reads them, and runs without them."""

import json
import shutil

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from saved_runs import SavedRun, iterator, meta_path, without_digests

from fusion_jax.errors import InputError
from fusion_jax.models.transformer import initial_parameters
from fusion_jax.runs.checkpoint import Progress
from fusion_jax.runs.loading import load_run
from fusion_jax.testing import assert_close
from fusion_jax.tools import average_checkpoints
from fusion_jax.training import warm_start


def _average_of(run, step):
  """Other numbers than the parameters of that step."""
  return run.of_step(1_000 + step)


def _state(run, step):
  return run.state(step)._replace(average=_average_of(run, step))


@pytest.fixture(scope='module')
def averaged(tmp_path_factory):
  """A run with a moving average at steps 10 and 20."""
  run = SavedRun(tmp_path_factory.mktemp('runs') / 'ema', ema=0.9)
  checkpoints = run.checkpoints()
  for step in (10, 20):
    checkpoints.save(_state(run, step), iterator(), Progress(skipped=3), 1.0)
  checkpoints.close()
  return run


@pytest.fixture(scope='module')
def plain(tmp_path_factory):
  run = SavedRun(tmp_path_factory.mktemp('runs') / 'plain')
  run.save({10: 1.0})
  return run


def _mean(*trees):
  return jax.tree.map(
    lambda *xs: np.mean(xs, axis=0, dtype=np.float64).astype(np.float32), *trees
  )


@pytest.mark.parametrize(
  ('chosen', 'of'), [(None, 'ema'), ('ema', 'ema'), ('last', 'last')]
)
@pytest.mark.parametrize('count', [1, 2])
def test_the_average_is_read_unless_the_last_is_wanted(
  averaged, chosen, of, count
):
  steps = (20,) if count == 1 else (10, 20)
  tree = averaged.of_step if of == 'last' else _average_of
  trees = [
    tree(step) if of == 'last' else tree(averaged, step) for step in steps
  ]
  run = load_run(averaged.workdir, 'last', count, 'last', chosen)
  assert_close(run.parameters, _mean(*trees), units=16)
  assert run.steps == steps


def test_a_run_resumes_with_its_average(averaged):
  checkpoints = averaged.checkpoints()
  fresh = _state(averaged, 0)
  state, progress = checkpoints.restore(fresh, iterator())
  checkpoints.close()
  chex.assert_trees_all_equal(state, _state(averaged, 20))
  assert progress.skipped == 3


@pytest.mark.extended
def test_training_starts_from_the_average(averaged):
  run = load_run(averaged.workdir)
  fresh = initial_parameters(run.model, 1)
  tokenizers = run.source_tokenizer, run.target_tokenizer
  baseline = warm_start.read_baseline(
    fresh, run.model, tokenizers, averaged.workdir
  )
  started = warm_start.with_baseline(fresh, run.model, baseline)
  chex.assert_trees_all_equal(started, run.parameters)
  chex.assert_trees_all_equal(started, _average_of(averaged, run.step))


def test_a_damaged_average_gives_way_to_the_checkpoint_before(
  averaged, tmp_path, caplog
):
  workdir = tmp_path / 'run'
  shutil.copytree(averaged.workdir, workdir)
  shutil.rmtree(workdir / 'checkpoints' / '20' / 'average')
  run = load_run(workdir, 'last')
  assert run.step == 10
  assert 'checkpoints/20 is damaged' in caplog.text
  assert load_run(workdir, 'last', parameters='last').step == 20


def test_runs_without_an_average_load_as_before(plain, tmp_path):
  for chosen in (None, 'last'):
    run = load_run(plain.workdir, parameters=chosen)
    chex.assert_trees_all_equal(run.parameters, plain.of_step(10))
  # As a checkpoint was written before there were averages and skips.
  workdir = tmp_path / 'old'
  shutil.copytree(plain.workdir, workdir)
  without_digests(workdir)
  path = meta_path(workdir, 10)
  meta = json.loads(path.read_text())
  del meta['average'], meta['progress']['skipped']
  path.write_text(json.dumps(meta))
  run = load_run(workdir)
  chex.assert_trees_all_equal(run.parameters, plain.of_step(10))
  checkpoints = SavedRun(workdir).checkpoints()
  state, progress = checkpoints.restore(plain.state(0), iterator())
  checkpoints.close()
  chex.assert_trees_all_equal(state, plain.state(10))
  assert progress.skipped == 0


def test_an_average_that_is_not_there_is_one_line(plain):
  with pytest.raises(InputError) as error:
    load_run(plain.workdir, parameters='ema')
  path = plain.workdir / 'checkpoints' / '10'
  assert str(error.value) == (
    f'--parameters=ema: {path} has no moving average of its parameters; '
    'training.ema makes one. Leave the flag out'
  )


@pytest.mark.extended
def test_a_saved_mean_is_of_what_was_chosen(averaged, tmp_path, capsys):
  last = {None: _average_of(averaged, 10), 'last': averaged.of_step(10)}
  for chosen, first in last.items():
    output = tmp_path / str(chosen)
    flags = ['--average=2', f'--output={output}']
    flags += [f'--parameters={chosen}'] if chosen else []
    assert (
      average_checkpoints.main([f'--workdir={averaged.workdir}', *flags]) == 0
    )
    second = averaged.of_step(20) if chosen else _average_of(averaged, 20)
    saved = load_run(output).parameters
    assert_close(saved, _mean(first, second), units=16)
    with pytest.raises(InputError, match='has no moving average'):
      load_run(output, parameters='ema')
  assert capsys.readouterr().err == ''


def test_the_average_is_float32(averaged):
  leaves = jax.tree.leaves(load_run(averaged.workdir).parameters)
  assert {leaf.dtype for leaf in leaves} == {jnp.dtype('float32')}
