"""Orbax checkpoints of a run: state, data position, progress.

A checkpoint has three items, so that decoding reads only the parameters:
`parameters`, `training` (step and optimizer) and `meta` (format, position in
the data, progress of the validation, digests of the tokenizers). With
`training.ema` there is `average` too, of the form of `parameters`. A validated
one has its quality as Orbax's `metrics`. The mean of several has no `training`
and no `average`; its `meta` says of what it is the mean.
"""

import contextlib
import dataclasses
import logging
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import grain
import jax
import orbax.checkpoint as ocp
from jax.sharding import Sharding
from orbax.checkpoint import checkpoint_managers

from fusion_jax.config import TrainingConfig
from fusion_jax.data.tokenizer import Tokenizer
from fusion_jax.errors import InputError, first_line
from fusion_jax.parallel.distributed import is_first, on_all
from fusion_jax.serialization import FORMAT, check_format
from fusion_jax.training.state import TrainState
from fusion_jax.training.stored_model import check_model

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Progress:
  """How far the run is, beside its state.

  best: the best value of the metric so far, if there was a validation.
  best_step: where.
  stale: validations since then.
  seconds: of wall-clock time in the loop, validations included, summed over
    the times the run was resumed.
  skipped: updates left out because a loss or gradient was not finite.
  """

  best: float | None = None
  best_step: int = 0
  stale: int = 0
  seconds: float = 0.0
  skipped: int = 0

  def updated(self, value: float, step: int, lower_is_better: bool):
    """The progress after a validation with that value of the metric."""
    better = self.best is None or (
      value < self.best if lower_is_better else value > self.best
    )
    if better:
      return dataclasses.replace(self, best=value, best_step=step, stale=0)
    return dataclasses.replace(self, stale=self.stale + 1)


def abstract_like(tree: Any, sharding: Sharding | None = None) -> Any:
  """Shapes to restore a tree to, on that sharding; None: on those it has."""
  return jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(
      x.shape, x.dtype, sharding=sharding or x.sharding
    ),
    tree,
  )


def _quality(metrics: Mapping[str, float]) -> float:
  return metrics['quality']


def _preservation(
  config: TrainingConfig,
) -> checkpoint_managers.AnyPreservationPolicy:
  return checkpoint_managers.AnyPreservationPolicy(
    [
      checkpoint_managers.LatestN(config.keep_last),
      checkpoint_managers.BestN(
        get_metric_fn=_quality,
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
      # Without it Orbax forgets the metrics when the run is resumed.
      best_fn=_quality,
      cleanup_tmp_directories=True,
      enable_async_checkpointing=True,
    )
    try:
      self._manager = ocp.CheckpointManager(self._directory, options=options)
    except (OSError, ValueError) as error:
      raise InputError(
        f'{self._directory}: cannot be used: {first_line(error)}'
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
    average = {}
    if state.average is not None:
      average['average'] = ocp.args.StandardSave(state.average)
    items = ocp.args.Composite(
      parameters=ocp.args.StandardSave(state.parameters),
      training=ocp.args.StandardSave(
        {'step': state.step, 'optimizer': state.optimizer}
      ),
      meta=ocp.args.JsonSave(
        {
          'format': FORMAT,
          'data': iterator.get_state(),
          'progress': dataclasses.asdict(progress),
          'average': state.average is not None,
          **self._digests,
        }
      ),
      **average,
    )
    metrics = None if quality is None else {'quality': quality}
    with _write_errors(self._directory, f'checkpoint {step}'):
      self._manager.save(step, args=items, metrics=metrics)

  def latest_step(self) -> int | None:
    """The newest checkpoint, if there is one."""
    return self._manager.latest_step()

  def wait(self) -> None:
    """Returns when all checkpoints are on disk."""
    with _write_errors(self._directory, 'a checkpoint'):
      self._manager.wait_until_finished()
      self._manager.check_for_errors()

  def close(self) -> None:
    """Waits and closes."""
    self.wait()
    self._manager.close()

  def restore(
    self, fresh: TrainState, iterator: grain.DatasetIterator
  ) -> tuple[TrainState, Progress]:
    """The last checkpoint that can be read, or what is given.

    Args:
      fresh: the initial state, or its shapes with their shardings.
      iterator: the input; it is moved to the saved position.

    Returns:
      The state to go on from, and the progress of the validations.

    Raises:
      InputError: there are checkpoints but none can be read, or they belong
        to another tokenizer or model, or they are a mean, without optimizer.
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
          first_line(error),
        )
        continue
      self._set_aside([later for later in steps if later > step])
      return restored
    if steps:
      raise InputError(
        f'{self._directory}: none of the {len(steps)} checkpoints can be '
        'read; remove the folder to start again'
      )
    return fresh, Progress()

  def _set_aside(self, steps: Sequence[int]) -> None:
    """Moves damaged checkpoints to DIR/damaged, out of the run's way."""
    on_all(lambda: self._move(steps) if is_first() else None)
    self._manager.reload()

  def _move(self, steps: Sequence[int]) -> None:
    for step in steps:
      damaged = self._directory.with_name('damaged') / str(step)
      shutil.rmtree(damaged, ignore_errors=True)
      damaged.parent.mkdir(exist_ok=True)
      (self._directory / str(step)).rename(damaged)

  def _restore_step(
    self, step: int, fresh: TrainState, iterator: grain.DatasetIterator
  ) -> tuple[TrainState, Progress]:
    meta = read_meta(self._manager, step)
    check_digests(meta, self._digests, self._directory / str(step))
    _check_is_no_mean(meta, self._directory.parent)
    check_model(self._directory / str(step), fresh.parameters)
    wanted = {
      'parameters': fresh.parameters,
      'training': {'step': fresh.step, 'optimizer': fresh.optimizer},
    }
    if fresh.average is not None:
      wanted['average'] = fresh.average
    arguments = {
      name: ocp.args.StandardRestore(abstract_like(tree))
      for name, tree in wanted.items()
    }
    items = self._manager.restore(step, args=ocp.args.Composite(**arguments))
    state = TrainState(
      items.training['step'],
      items.parameters,
      items.training['optimizer'],
      items.get('average'),
    )
    iterator.set_state(meta['data'])
    return state, Progress(**meta['progress'])


def _check_is_no_mean(meta: Mapping[str, Any], workdir: Path) -> None:
  if 'mean' in meta:
    raise InputError(
      f'{workdir}: holds the mean of {len(meta["mean"]["steps"])} checkpoints '
      f'of {meta["mean"]["run"]} and no optimizer state to go on from; start '
      f'another --workdir with --init_from={workdir}'
    )


@contextlib.contextmanager
def _write_errors(directory: Path, what: str) -> Iterator[None]:
  """Turns a failure to write into one line."""
  try:
    yield
  except Exception as error:  # Orbax raises many kinds on a full disk.
    raise InputError(
      f'{directory}: {what} could not be written: {first_line(error)}; free '
      'the disk and run the same command again, it goes on from the last '
      'whole checkpoint'
    ) from error


def read_meta(manager: ocp.CheckpointManager, step: int) -> dict[str, Any]:
  """The item `meta` of a checkpoint.

  Raises:
    InputError: a newer version wrote it.
  """
  args = ocp.args.Composite(meta=ocp.args.JsonRestore())
  meta = manager.restore(step, args=args).meta
  check_format(meta, Path(manager.directory) / str(step))
  return meta


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
