"""What is read of a checkpoint, and whether it is what was written.

The item `meta` has the digests of all arrays, and one of itself. Checkpoints
of earlier versions have none, and are read as they are.
"""

import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from fusion_jax.config import ExperimentConfig
from fusion_jax.config.serialization import check_format
from fusion_jax.data.tokenizer import Tokenizer
from fusion_jax.errors import InputError, first_line
from fusion_jax.parallel.distributed import Result, on_all
from fusion_jax.runs.digests import check_arrays
from fusion_jax.runs.stored_model import check_fields, model_fields
from fusion_jax.seals import DamagedError, check_seal

logger = logging.getLogger(__name__)

# Between two looks at a folder that may be deleted.
_LOOK_SECONDS = 0.1


def open_to_read(directory: Path) -> ocp.CheckpointManager:
  """Orbax's manager of checkpoints that this process reads by itself.

  With Orbax's default, a process that cannot read a file leaves the others
  waiting for it.

  Args:
    directory: the folder `checkpoints` of a run directory.

  Returns:
    The manager. It sees the checkpoints that are there now.
  """
  this = jax.process_index()
  options = ocp.CheckpointManagerOptions(
    read_only=True,
    lightweight_initialize=True,
    multiprocessing_options=ocp.options.MultiprocessingOptions(
      primary_host=this, active_processes={this}
    ),
  )
  return ocp.CheckpointManager(directory.absolute(), options=options)


def read_by_all(action: Callable[[], Result]) -> Result:
  """Reads on every process; what one of them cannot read, none has read.

  Args:
    action: the same on all of them.

  Returns:
    What it returns here.

  Raises:
    DamagedError, InputError: on all processes, if one raises it.
  """
  return on_all(action, (InputError, DamagedError))


@contextlib.contextmanager
def reading() -> Iterator[None]:
  """Turns what a damaged checkpoint raises into `DamagedError`."""
  try:
    yield
  except (InputError, DamagedError):
    raise
  except Exception as error:  # Orbax raises many kinds on damaged files.
    raise DamagedError(first_line(error)) from error


def is_being_deleted(path: Path) -> bool:
  """Whether a checkpoint is gone, or loses files while one looks."""
  files = _files(path)
  while files:
    time.sleep(_LOOK_SECONDS)
    before, files = files, _files(path)
    if files == before:
      return False
  return True


def _files(path: Path) -> set[Path]:
  try:
    return set(path.rglob('*'))
  except OSError:
    return set()


def warn_damaged(path: Path, error: DamagedError) -> None:
  """Tell that a checkpoint is not used, unless it was deleted meanwhile."""
  if not path.exists():
    return
  logger.warning('checkpoint %s is damaged and is left out: %s', path, error)


def read_meta(manager: ocp.CheckpointManager, step: int) -> dict[str, Any]:
  """The item `meta` of a checkpoint.

  Args:
    manager: of `open_to_read`.
    step: of the checkpoint.

  Returns:
    The item.

  Raises:
    DamagedError: it cannot be read, or is not what was written.
    InputError: a newer version wrote it.
  """
  args = ocp.args.Composite(meta=ocp.args.JsonRestore())
  with reading():
    meta = manager.restore(step, args=args).meta
    check_seal(meta, 'meta')
    check_format(meta, Path(manager.directory) / str(step))
  return meta


def read_arrays(
  manager: ocp.CheckpointManager,
  step: int,
  meta: Mapping[str, Any],
  wanted: Mapping[str, Any],
) -> dict[str, Any]:
  """Items of a checkpoint that consist of arrays; all processes have to ask.

  Args:
    manager: of `open_to_read`.
    step: of the checkpoint.
    meta: of the checkpoint.
    wanted: for each item the shapes to restore it to.

  Returns:
    The items.

  Raises:
    DamagedError: one of the processes cannot read them, or they are not what
      was written.
  """
  arguments = {
    name: ocp.args.StandardRestore(tree) for name, tree in wanted.items()
  }

  def read() -> dict[str, Any]:
    with reading():
      items = manager.restore(step, args=ocp.args.Composite(**arguments))
      return {name: items[name] for name in wanted}

  # Digests of cut arrays are sums over all processes: each has to be there.
  found = read_by_all(read)
  if 'arrays' in meta:
    read_by_all(lambda: check_arrays(found, meta['arrays']))
  return found


def read_quality(
  manager: ocp.CheckpointManager, step: int, logged: float | None = None
) -> float | None:
  """How good a checkpoint is.

  Args:
    manager: of `open_to_read`.
    step: of the checkpoint.
    logged: what the log says, for checkpoints that say nothing.

  Returns:
    The quality, larger is better; None: not validated.

  Raises:
    DamagedError: it cannot be read.
    InputError: a newer version wrote it.
  """
  meta = read_meta(manager, step)
  if 'quality' in meta:
    return meta['quality']
  # Where earlier versions put it.
  with reading():
    metrics = manager.metrics(step) or {}
    saved = finite(metrics.get('quality'))
  return logged if saved is None else saved


def finite(quality: float | None) -> float | None:
  """The quality; None where it is no finite number."""
  if quality is None or not math.isfinite(quality):
    return None
  return quality


def identity_of(
  config: ExperimentConfig, source: Tokenizer, target: Tokenizer
) -> dict[str, Any]:
  """What a checkpoint remembers of the model it belongs to."""
  return {
    'source.model': source.digest,
    'target.model': target.digest,
    'model': model_fields(config),
  }


def check_identity(
  meta: Mapping[str, Any], identity: Mapping[str, Any], path: Path
) -> None:
  """Refuses a checkpoint of other tokenizers, or of another model.

  Args:
    meta: of the checkpoint.
    identity: of `identity_of`, for this run.
    path: of the checkpoint.

  Raises:
    InputError: the checkpoint does not belong to this run.
  """
  for name in ('source.model', 'target.model'):
    if meta[name] != identity[name]:
      raise InputError(
        f'{path}: trained with another tokenizer than {name} of this run: '
        f'its SHA-256 is {meta[name][:12]}..., the file has '
        f'{identity[name][:12]}...'
      )
  check_fields(path, meta.get('model', {}), identity['model'])
