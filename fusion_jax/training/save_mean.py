"""A run directory whose only checkpoint is the mean of others."""

import dataclasses
from pathlib import Path

import orbax.checkpoint as ocp

from fusion_jax.errors import InputError, first_line
from fusion_jax.files import whole_folder
from fusion_jax.training import run_directory
from fusion_jax.training.checkpoint import Progress, items_of
from fusion_jax.training.kept_corpus import copy_corpus
from fusion_jax.training.stored import identity_of
from fusion_jax.training.trained import Run


def write_mean(run: Run, workdir: Path, output: Path) -> None:
  """Writes a run directory with one checkpoint, of step `run.step`.

  Args:
    run: its parameters are the mean of those of `run.steps`.
    workdir: the directory that it was loaded from; its name is kept in the
      checkpoint.
    output: the new directory; it is whole or not there.

  Raises:
    InputError: it is there already and not empty, or cannot be written.
  """
  try:
    with whole_folder(output) as partial:
      run_directory.create(
        partial, run.config, run.source_tokenizer, run.target_tokenizer
      )
      copy_corpus(workdir, partial)
      _write_checkpoint(partial / 'checkpoints', run, workdir.resolve().name)
  except InputError:
    raise
  except Exception as error:  # Orbax raises many kinds on a full disk.
    raise InputError(
      f'{output}: cannot be written: {first_line(error)}'
    ) from error


def _write_checkpoint(directory: Path, run: Run, name: str) -> None:
  meta = {
    'progress': dataclasses.asdict(Progress(best_step=run.step)),
    'mean': {'run': name, 'steps': run.steps},
    **identity_of(run.config, run.source_tokenizer, run.target_tokenizer),
  }
  items = items_of({'parameters': run.parameters}, meta)
  options = ocp.CheckpointManagerOptions(enable_async_checkpointing=False)
  with ocp.CheckpointManager(directory.absolute(), options=options) as manager:
    manager.save(run.step, args=items)
