"""Orbax checkpoints of a run: state, position in the data, progress.

A checkpoint has three items, so that decoding reads only the parameters:
`parameters`, `training` (step and optimizer) and `meta`. `meta` holds the
format, the position in the data, the progress of the validation, the quality,
the model that the checkpoint belongs to, and digests of all this. With
`training.ema` there is also `average`, which has the form of `parameters`. The
mean of several checkpoints has no `training` and no `average`; its `meta` lists
the checkpoints that were averaged.
"""

import contextlib
import dataclasses
import functools
import heapq
import logging
import math
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import grain
import jax
import jax.numpy as jnp
import optax
import orbax.checkpoint as ocp
from jax.sharding import Sharding
from jaxtyping import Array, Int
from orbax.checkpoint import checkpoint_managers

from fusion_jax.config import ExperimentConfig, TrainingConfig
from fusion_jax.config.serialization import FORMAT
from fusion_jax.data.tokenizer import Tokenizer
from fusion_jax.errors import InputError, first_line
from fusion_jax.files import DamagedError, sealed, whole_folder
from fusion_jax.models.transformer import Parameters
from fusion_jax.parallel.processes import is_first, on_all
from fusion_jax.runs.directory import create_run
from fusion_jax.runs.integrity import (
  array_digests,
  check_regular_files,
  identity_of,
  open_checkpoints,
  read_arrays,
  read_by_all,
  read_fitting_meta,
  read_meta,
  reading,
  warn_damaged,
)

logger = logging.getLogger(__name__)


class TrainState(NamedTuple):
  """State that an update changes; the arrays of a checkpoint are exactly these.

  The step counts batches, including those whose update was skipped.
  """

  step: Int[Array, '']
  parameters: Parameters
  optimizer: optax.OptState
  average: Parameters | None = None

  @property
  def evaluated(self) -> Parameters:
    """The parameters for validation and decoding: the average if it exists."""
    return self.parameters if self.average is None else self.average

  def started_at(self, parameters: Parameters) -> 'TrainState':
    """Return the state with other parameters, which also start the average."""
    average = None if self.average is None else copied(parameters)
    return self._replace(parameters=parameters, average=average)


def copied(parameters: Parameters) -> Parameters:
  """Copy all arrays, because a donated array must not occur twice."""
  return jax.tree.map(jnp.copy, parameters)


@dataclasses.dataclass(frozen=True)
class Progress:
  """Progress of a run apart from its state.

  `stale` counts the validations since the best, `seconds` time in the loop over
  all starts, `skipped` updates that were not finite.
  """

  best: float | None = None
  best_step: int = 0
  stale: int = 0
  seconds: float = 0.0
  skipped: int = 0

  def with_skipped(self, skipped: int) -> 'Progress':
    """Return the progress after more skipped updates."""
    return dataclasses.replace(self, skipped=self.skipped + skipped)

  def updated(
    self, value: float, step: int, lower_is_better: bool
  ) -> 'Progress':
    """Return the progress after a validation that gave `value`."""
    better = self.best is None or (
      value < self.best if lower_is_better else value > self.best
    )
    if better and math.isfinite(value):
      return dataclasses.replace(self, best=value, best_step=step, stale=0)
    return dataclasses.replace(self, stale=self.stale + 1)


def abstract_like(tree: Any, sharding: Sharding | None = None) -> Any:
  """Return the shapes and shardings to restore a tree to."""
  return jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(
      x.shape, x.dtype, sharding=sharding or x.sharding
    ),
    tree,
  )


class _KeepBest:
  """Orbax policy that keeps the checkpoints of the best validations.

  Of their qualities larger is better; None: not validated.
  """

  def __init__(self, count: int):
    self.qualities: dict[int, float | None] = {}
    self._count = count

  def should_preserve(
    self, checkpoints: Sequence[Any], *, context: Any
  ) -> list[bool]:
    """Return for each checkpoint whether it is one of the best."""
    del context
    steps = [checkpoint.step for checkpoint in checkpoints]
    known = {step: self.qualities.get(step) for step in steps}
    validated = {s: value for s, value in known.items() if value is not None}
    best = heapq.nlargest(self._count, validated, validated.__getitem__)
    return [step in best for step in steps]


class Checkpoints:
  """Checkpoints of a training run. Call `close` at the end."""

  def __init__(
    self, workdir: Path, config: TrainingConfig, identity: Mapping[str, Any]
  ):
    """Open the folder and remove what an interrupted save left."""
    self._directory = (workdir / 'checkpoints').absolute()
    self._identity = dict(identity)
    self._best = _KeepBest(config.keep_best)
    options = ocp.CheckpointManagerOptions(
      preservation_policy=checkpoint_managers.AnyPreservationPolicy(
        [checkpoint_managers.LatestN(config.keep_last), self._best]
      ),
      cleanup_tmp_directories=True,
      enable_async_checkpointing=True,
    )
    try:
      check_regular_files(self._directory)
      self._manager = ocp.CheckpointManager(self._directory, options=options)
    except (OSError, ValueError, RecursionError, DamagedError) as error:
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
    """Start writing a checkpoint, unless the step has one already."""
    step = int(state.step)
    if step in self._manager.all_steps():
      return
    self._know_qualities()
    if quality is not None and not math.isfinite(quality):
      quality = None
    self._best.qualities[step] = quality
    meta = {
      'data': iterator.get_state(),
      'progress': dataclasses.asdict(progress),
      'average': state.average is not None,
      'quality': quality,
      **self._identity,
    }
    items = _composite(_items(state), meta)
    # Of the one before, so that its fault is not told of this one.
    self.wait()
    with _write_errors(self._directory, f'checkpoint {step}'):
      self._manager.save(step, args=items)

  def _know_qualities(self) -> None:
    """Read the qualities of checkpoints that existed before."""
    known = self._best.qualities
    unknown = [step for step in self._manager.all_steps() if step not in known]
    if not unknown:
      return
    with open_checkpoints(self._directory) as reader:
      for step in unknown:
        known[step] = None
        with contextlib.suppress(DamagedError):
          meta = read_by_all(functools.partial(read_meta, reader, step))
          known[step] = meta['quality']

  def latest_step(self) -> int | None:
    """Return the step of the newest checkpoint, if there is one."""
    return self._manager.latest_step()

  def wait(self) -> None:
    """Wait until all checkpoints are on disk."""
    with _write_errors(self._directory, 'a checkpoint'):
      self._manager.wait_until_finished()
      self._manager.check_for_errors()

  def close(self) -> None:
    """Wait for all checkpoints and close the manager."""
    self.wait()
    self._manager.close()

  def restore(
    self, fresh: TrainState, iterator: grain.DatasetIterator
  ) -> tuple[TrainState, Progress]:
    """Restore the last readable checkpoint, or return the given state."""
    steps = sorted(self._manager.all_steps(), reverse=True)
    for step in steps:
      try:
        restored = self._restore_step(step, fresh, iterator)
      except DamagedError as error:
        warn_damaged(self._directory / str(step), error)
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
    """Move damaged checkpoints to DIR/damaged, out of the run's way."""

    def move() -> None:
      for step in steps if is_first() else ():
        damaged = self._directory.with_name('damaged') / str(step)
        shutil.rmtree(damaged, ignore_errors=True)
        damaged.parent.mkdir(exist_ok=True)
        (self._directory / str(step)).rename(damaged)

    on_all(move)
    self._manager.reload()

  def _restore_step(
    self, step: int, fresh: TrainState, iterator: grain.DatasetIterator
  ) -> tuple[TrainState, Progress]:
    wanted = abstract_like(_items(fresh))
    with open_checkpoints(self._directory) as reader:
      meta = read_by_all(lambda: self._fitting_meta(reader, step, fresh))
      items = read_arrays(reader, step, meta, wanted)

    def move_input() -> Progress:
      with reading():
        iterator.set_state(meta['data'])
        return Progress(**meta['progress'])

    progress = read_by_all(move_input)
    state = TrainState(
      parameters=items['parameters'],
      average=items.get('average'),
      **items['training'],
    )
    return state, progress

  def _fitting_meta(
    self, reader: ocp.CheckpointManager, step: int, fresh: TrainState
  ) -> dict[str, Any]:
    """Return the item `meta` of a checkpoint that this run can resume from."""
    meta = read_fitting_meta(reader, step, self._identity, fresh.parameters)
    if 'mean' in meta or 'imported' in meta:
      workdir = self._directory.parent
      raise InputError(
        f'{workdir}: holds no optimizer state to resume from; start another '
        f'--workdir with --init_from={workdir}'
      )
    return meta


def _items(state: TrainState) -> dict[str, Any]:
  """Return the items of a checkpoint that consist of arrays."""
  average = {} if state.average is None else {'average': state.average}
  training = {'step': state.step, 'optimizer': state.optimizer}
  return {'parameters': state.parameters, 'training': training, **average}


def _composite(
  arrays: Mapping[str, Any], meta: Mapping[str, Any]
) -> ocp.args.Composite:
  """Return the items for Orbax to write, with format and digests."""
  meta = {'format': FORMAT, **meta, 'arrays': array_digests(arrays)}
  items = {name: ocp.args.StandardSave(tree) for name, tree in arrays.items()}
  return ocp.args.Composite(**items, meta=ocp.args.JsonSave(sealed(meta)))


@contextlib.contextmanager
def _write_errors(folder: Path, what: str) -> Iterator[None]:
  """Turn a failure to write into an InputError of one line."""
  try:
    yield
  except Exception as error:  # Orbax raises many kinds on a full disk.
    raise InputError(
      f'{folder}: {what} could not be written: {first_line(error)}; free '
      'the disk and run the same command again, it resumes from the last '
      'whole checkpoint'
    ) from error


def write_run(
  output: Path,
  config: ExperimentConfig,
  tokenizers: tuple[Tokenizer, Tokenizer],
  parameters: Parameters,
  origin: Mapping[str, Any],
  step: int = 0,
  complete: Callable[[Path], None] = lambda folder: None,
) -> None:
  """Write a run directory of parameters that no training of ours made.

  It has one checkpoint and no optimizer state, so that every program can read
  it and no training can resume in it.
  """
  meta = {
    'progress': dataclasses.asdict(Progress(best_step=step)),
    'average': False,
    'quality': None,
    **origin,
    **identity_of(config, *tokenizers),
  }
  items = _composite({'parameters': parameters}, meta)
  options = ocp.CheckpointManagerOptions(enable_async_checkpointing=False)
  try:
    with whole_folder(output) as partial:
      create_run(partial, config, *tokenizers)
      complete(partial)
      folder = (partial / 'checkpoints').absolute()
      with ocp.CheckpointManager(folder, options=options) as manager:
        manager.save(step, args=items)
  except InputError:
    raise
  except Exception as error:  # Orbax raises many types on a full disk.
    raise InputError(
      f'{output}: cannot be written: {first_line(error)}'
    ) from error
