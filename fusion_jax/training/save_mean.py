"""A run directory whose only checkpoint is the mean of others."""

import dataclasses
import os
import secrets
import shutil
from pathlib import Path

import orbax.checkpoint as ocp

from fusion_jax.errors import InputError, first_line
from fusion_jax.training import run_directory
from fusion_jax.training.checkpoint import Progress, items_of
from fusion_jax.training.stored import identity_of
from fusion_jax.training.trained import Run


def write_mean(run: Run, name: str, output: Path) -> None:
  """Writes a run directory with one checkpoint, of step `run.step`.

  Args:
    run: its parameters are the mean of those of `run.steps`.
    name: of the directory that it was loaded from; kept in the checkpoint.
    output: the new directory; it is whole or not there.

  Raises:
    InputError: it is there already and not empty, or cannot be written.
  """
  check_new(output)
  final = Path(os.path.realpath(output))
  partial = final.with_name(
    f'.{final.name}.{os.getpid()}-{secrets.token_hex(4)}'
  )
  try:
    run_directory.create(
      partial, run.config, run.source_tokenizer, run.target_tokenizer
    )
    _write_checkpoint(partial / 'checkpoints', run, name)
    partial.rename(final)
  except Exception as error:  # Orbax raises many kinds on a full disk.
    raise InputError(
      f'{output}: cannot be written: {first_line(error)}'
    ) from error
  finally:
    shutil.rmtree(partial, ignore_errors=True)


def check_new(output: Path) -> None:
  """Refuses a folder that `write_mean` would not write.

  Raises:
    InputError: it is there already and not empty.
  """
  if output.is_dir() and not any(output.iterdir()):
    return
  if os.path.lexists(output):
    raise InputError(
      f'--output={output}: is there already; give a new or empty folder'
    )


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
