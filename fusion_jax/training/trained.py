"""A trained run, loaded from its directory for decoding."""

import argparse
import contextlib
import dataclasses
import functools
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import orbax.checkpoint as ocp
from jax.sharding import SingleDeviceSharding

from fusion_jax.config import ExperimentConfig
from fusion_jax.data.tokenizer import Tokenizer
from fusion_jax.errors import InputError
from fusion_jax.models.transformer import (
  Parameters,
  Transformer,
  initial_parameters,
)
from fusion_jax.parallel.distributed import any_of_all, of_first, on_all
from fusion_jax.seals import DamagedError
from fusion_jax.training import run_directory
from fusion_jax.training.checkpoint import abstract_like
from fusion_jax.training.choice import Choice, candidates
from fusion_jax.training.mean import RunningMean
from fusion_jax.training.stored import (
  check_identity,
  identity_of,
  is_being_deleted,
  open_to_read,
  read_arrays,
  read_by_all,
  read_meta,
  reading,
  warn_damaged,
)
from fusion_jax.training.stored_model import check_model

logger = logging.getLogger(__name__)

# How often the checkpoints of a running training are looked at.
_ATTEMPTS = 20


@dataclasses.dataclass(frozen=True)
class Run:
  """A trained model and all that is needed to translate with it.

  config: of the experiment.
  model: the Transformer.
  parameters: float32, on one device of this process.
  step: the checkpoint's, the last one of an average.
  source_tokenizer, target_tokenizer: of the two sides.
  steps: of the checkpoints that the parameters are the mean of, ascending.
  """

  config: ExperimentConfig
  model: Transformer
  parameters: Parameters
  step: int
  source_tokenizer: Tokenizer
  target_tokenizer: Tokenizer
  steps: tuple[int, ...] = ()

  @property
  def longest(self) -> int | None:
    """The most positions the model has, if there is a limit."""
    model = self.config.model
    return model.max_positions if model.positions == 'learned' else None


def make_model(
  config: ExperimentConfig, source: Tokenizer, target: Tokenizer
) -> Transformer:
  """The experiment's model for these vocabularies."""
  return Transformer(
    config.model,
    source.vocabulary.size,
    target.vocabulary.size,
    target.vocabulary.start,
  )


def load_run(
  workdir: str | Path,
  step: int | str = 'best',
  average: int = 1,
  average_of: Literal['last', 'best'] = 'last',
  parameters: Literal['last', 'ema'] | None = None,
) -> Run:
  """Loads a run for decoding; nothing but the run directory is read.

  Of several processes all have to ask, and all get the same.

  Args:
    workdir: the run directory.
    step: a step, 'last', or 'best' by the validation metric ('last' where
      no validation was made).
    average: mean of the parameters of so many checkpoints, that of `step`
      and those before it. With more than one, 'best' means 'last'.
    average_of: 'best': of those checkpoints the ones with the best value of
      the validation metric; others are not averaged.
    parameters: of each checkpoint: 'last': those after its last update;
      'ema': their moving average; None: that average if there is one.

  Returns:
    The run.

  Raises:
    InputError: no run, no checkpoint, no such step, fewer checkpoints than
      asked for, that step is damaged, no moving average, another tokenizer or
      model, or a newer version wrote it.
  """
  workdir = Path(workdir)
  choice = Choice(step, average, average_of, parameters)
  config, source, target = on_all(lambda: _described(workdir))
  model = make_model(config, source, target)
  identity = identity_of(config, source, target)
  steps, loaded = _load_parameters(workdir, model, identity, config, choice)
  return Run(config, model, loaded, max(steps), source, target, steps)


def _described(
  workdir: Path,
) -> tuple[ExperimentConfig, Tokenizer, Tokenizer]:
  """What stands beside the checkpoints: config and tokenizers."""
  config = run_directory.read_config(workdir)
  source, target = run_directory.read_tokenizers(workdir)
  directory = workdir / 'checkpoints'
  if not directory.is_dir():
    raise InputError(f'{directory}: no checkpoint yet; train first')
  return config, source, target


def load_flagged(arguments: argparse.Namespace) -> Run:
  """`load_run` with a parser's workdir and `add_checkpoint_flags`."""
  return load_run(
    arguments.workdir,
    arguments.step,
    arguments.average,
    arguments.average_of,
    arguments.parameters,
  )


def _load_parameters(
  workdir: Path,
  model: Transformer,
  identity: Mapping[str, Any],
  config: ExperimentConfig,
  choice: Choice,
) -> tuple[tuple[int, ...], Parameters]:
  """The steps that are loaded, and the mean of their parameters.

  A training may run in the directory and delete a checkpoint while it is read:
  then those that are there now are looked at again.
  """
  directory = workdir / 'checkpoints'
  abstract = abstract_like(
    jax.eval_shape(lambda: initial_parameters(model, 0)),
    SingleDeviceSharding(jax.local_devices()[0]),
  )
  for _ in range(_ATTEMPTS):
    with (
      contextlib.suppress(_DeletedError),
      open_to_read(directory) as reader,
    ):
      chosen = functools.partial(
        candidates, reader, choice, config.training.metric
      )
      wanted = of_first(chosen, list[int])
      return _mean_of(wanted, reader, abstract, identity, choice)
  raise InputError(
    f'{directory}: its checkpoints are deleted faster than they can be read; '
    'raise training.keep_last or training.save_every'
  )


class _DeletedError(Exception):
  """A checkpoint was deleted while it was read."""


def _mean_of(
  steps: Sequence[int],
  manager: ocp.CheckpointManager,
  abstract: Parameters,
  identity: Mapping[str, Any],
  choice: Choice,
) -> tuple[tuple[int, ...], Parameters]:
  directory = Path(manager.directory)
  mean, used = RunningMean(), []
  for step in steps:
    if _add_checkpoint(mean, manager, step, abstract, identity, choice):
      used.append(step)
    if mean.count == choice.average:
      found = tuple(sorted(used))
      if choice.average > 1:
        listed = ', '.join(map(str, found))
        logger.info('%s: the mean of steps %s', directory.parent, listed)
      return found, mean.value()
  raise _too_few(directory, mean.count, choice)


def _too_few(directory: Path, found: int, choice: Choice) -> InputError:
  if choice.average_of == 'last':
    return InputError(
      f'{directory}: {found} readable checkpoints, {choice.average} asked for'
    )
  return InputError(
    f'{directory}: {found} readable checkpoints with a validation, '
    f'{choice.average} asked for; training.keep_best says how many are kept'
  )


def _add_checkpoint(
  mean: RunningMean,
  manager: ocp.CheckpointManager,
  step: int,
  abstract: Parameters,
  identity: Mapping[str, Any],
  choice: Choice,
) -> bool:
  """Adds the parameters of a checkpoint; False with a warning if damaged."""
  path = Path(manager.directory) / str(step)

  def fitting_meta() -> tuple[dict[str, Any], str]:
    meta = read_meta(manager, step)
    with reading():
      check_identity(meta, identity, path)
      check_model(path, meta, abstract)
      return meta, _item(meta, path, choice)

  try:
    meta, name = read_by_all(fitting_meta)
    restored = read_arrays(manager, step, meta, {name: abstract})
  except DamagedError as error:
    if any_of_all(is_being_deleted(path)):
      raise _DeletedError from error
    if step == choice.step:
      raise InputError(
        f'--step={step}: {path} is damaged: {error}; give the step of '
        'another checkpoint, or none'
      ) from error
    warn_damaged(path, error)
    return False
  mean.add(restored[name])
  return True


def _item(meta: Mapping[str, Any], path: Path, choice: Choice) -> str:
  """Where the parameters that are asked for stand in a checkpoint."""
  averaged = meta.get('average', False)
  if choice.parameters == 'ema' and not averaged:
    raise InputError(
      f'--parameters=ema: {path} has no moving average of its parameters; '
      'training.ema makes one. Leave the flag out'
    )
  return 'average' if averaged and choice.parameters != 'last' else 'parameters'
