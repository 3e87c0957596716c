"""Orbax checkpoints of a run: state, data position, progress.

A checkpoint has three items, so that decoding reads only the parameters:
`parameters`, `training` (step and optimizer) and `meta` (position in the
data, progress of the validation, digests of the tokenizers).
"""

import dataclasses
import logging
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grain
import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import Sharding
from orbax.checkpoint import checkpoint_managers

from fusion_jax.config import ExperimentConfig, TrainingConfig
from fusion_jax.data.tokenizer import Tokenizer
from fusion_jax.errors import InputError
from fusion_jax.models.transformer import Transformer
from fusion_jax.parallel.mesh import data_mesh, replicated
from fusion_jax.training import run_directory
from fusion_jax.training.step import Parameters, TrainState, initial_parameters

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Progress:
  """How far the run is, beside its state.

  best: the best value of the metric so far, if there was a validation.
  best_step: where.
  stale: validations since then.
  seconds: of wall-clock time in the loop, validations included, summed over
    the times the run was resumed.
  """

  best: float | None = None
  best_step: int = 0
  stale: int = 0
  seconds: float = 0.0

  def updated(self, value: float, step: int, lower_is_better: bool):
    """The progress after a validation with that value of the metric."""
    better = self.best is None or (
      value < self.best if lower_is_better else value > self.best
    )
    if better:
      return Progress(value, step, 0, self.seconds)
    return dataclasses.replace(self, stale=self.stale + 1)


def _first_line(error: BaseException) -> str:
  return (str(error).strip() or type(error).__name__).splitlines()[0]


def _abstract(tree: Any, sharding: Sharding) -> Any:
  """Shapes to restore a tree to, on that sharding."""
  return jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), tree
  )


def _preservation(
  config: TrainingConfig,
) -> checkpoint_managers.AnyPreservationPolicy:
  return checkpoint_managers.AnyPreservationPolicy(
    [
      checkpoint_managers.LatestN(config.keep_last),
      checkpoint_managers.BestN(
        get_metric_fn=lambda metrics: metrics['quality'],
        n=config.keep_best,
        keep_checkpoints_without_metrics=False,
      ),
    ]
  )


class Checkpoints:
  """The checkpoints of a training run. Call `close` at the end."""

  def __init__(
    self, workdir: Path, config: TrainingConfig, digests: Mapping[str, str]
  ):
    """Opens the folder and removes what an interrupted save left.

    Args:
      workdir: the run directory.
      config: what to keep.
      digests: of the tokenizers; a checkpoint with others is refused.
    """
    self._directory = (workdir / 'checkpoints').absolute()
    self._digests = dict(digests)
    options = ocp.CheckpointManagerOptions(
      preservation_policy=_preservation(config),
      cleanup_tmp_directories=True,
      enable_async_checkpointing=True,
    )
    try:
      self._manager = ocp.CheckpointManager(self._directory, options=options)
    except OSError as error:
      raise InputError(
        f'{self._directory}: cannot be used: {_first_line(error)}'
      ) from error

  def save(
    self,
    state: TrainState,
    iterator: grain.DatasetIterator,
    progress: Progress,
    quality: float | None,
  ) -> None:
    """Starts writing a checkpoint; a step that is there already is left.

    Args:
      state: of the training.
      iterator: the input; its position is saved.
      progress: of the validations.
      quality: of this checkpoint, larger is better; None: not validated.

    Raises:
      InputError: this or an earlier checkpoint cannot be written.
    """
    step = int(state.step)
    if step in self._manager.all_steps():
      return
    items = ocp.args.Composite(
      parameters=ocp.args.StandardSave(state.parameters),
      training=ocp.args.StandardSave(
        {'step': state.step, 'optimizer': state.optimizer}
      ),
      meta=ocp.args.JsonSave(
        {
          'data': iterator.get_state(),
          'progress': dataclasses.asdict(progress),
          **self._digests,
        }
      ),
    )
    metrics = None if quality is None else {'quality': quality}
    with self._write_errors(step):
      self._manager.save(step, args=items, metrics=metrics)

  def latest_step(self) -> int | None:
    """The newest checkpoint, if there is one."""
    return self._manager.latest_step()

  def wait(self) -> None:
    """Returns when all checkpoints are on disk."""
    with self._write_errors(None):
      self._manager.wait_until_finished()
      self._manager.check_for_errors()

  def close(self) -> None:
    """Waits and closes."""
    self.wait()
    self._manager.close()

  def _write_errors(self, step: int | None) -> '_WriteErrors':
    return _WriteErrors(self._directory, step)

  def restore(
    self, fresh: TrainState, iterator: grain.DatasetIterator
  ) -> tuple[TrainState, Progress]:
    """The last checkpoint that can be read, or the fresh state.

    Args:
      fresh: the initial state; gives shapes and shardings.
      iterator: the input; it is moved to the saved position.

    Returns:
      The state to go on from, and the progress of the validations.

    Raises:
      InputError: there are checkpoints but none can be read, or they belong
        to another tokenizer.
    """
    steps = sorted(self._manager.all_steps(), reverse=True)
    for step in steps:
      try:
        restored = self._restore_step(step, fresh, iterator)
      except InputError:
        raise
      except Exception as error:  # Orbax raises many kinds on damaged files.
        logger.warning(
          'checkpoint %s is damaged and is left out: %s',
          self._directory / str(step),
          _first_line(error),
        )
        continue
      for later in (s for s in steps if s > step):
        shutil.rmtree(self._directory / str(later), ignore_errors=True)
      self._manager.reload()
      return restored
    if steps:
      raise InputError(
        f'{self._directory}: none of the {len(steps)} checkpoints can be '
        'read; remove the folder to start again'
      )
    return fresh, Progress()

  def _restore_step(
    self, step: int, fresh: TrainState, iterator: grain.DatasetIterator
  ) -> tuple[TrainState, Progress]:
    meta = _read_meta(self._manager, step)
    check_digests(meta, self._digests, self._directory / str(step))
    sharding = fresh.step.sharding
    items = self._manager.restore(
      step,
      args=ocp.args.Composite(
        parameters=ocp.args.StandardRestore(
          _abstract(fresh.parameters, sharding)
        ),
        training=ocp.args.StandardRestore(
          _abstract(
            {'step': fresh.step, 'optimizer': fresh.optimizer},
            sharding,
          )
        ),
      ),
    )
    state = TrainState(
      items.training['step'], items.parameters, items.training['optimizer']
    )
    iterator.set_state(meta['data'])
    return state, Progress(**meta['progress'])


class _WriteErrors:
  """Turns a failure to write into one line."""

  def __init__(self, directory: Path, step: int | None):
    self._directory = directory
    self._which = 'a checkpoint' if step is None else f'checkpoint {step}'

  def __enter__(self) -> None:
    pass

  def __exit__(self, kind, error, traceback) -> None:
    if isinstance(error, Exception) and not isinstance(error, InputError):
      raise InputError(
        f'{self._directory}: {self._which} could not be written: '
        f'{_first_line(error)}; free the disk and run the same command '
        'again, it goes on from the last whole checkpoint'
      ) from error


def _read_meta(manager: ocp.CheckpointManager, step: int) -> dict[str, Any]:
  args = ocp.args.Composite(meta=ocp.args.JsonRestore())
  return manager.restore(step, args=args).meta


def tokenizer_digests(source: Tokenizer, target: Tokenizer) -> dict[str, str]:
  """What a checkpoint remembers of its tokenizers."""
  return {'source.model': source.digest, 'target.model': target.digest}


def check_digests(
  meta: Mapping[str, Any], digests: Mapping[str, str], path: Path
) -> None:
  """Refuses a checkpoint that was trained with other tokenizers."""
  for name, digest in digests.items():
    if meta[name] != digest:
      raise InputError(
        f'{path}: trained with another tokenizer than {name} of this run: '
        f'its SHA-256 is {meta[name][:12]}..., the file has '
        f'{digest[:12]}...'
      )


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
    abstract = _abstract(
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
      best = _read_meta(manager, step)['progress']['best_step']
    except Exception as error:  # Orbax raises many kinds on damaged files.
      logger.warning('checkpoint %d: %s', step, _first_line(error))
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
    check_digests(_read_meta(manager, step), digests, path)
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
      _first_line(error),
    )
    return None


def _mean(trees: list[Parameters], sharding: Sharding) -> Parameters:
  if len(trees) == 1:
    return trees[0]
  mean = jax.tree.map(
    lambda *xs: np.mean([np.asarray(x) for x in xs], axis=0), *trees
  )
  return jax.device_put(mean, sharding)
