"""Run directories of parameters that no training of ours made.

They have one checkpoint and no optimizer state, so that every program can read
them and no training can resume in them.
"""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import orbax.checkpoint as ocp

from fusion_jax.config import ExperimentConfig
from fusion_jax.data.tokenizer import Tokenizer
from fusion_jax.errors import InputError, first_line
from fusion_jax.files import whole_folder
from fusion_jax.models.transformer import Parameters
from fusion_jax.runs import run_directory
from fusion_jax.runs.checkpoint import Progress, items_of
from fusion_jax.runs.checkpoint_reading import identity_of


def write_run(
  output: Path,
  config: ExperimentConfig,
  tokenizers: tuple[Tokenizer, Tokenizer],
  parameters: Parameters,
  origin: Mapping[str, Any],
  step: int = 0,
  complete: Callable[[Path], None] = lambda folder: None,
) -> None:
  """Write a run directory with one checkpoint."""
  meta = {
    'progress': dataclasses.asdict(Progress(best_step=step)),
    **origin,
    **identity_of(config, *tokenizers),
  }
  items = items_of({'parameters': parameters}, meta)
  try:
    with whole_folder(output) as partial:
      run_directory.create(partial, config, *tokenizers)
      complete(partial)
      _write_checkpoint(partial / 'checkpoints', step, items)
  except InputError:
    raise
  except Exception as error:  # Orbax raises many types on a full disk.
    raise InputError(
      f'{output}: cannot be written: {first_line(error)}'
    ) from error


def _write_checkpoint(
  directory: Path, step: int, items: ocp.args.Composite
) -> None:
  options = ocp.CheckpointManagerOptions(enable_async_checkpointing=False)
  with ocp.CheckpointManager(directory.absolute(), options=options) as manager:
    manager.save(step, args=items)
