"""Reading of checkpoints, with checks that they are what was written.

The item `meta` has the digests of all arrays, and one of itself.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from fusion_jax.config.serialization import check_format
from fusion_jax.errors import InputError, first_line
from fusion_jax.files import DamagedError, check_seal
from fusion_jax.parallel.processes import Result, on_all
from fusion_jax.runs.integrity import check_arrays

logger = logging.getLogger(__name__)

# Seconds between two looks at a folder that may be deleted.
_LOOK_SECONDS = 0.1


def open_to_read(directory: Path) -> ocp.CheckpointManager:
  """Return an Orbax manager of checkpoints that this process reads alone.

  With Orbax's default, a process that cannot read a file leaves the others
  waiting for it.
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
  """Read on every process, and fail on all if one of them cannot read."""
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
  """Read the item `meta` of a checkpoint."""
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
  arrays = read_by_all(read)
  read_by_all(lambda: check_arrays(arrays, meta['arrays']))
  return arrays
