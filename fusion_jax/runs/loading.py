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
from fusion_jax.config.flags import fields_given
from fusion_jax.data.tokenizer import Tokenizer
from fusion_jax.errors import InputError, require
from fusion_jax.files import DamagedError
from fusion_jax.metrics import Words, words_of
from fusion_jax.models.transformer import (
  Parameters,
  Transformer,
  initial_parameters,
)
from fusion_jax.parallel.processes import any_of_all, of_first, on_all
from fusion_jax.runs.checkpoint import abstract_like
from fusion_jax.runs.directory import read_config, read_tokenizers
from fusion_jax.runs.integrity import (
  identity_of,
  is_being_deleted,
  open_checkpoints,
  read_arrays,
  read_by_all,
  read_fitting_meta,
  read_meta,
  warn_damaged,
)
from fusion_jax.runs.precision import (
  Precision,
  narrow,
  usable,
  with_usable_products,
)

logger = logging.getLogger(__name__)

# Number of attempts to read checkpoints that a running training deletes.
_ATTEMPTS = 20


@dataclasses.dataclass(frozen=True)
class CheckpointSelection:
  """Selection of the checkpoints to average.

  Attributes:
    step: 'last', 'best', or the newest step that may be chosen. 'best' is the
      best validated where a single one of the last is wanted, else 'last'.
    average: Number of checkpoints to average.
    average_of: Whether to take the last ones, or those of the best validations.
    parameters: Those after the last update of each, or their moving average;
      None: the average where there is one.
    precision: Of the operands of products, where that is faster.
  """

  step: int | str = 'best'
  average: int = 1
  average_of: Literal['last', 'best'] = 'last'
  parameters: Literal['last', 'ema'] | None = None
  precision: Precision = 'float32'

  def __post_init__(self):
    if self.average < 1:
      raise InputError(f'--average: must be at least 1, got {self.average}')


_BEST = CheckpointSelection()


def selection_of(arguments: argparse.Namespace) -> CheckpointSelection:
  """Return what the flags of `add_checkpoint_flags` select."""
  return CheckpointSelection(**fields_given(CheckpointSelection, arguments))


@dataclasses.dataclass(frozen=True)
class TrainedModel:
  """A trained model and everything needed to translate with it.

  Parameters are on one device of this process: the mean of those of `steps`,
  the last of which is `step`, with matrices of `precision`.
  """

  config: ExperimentConfig
  model: Transformer
  parameters: Parameters
  step: int
  source_tokenizer: Tokenizer
  target_tokenizer: Tokenizer
  steps: tuple[int, ...] = ()
  precision: Precision = 'float32'

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
    with_usable_products(config.model),
    source.vocabulary.size,
    target.vocabulary.size,
    target.vocabulary.start,
  )


def load_run(
  workdir: str | Path, selection: CheckpointSelection = _BEST
) -> TrainedModel:
  """Load a run for decoding; nothing but the run directory is read.

  All processes must call it, and all get the same result.
  """
  workdir = Path(workdir)
  config, source, target = on_all(
    lambda: (read_config(workdir), *read_tokenizers(workdir))
  )
  identity = identity_of(config, source, target)
  model = make_model(config, source, target)
  steps, parameters = _load_parameters(workdir, model, identity, selection)
  precision = usable(selection.precision)
  parameters = narrow(model, parameters, precision)
  return TrainedModel(
    config, model, parameters, max(steps), source, target, steps, precision
  )


def _load_parameters(
  workdir: Path,
  model: Transformer,
  identity: Mapping[str, Any],
  selection: CheckpointSelection,
) -> tuple[tuple[int, ...], Parameters]:
  """Return the steps that are loaded, and the mean of their parameters.

  Where a training deletes a checkpoint meanwhile, they are chosen again.
  """
  folder = workdir / 'checkpoints'
  abstract = abstract_like(
    jax.eval_shape(lambda: initial_parameters(model, 0)),
    SingleDeviceSharding(jax.local_devices()[0]),
  )
  for _ in range(_ATTEMPTS):
    with (
      contextlib.suppress(_DeletedError),
      open_checkpoints(folder) as manager,
    ):
      return _Loader(manager, folder, abstract, identity, selection).mean()
  raise InputError(
    f'{folder}: its checkpoints are deleted faster than they can be read; '
    'raise training.keep_last or training.save_every'
  )


class _DeletedError(Exception):
  """Error of a checkpoint that was deleted while it was read."""


@dataclasses.dataclass(frozen=True)
class _Loader:
  """One attempt to load what is selected of the checkpoints in a folder."""

  manager: ocp.CheckpointManager
  folder: Path
  abstract: Parameters
  identity: Mapping[str, Any]
  selection: CheckpointSelection

  def mean(self) -> tuple[tuple[int, ...], Parameters]:
    """Return the steps that are loaded, and the mean of their parameters.

    The sum is float32, in the order of the selection; it overwrites the first
    set in place and keeps its sharding.
    """
    count, total, used = self.selection.average, None, list[int]()
    for step in of_first(self._candidates, list[int]):
      parameters = self._read(step)
      if parameters is None:
        continue
      total = parameters if total is None else _sum(total, parameters)
      used.append(step)
      if len(used) == count:
        break
    else:
      kind = ' with a validation' if self.selection.average_of == 'best' else ''
      raise InputError(
        f'{self.folder}: {len(used)} readable checkpoints{kind}, {count} asked '
        'for'
      )
    if count == 1:
      return tuple(used), total
    logger.info('%s: the mean of steps %s', self.folder.parent, sorted(used))
    return tuple(sorted(used)), _quotient(total, jnp.float32(count))

  def _candidates(self) -> list[int]:
    """Return the steps to load, most wanted first, damaged ones included."""
    steps = sorted(self.manager.all_steps(), reverse=True)
    if not steps:
      raise InputError(f'{self.folder}: no checkpoint yet; train first')
    newest = self._newest(steps)
    if newest not in steps:
      raise InputError(
        f'{self.folder}: no checkpoint of step {newest}; there are '
        f'{", ".join(map(str, reversed(steps)))}'
      )
    allowed = [step for step in steps if step <= newest]
    if self.selection.average_of == 'last':
      return allowed
    qualities = {step: self._recorded(step, 'quality') for step in allowed}
    validated = [step for step in allowed if qualities[step] is not None]
    return sorted(validated, key=qualities.__getitem__, reverse=True)

  def _newest(self, steps: Sequence[int]) -> int:
    """Return the newest step that may be chosen.

    'best' is the best step as the newest readable checkpoint recorded it.
    """
    selection = self.selection
    if isinstance(selection.step, int):
      return selection.step
    only_one = selection.average == 1 and selection.average_of == 'last'
    if selection.step == 'best' and only_one:
      for step in steps:
        progress = self._recorded(step, 'progress')
        if progress is not None:
          best = progress['best_step']
          return best if best in steps else step
    return steps[0]

  def _recorded(self, step: int, name: str) -> Any:
    """Return a value of a checkpoint's `meta`; warn and None if damaged."""
    try:
      return read_meta(self.manager, step)[name]
    except DamagedError as error:
      warn_damaged(self.folder / str(step), error)
      return None

  def _read(self, step: int) -> Parameters | None:
    """Return the parameters of a checkpoint; warn and None if damaged."""
    path = self.folder / str(step)
    try:
      meta, name = read_by_all(lambda: self._fitting_meta(step, path))
      wanted = {name: self.abstract}
      return read_arrays(self.manager, step, meta, wanted)[name]
    except DamagedError as error:
      if any_of_all(is_being_deleted(path)):
        raise _DeletedError from error
      if step == self.selection.step:
        raise InputError(
          f'--step={step}: {path} is damaged: {error}; give the step of '
          'another checkpoint, or none'
        ) from error
      warn_damaged(path, error)
      return None

  def _fitting_meta(self, step: int, path: Path) -> tuple[dict[str, Any], str]:
    """Return the item `meta`, and the name of the item with the parameters."""
    meta = read_fitting_meta(self.manager, step, self.identity, self.abstract)
    wanted, averaged = self.selection.parameters, meta['average']
    if wanted == 'ema' and not averaged:
      raise InputError(
        f'--parameters=ema: {path} has no moving average of its parameters; '
        'training.ema makes one. Leave the flag out'
      )
    return meta, 'average' if averaged and wanted != 'last' else 'parameters'
