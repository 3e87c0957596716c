"""Loading of a trained run from its directory, for decoding."""

import argparse
import contextlib
import dataclasses
import functools
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from jax.sharding import SingleDeviceSharding

from fusion_jax.config import ExperimentConfig
from fusion_jax.data.tokenizer import Tokenizer
from fusion_jax.errors import InputError, require
from fusion_jax.languages import Words, words_of
from fusion_jax.models.transformer import (
  Parameters,
  Transformer,
  initial_parameters,
)
from fusion_jax.parallel.distributed import any_of_all, of_first, on_all
from fusion_jax.runs import run_directory
from fusion_jax.runs.checkpoint import abstract_like
from fusion_jax.runs.checkpoint_reading import (
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
from fusion_jax.runs.model_match import check_model
from fusion_jax.runs.selection import CheckpointSelection, candidates
from fusion_jax.seals import DamagedError

logger = logging.getLogger(__name__)

# Number of attempts to read checkpoints that a running training deletes.
_ATTEMPTS = 20


@dataclasses.dataclass(frozen=True)
class TrainedModel:
  """A trained model and everything needed to translate with it.

  Attributes:
    config: Experiment configuration.
    model: Transformer.
    parameters: Parameters, float32, on one device of this process.
    step: Step of the checkpoint; of an average, the step of the last one.
    source_tokenizer, target_tokenizer: Tokenizers of the two sides.
    steps: Steps of the checkpoints that the parameters are the mean of,
      ascending.
  """

  config: ExperimentConfig
  model: Transformer
  parameters: Parameters
  step: int
  source_tokenizer: Tokenizer
  target_tokenizer: Tokenizer
  steps: tuple[int, ...] = ()

  @property
  def target_words(self) -> Words:
    """How translations are cut into words."""
    config = self.config
    return words_of(config.data.target_language, config.decoding.bleu_tokenizer)

  @property
  def longest(self) -> int | None:
    """The largest number of positions of the model, if there is a limit."""
    model = self.config.model
    return model.max_positions if model.positions == 'learned' else None


class RunningMean:
  """Mean (p_1 + ... + p_N) / N, summed in the order given.

  The sum is float32. It overwrites the first set in place and keeps its
  sharding.

  Attributes:
    count: Number N of sets so far.
  """

  def __init__(self):
    """Start without parameters."""
    self.count = 0
    self._total: Parameters | None = None

  def add(self, parameters: Parameters) -> None:
    """Add a set of parameters; the first one must not be used afterwards."""
    if self._total is not None:
      parameters = _sum(self._total, parameters)
    self._total = parameters
    self.count += 1

  def value(self) -> Parameters:
    """Return the mean of at least one set; nothing can be added afterwards."""
    assert self._total is not None
    if self.count == 1:
      return self._total
    return _quotient(self._total, jnp.float32(self.count))


@functools.partial(jax.jit, donate_argnums=0)
def _sum(total: Parameters, parameters: Parameters) -> Parameters:
  return jax.tree.map(jnp.add, total, parameters)


@functools.partial(jax.jit, donate_argnums=0)
def _quotient(total: Parameters, count: jax.Array) -> Parameters:
  return jax.tree.map(lambda leaf: leaf / count, total)


def make_model(
  config: ExperimentConfig, source: Tokenizer, target: Tokenizer
) -> Transformer:
  """Return the experiment's model for these vocabularies."""
  require(
    not config.model.ties_sides
    or source.digest == target.digest
    or source.pieces() == target.pieces(),
    'model.tied_embeddings',
    f"'{config.model.tied_embeddings}' shares one table between the sides, but "
    "the two SentencePiece models have other pieces; use 'none' or "
    "'target_output'",
  )
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
) -> TrainedModel:
  """Load a run for decoding; nothing but the run directory is read.

  All processes must call it, and all get the same result.
  """
  choice = CheckpointSelection(step, average, average_of, parameters)
  return load_selected(workdir, choice)


def load_selected(
  workdir: str | Path, choice: CheckpointSelection
) -> TrainedModel:
  """Load the selected checkpoints of a run; see `load_run`."""
  workdir = Path(workdir)
  config, source, target = on_all(lambda: _described(workdir))
  identity = identity_of(config, source, target)
  try:
    model = make_model(config, source, target)
  except InputError:
    _check_newest(workdir / 'checkpoints', identity)
    raise
  steps, loaded = _load_parameters(workdir, model, identity, config, choice)
  return TrainedModel(config, model, loaded, max(steps), source, target, steps)


def _check_newest(directory: Path, identity: Mapping[str, Any]) -> None:
  """Refuse tokenizers that are not those of the newest readable checkpoint."""
  with open_to_read(directory) as reader:
    for step in sorted(reader.all_steps(), reverse=True):
      with contextlib.suppress(DamagedError):
        meta = read_meta(reader, step)
        check_identity(meta, identity, directory / str(step))
        return


def _described(
  workdir: Path,
) -> tuple[ExperimentConfig, Tokenizer, Tokenizer]:
  """Read the config and the tokenizers that are stored beside checkpoints."""
  config = run_directory.read_config(workdir)
  source, target = run_directory.read_tokenizers(workdir)
  directory = workdir / 'checkpoints'
  if not directory.is_dir():
    raise InputError(f'{directory}: no checkpoint yet; train first')
  return config, source, target


def load_flagged(arguments: argparse.Namespace) -> TrainedModel:
  """Call `load_run` with a parser's workdir and `add_checkpoint_flags`."""
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
  choice: CheckpointSelection,
) -> tuple[tuple[int, ...], Parameters]:
  """Return the steps that are loaded, and the mean of their parameters.

  A training may run in the directory and delete a checkpoint while it is read.
  Then the checkpoints are listed and chosen again.
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
  """Error of a checkpoint that was deleted while it was read."""


def _mean_of(
  steps: Sequence[int],
  manager: ocp.CheckpointManager,
  abstract: Parameters,
  identity: Mapping[str, Any],
  choice: CheckpointSelection,
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


def _too_few(
  directory: Path, found: int, choice: CheckpointSelection
) -> InputError:
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
  choice: CheckpointSelection,
) -> bool:
  """Add the parameters of a checkpoint; warn and return False if damaged."""
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


def _item(
  meta: Mapping[str, Any], path: Path, choice: CheckpointSelection
) -> str:
  """Return the name of the item that holds the requested parameters."""
  averaged = meta.get('average', False)
  if choice.parameters == 'ema' and not averaged:
    raise InputError(
      f'--parameters=ema: {path} has no moving average of its parameters; '
      'training.ema makes one. Leave the flag out'
    )
  return 'average' if averaged and choice.parameters != 'last' else 'parameters'
