"""Reading of checkpoints, with checks that they are what was written.

The item `meta` has the digests of all arrays, and one of itself. Checkpoints of
earlier versions have no digests, and are read unchecked.
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
from fusion_jax.runs.model_match import check_fields, model_fields
from fusion_jax.seals import DamagedError, check_seal

logger = logging.getLogger(__name__)

# Seconds between two looks at a folder that may be deleted.
_LOOK_SECONDS = 0.1


def open_to_read(directory: Path) -> ocp.CheckpointManager:
  """Return an Orbax manager of checkpoints that this process reads alone.

  With Orbax's default, a process that cannot read a file leaves the others
  waiting for it.

  Args:
    directory: Folder `checkpoints` of a run directory.

  Returns:
    The manager. It sees the checkpoints that exist now.
  """
  this = jax.process_index()
  options = ocp.CheckpointManagerOptions(
    read_only=True,
    create=False,
    save_interval_steps=0,
    lightweight_initialize=True,
    multiprocessing_options=ocp.options.MultiprocessingOptions(
      primary_host=this, active_processes={this}
    ),
  )
  with _no_warnings('absl'):  # It warns that it only reads.
    return ocp.CheckpointManager(directory.absolute(), options=options)


@contextlib.contextmanager
def _no_warnings(name: str) -> Iterator[None]:
  """Silence the warnings of a logger inside the block."""
  library = logging.getLogger(name)
  level = library.level
  library.setLevel(max(level, logging.ERROR))
  try:
    yield
  finally:
    library.setLevel(level)


def read_by_all(action: Callable[[], Result]) -> Result:
  """Read on every process, and fail on all if one of them cannot read.

  Args:
    action: Function that reads, the same on all processes.

  Returns:
    The result of the action on this process.

  Raises:
    DamagedError, InputError: Raised on all processes, if one raises it.
  """
  return on_all(action, (InputError, DamagedError))


@contextlib.contextmanager
def reading() -> Iterator[None]:
  """Turn the errors of a damaged checkpoint into `DamagedError`."""
  try:
    yield
  except (InputError, DamagedError):
    raise
  except Exception as error:  # Orbax raises many kinds on damaged files.
    raise DamagedError(_reason(error)) from error


def _reason(error: BaseException) -> str:
  """Return what TensorStore or Python said, without what Orbax adds to it."""
  while error.__cause__:
    error = error.__cause__
  return first_line(error).partition(' [tensorstore_spec=')[0]


def is_being_deleted(path: Path) -> bool:
  """Return whether a checkpoint is gone or is losing files."""
  files = _files(path)
  if not files and path.exists():
    # Empty from the start, or about to go.
    time.sleep(_LOOK_SECONDS)
    return not path.exists()
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
  """Warn that a checkpoint is not used, unless it was deleted meanwhile."""
  if not path.exists():
    return
  logger.warning('checkpoint %s is damaged and is left out: %s', path, error)


def read_meta(manager: ocp.CheckpointManager, step: int) -> dict[str, Any]:
  """Read the item `meta` of a checkpoint.

  Args:
    manager: Manager from `open_to_read`.
    step: Step of the checkpoint.

  Returns:
    The item.

  Raises:
    DamagedError: It cannot be read, or is not what was written.
    InputError: A newer version wrote it.
  """
  args = ocp.args.Composite(meta=ocp.args.JsonRestore())
  with reading():
    _check_regular(Path(manager.directory) / str(step))
    meta = manager.restore(step, args=args).meta
    check_seal(meta, 'meta')
    check_format(meta, Path(manager.directory) / str(step))
  return meta


def _check_regular(path: Path) -> None:
  """Refuse pipes and devices, of which a reader may never see the end."""
  for file in path.rglob('*'):
    if not (file.is_file() or file.is_dir()):
      raise DamagedError(f'{file.relative_to(path)} is no file')


def read_arrays(
  manager: ocp.CheckpointManager,
  step: int,
  meta: Mapping[str, Any],
  wanted: Mapping[str, Any],
) -> dict[str, Any]:
  """Read the items of a checkpoint that consist of arrays.

  All processes must call it.

  Args:
    manager: Manager from `open_to_read`.
    step: Step of the checkpoint.
    meta: Item `meta` of the checkpoint.
    wanted: Shapes to restore each item to, by its name.

  Returns:
    The items.

  Raises:
    DamagedError: One of the processes cannot read them, or they are not what
      was written.
  """
  arguments = {
    name: ocp.args.StandardRestore(tree) for name, tree in wanted.items()
  }

  def read() -> dict[str, Any]:
    with reading():
      items = manager.restore(step, args=ocp.args.Composite(**arguments))
      return {name: items[name] for name in wanted}

  # Digests of sharded arrays are sums over all processes, so that all of them
  # must have read their shards.
  found = read_by_all(read)
  if 'arrays' in meta:
    read_by_all(lambda: check_arrays(found, meta['arrays']))
  return found


def read_quality(
  manager: ocp.CheckpointManager, step: int, logged: float | None = None
) -> float | None:
  """Read the quality of a checkpoint.

  Args:
    manager: Manager from `open_to_read`.
    step: Step of the checkpoint.
    logged: Quality in the log, for checkpoints that hold none.

  Returns:
    The quality, larger is better; None: not validated.

  Raises:
    DamagedError: The checkpoint cannot be read.
    InputError: A newer version wrote it.
  """
  meta = read_meta(manager, step)
  if 'quality' in meta:
    return meta['quality']
  # Earlier versions stored the quality here.
  with reading():
    metrics = manager.metrics(step) or {}
    saved = finite(metrics.get('quality'))
  return logged if saved is None else saved


def finite(quality: float | None) -> float | None:
  """Return the quality, or None where it is not a finite number."""
  if quality is None or not math.isfinite(quality):
    return None
  return quality


def identity_of(
  config: ExperimentConfig, source: Tokenizer, target: Tokenizer
) -> dict[str, Any]:
  """Return what a checkpoint records about the model it belongs to."""
  return {
    'source.model': source.digest,
    'target.model': target.digest,
    'model': model_fields(config),
  }


def check_identity(
  meta: Mapping[str, Any], identity: Mapping[str, Any], path: Path
) -> None:
  """Refuse a checkpoint of other tokenizers, or of another model.

  Args:
    meta: Item `meta` of the checkpoint.
    identity: Identity of this run, from `identity_of`.
    path: Path of the checkpoint.

  Raises:
    InputError: The checkpoint does not belong to this run.
  """
  for name in ('source.model', 'target.model'):
    if meta[name] != identity[name]:
      raise InputError(
        f'{path}: trained with another tokenizer than {name} of this run: '
        f'its SHA-256 is {meta[name][:12]}..., the file has '
        f'{identity[name][:12]}...'
      )
  check_fields(path, meta.get('model', {}), identity['model'])
