"""Checkpoints of a training, and what it refuses to resume from."""

import math
import os

import chex
import jax
import jax.numpy as jnp
import pytest
from saved_runs import SavedRun, iterator

from fusion_jax.errors import InputError
from fusion_jax.runs.checkpoint import Checkpoints, Progress

_ANOTHER_MODEL = 'checkpoints/10: holds another model than that of config.json'


@pytest.mark.parametrize('lower', [False, True])
def test_what_is_not_finite_is_never_the_best(lower):
  progress = Progress()
  for step, value in enumerate([math.nan, math.inf, -math.inf, 2.0, math.nan]):
    progress = progress.updated(value, step, lower)
  assert (progress.best, progress.best_step, progress.stale) == (2.0, 3, 1)


def test_training_does_not_resume_with_another_model(workdir):
  run = SavedRun(workdir)
  run.shapes.pop('target_embedding', None)
  run.shapes['wings'] = jax.ShapeDtypeStruct([2], jnp.float32)
  checkpoints = run.checkpoints()
  with pytest.raises(InputError) as error:
    checkpoints.restore(run.state(0), iterator())
  assert f'{_ANOTHER_MODEL}: wings is None there and [2] here' in str(
    error.value
  )
  checkpoints.close()
  # Nothing was set aside as damaged.
  assert run.steps() == [10]


def test_a_checkpoint_folder_that_orbax_cannot_open(workdir, saved):
  metadata = workdir / 'checkpoints' / '10' / '_CHECKPOINT_METADATA'
  metadata.write_text('[' * 100_000)
  with pytest.raises(InputError, match='checkpoints: cannot be used: '):
    Checkpoints(workdir, saved.config.training, saved.identity)


def test_a_pipe_in_a_checkpoint_is_not_waited_for(workdir, saved):
  metadata = workdir / 'checkpoints' / '10' / '_CHECKPOINT_METADATA'
  metadata.unlink()
  os.mkfifo(metadata)
  with pytest.raises(InputError, match='10/_CHECKPOINT_METADATA is no file'):
    Checkpoints(workdir, saved.config.training, saved.identity)


def test_a_run_resumes_with_its_average(tmp_path):
  run = SavedRun(tmp_path / 'run', ema=0.9)
  state = run.state(20)._replace(average=run.of_step(1_020))
  checkpoints = run.checkpoints()
  checkpoints.save(state, iterator(), Progress(skipped=3), 1.0)
  checkpoints.close()
  checkpoints = run.checkpoints()
  fresh = run.state(0)._replace(average=run.of_step(1))
  restored, progress = checkpoints.restore(fresh, iterator())
  checkpoints.close()
  chex.assert_trees_all_equal(restored, state)
  assert progress.skipped == 3
