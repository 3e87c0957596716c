"""A trained run, loaded from its directory for decoding."""

import dataclasses
import logging
from collections.abc import Mapping
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import Sharding

from fusion_jax.config import ExperimentConfig
from fusion_jax.data.tokenizer import Tokenizer
from fusion_jax.errors import InputError
from fusion_jax.models.transformer import (
  Parameters,
  Transformer,
  initial_parameters,
)
from fusion_jax.parallel.mesh import data_mesh, replicated
from fusion_jax.training import run_directory
from fusion_jax.training.checkpoint import (
  abstract_like,
  check_digests,
  first_line,
  read_meta,
  tokenizer_digests,
)

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Run:
  """A trained model and all that is needed to translate with it.

  config: of the experiment.
  model: the Transformer.
  parameters: float32, replicated over the devices.
  step: the checkpoint's, the last one of an average.
  source_tokenizer, target_tokenizer: of the two sides.
  """

  config: ExperimentConfig
  model: Transformer
  parameters: Parameters
  step: int
  source_tokenizer: Tokenizer
  target_tokenizer: Tokenizer

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
  workdir: str | Path, step: int | str = 'best', average: int = 1
) -> Run:
  """Loads a run for decoding; nothing but the run directory is read.

  Args:
    workdir: the run directory.
    step: a step, 'last', or 'best' by the validation metric ('last' where
      no validation was made).
    average: mean of the parameters of so many checkpoints, that of `step`
      and those before it. With more than one, 'best' means 'last'.

  Returns:
    The run.

  Raises:
    InputError: no run, no checkpoint, no such step, fewer checkpoints than
      asked for, or another tokenizer.
  """
  workdir = Path(workdir)
  if average < 1:
    raise InputError(f'--average: must be at least 1, got {average}')
  config = run_directory.read_config(workdir)
  source, target = run_directory.read_tokenizers(workdir)
  model = make_model(config, source, target)
  steps, parameters = _load_parameters(
    workdir / 'checkpoints',
    model,
    tokenizer_digests(source, target),
    'last' if step == 'best' and average > 1 else step,
    average,
  )
  return Run(config, model, parameters, steps[0], source, target)


def _load_parameters(
  directory: Path,
  model: Transformer,
  digests: Mapping[str, str],
  step: int | str,
  average: int,
) -> tuple[list[int], Parameters]:
  if not directory.is_dir():
    raise InputError(f'{directory}: no checkpoint yet; train first')
  options = ocp.CheckpointManagerOptions(read_only=True)
  with ocp.CheckpointManager(directory.absolute(), options=options) as manager:
    wanted = _candidates(manager, directory, step)
    sharding = replicated(data_mesh())
    abstract = abstract_like(
      jax.eval_shape(lambda: initial_parameters(model, 0)),
      sharding,
    )
    loaded, used = [], []
    for candidate in wanted:
      parameters = _try_parameters(manager, candidate, abstract, digests)
      if parameters is not None:
        loaded.append(parameters)
        used.append(candidate)
      if len(loaded) == average:
        return used, _mean(loaded, sharding)
  raise InputError(
    f'{directory}: {len(loaded)} readable checkpoints, {average} asked for'
  )


def _candidates(
  manager: ocp.CheckpointManager, directory: Path, step: int | str
) -> list[int]:
  """The step to load, then the ones before it, newest first."""
  steps = sorted(manager.all_steps(), reverse=True)
  if not steps:
    raise InputError(f'{directory}: no checkpoint yet; train first')
  if step == 'best':
    step = _best_step(manager, steps)
  elif step == 'last':
    step = steps[0]
  if step not in steps:
    raise InputError(
      f'{directory}: no checkpoint of step {step}; there are '
      f'{", ".join(map(str, reversed(steps)))}'
    )
  return [s for s in steps if s <= step]


def _best_step(manager: ocp.CheckpointManager, steps: list[int]) -> int:
  """The best step as the newest readable checkpoint remembers it."""
  for step in steps:
    try:
      best = read_meta(manager, step)['progress']['best_step']
    except Exception as error:  # Orbax raises many kinds on damaged files.
      logger.warning('checkpoint %d: %s', step, first_line(error))
      continue
    return best if best in steps else step
  return steps[0]


def _try_parameters(
  manager: ocp.CheckpointManager,
  step: int,
  abstract: Parameters,
  digests: Mapping[str, str],
) -> Parameters | None:
  """The parameters of a checkpoint, or None with a warning if damaged."""
  path = Path(manager.directory) / str(step)
  try:
    check_digests(read_meta(manager, step), digests, path)
    return manager.restore(
      step,
      args=ocp.args.Composite(parameters=ocp.args.StandardRestore(abstract)),
    ).parameters
  except InputError:
    raise
  except Exception as error:  # Orbax raises many kinds on damaged files.
    logger.warning(
      'checkpoint %s is damaged and is left out: %s',
      path,
      first_line(error),
    )
    return None


def _mean(trees: list[Parameters], sharding: Sharding) -> Parameters:
  if len(trees) == 1:
    return trees[0]
  mean = jax.tree.map(
    lambda *xs: np.mean([np.asarray(x) for x in xs], axis=0), *trees
  )
  return jax.device_put(mean, sharding)
