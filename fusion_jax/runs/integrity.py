"""Reading of checkpoints, with checks that they are what was written.

The item `meta` of a checkpoint has the digests of all arrays, one of itself,
and what says of which model it is.

Digests of arrays are computed at the speed of memory. Let w_i be the bits of
element i in row-major order as a 32-bit word, c an odd constant, and m and n
one-to-one maps of words that mix all their bits. Then

  s = sum_i m(w_i xor c i) mod 2^32,  t = sum_i n(m(w_i xor c i)) mod 2^32.

If one element differs, one term of each sum differs, and so do s and t. Any
other damage is missed with probability 2^-64. (With sums of w_i times odd
weights, two flipped signs would always cancel: 2^31 times an odd number is
2^31.) Sums of integers depend neither on their order nor on how an array is
sharded, so each device sums its own shard.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jaxtyping import Array, UInt32

from fusion_jax.config import ExperimentConfig
from fusion_jax.config.serialization import check_format, flatten, is_among
from fusion_jax.data.tokenizer import Tokenizer
from fusion_jax.errors import InputError, first_line
from fusion_jax.files import DamagedError, check_seal
from fusion_jax.layers.dropout import lowbias32, row_major_positions
from fusion_jax.models.transformer import Parameters, path_name
from fusion_jax.parallel.processes import Result, on_all

logger = logging.getLogger(__name__)

# Seconds between two looks at a folder that may be deleted.
_LOOK_SECONDS = 0.2

_ODD = np.uint32(0x9E3779B9)

# Fields that decide what a trained model computes; tags are part of its input.
_DECISIVE = ('model', 'data.source_tag', 'data.target_tag')

# Exceptions: dropout and remat matter in training only, and trained parameters
# do not depend on how they were initialised.
_FREE = (
  'model.attention_implementation',
  'model.dropout',
  'model.*_dropout',
  'model.*.options.dropout',
  'model.dropout_generator',
  'model.flatten_positions',
  'model.initialization',
  'model.remat',
  'model.remat_policy',
)


def array_digests(tree: Any) -> dict[str, dict[str, Any]]:
  """Return the digest of each array.

  Arrays of equal shape, dtype and layout share a program.
  """
  leaves = jax.tree.leaves_with_path(tree)
  # They run one after the other: on a CPU with few cores, programs with
  # collectives that run at the same time wait for one another forever.
  sums = [jax.device_get(_sums_where_it_lies(leaf)) for _, leaf in leaves]
  return {
    jax.tree_util.keystr(path, simple=True, separator='/'): {
      'shape': list(leaf.shape),
      'digest': f'{s:08x}{t:08x}',
    }
    for (path, leaf), (s, t) in zip(leaves, sums, strict=True)
  }


def check_arrays(tree: Any, written: Mapping[str, Mapping[str, Any]]) -> None:
  """Compare arrays with their digests."""
  digests = array_digests(tree)
  other = [name for name in digests if written.get(name) != digests[name]]
  if other:
    more = f' and {len(other) - 1} more arrays' if len(other) > 1 else ''
    raise DamagedError(f'{other[0]}{more} do not agree with their digests')


def _sums_where_it_lies(
  array: Array | np.ndarray,
) -> tuple[UInt32[Array, ''], UInt32[Array, '']]:
  """Return the sums, computed on the devices of the array under any mesh."""
  array = jnp.asarray(array)
  sharding = array.sharding
  if isinstance(sharding, jax.sharding.NamedSharding):
    mesh = sharding.mesh
    assert isinstance(mesh, jax.sharding.Mesh), 'the array lies nowhere'
  else:
    (device,) = sharding.device_set
    mesh = jax.sharding.Mesh(np.array([device]), ('device',))
  with jax.set_mesh(mesh):
    return _sums(array)


@jax.jit
def _sums(array: Array) -> tuple[UInt32[Array, ''], UInt32[Array, '']]:
  first = lowbias32(_words(array) ^ (row_major_positions(array.shape) * _ODD))
  second = (first ^ (first >> 15)) * _ODD
  # In one common reduction XLA reads the array once and uses vectors: on a CPU
  # this is 20 times as fast as two sums.
  zero = jnp.uint32(0)
  return jax.lax.reduce(
    (first, second),
    (zero, zero),
    lambda a, b: (a[0] + b[0], a[1] + b[1]),
    tuple(range(array.ndim)),
  )


def _words(array: Array) -> UInt32[Array, '...']:
  """Return the bits of each element, which has at most 32."""
  if array.dtype == bool:
    return array.astype(jnp.uint32)
  unsigned = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}[array.dtype.itemsize]
  return jax.lax.bitcast_convert_type(array, unsigned).astype(jnp.uint32)


def identity_of(
  config: ExperimentConfig, source: Tokenizer, target: Tokenizer
) -> dict[str, Any]:
  """Return what a checkpoint records about the model it belongs to."""
  fields = {
    name: value
    for name, value in flatten(config).items()
    if is_among(name, _DECISIVE) and not is_among(name, _FREE)
  }
  tokenizers = {'source.model': source.digest, 'target.model': target.digest}
  return {**tokenizers, 'model': fields}


def _check_identity(
  meta: Mapping[str, Any], identity: Mapping[str, Any], path: Path
) -> None:
  for name in ('source.model', 'target.model'):
    if meta[name] != identity[name]:
      raise InputError(
        f'{path}: trained with another tokenizer than {name} of this run'
      )
  stored, wanted = meta['model'], identity['model']
  _check_same(path, stored, {name: wanted.get(name) for name in stored})


def _check_same(
  path: Path, there: Mapping[str, Any], here: Mapping[str, Any]
) -> None:
  different = [
    f'{name} is {there.get(name)!r} there and {here.get(name)!r} here'
    for name in sorted(there.keys() | here.keys())
    if there.get(name) != here.get(name)
  ]
  if different:
    raise InputError(
      f'{path}: holds another model than that of config.json: '
      f'{", ".join(different[:3])}; put back the config.json that it was '
      'trained with, or give another --workdir'
    )


def open_checkpoints(directory: Path) -> ocp.CheckpointManager:
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
  library = logging.getLogger('absl')
  level = library.level
  library.setLevel(max(level, logging.ERROR))  # It warns that it only reads.
  try:
    return ocp.CheckpointManager(directory.absolute(), options=options)
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
    cause: BaseException = error
    while cause.__cause__:
      cause = cause.__cause__
    # What TensorStore or Python said, without what Orbax adds to it.
    said = first_line(cause).partition(' [tensorstore_spec=')[0]
    raise DamagedError(said) from error


def is_being_deleted(path: Path) -> bool:
  """Return whether a checkpoint is gone or is losing files."""
  before = _files(path)
  time.sleep(_LOOK_SECONDS)
  return not path.exists() or _files(path) != before


def _files(path: Path) -> set[Path]:
  with contextlib.suppress(OSError):
    return set(path.rglob('*'))
  return set()


def warn_damaged(path: Path, error: DamagedError) -> None:
  """Warn that a checkpoint is not used, unless it was deleted meanwhile."""
  if path.exists():
    logger.warning('checkpoint %s is damaged and is left out: %s', path, error)


def read_meta(manager: ocp.CheckpointManager, step: int) -> dict[str, Any]:
  """Read the item `meta` of a checkpoint."""
  path = Path(manager.directory) / str(step)
  args = ocp.args.Composite(meta=ocp.args.JsonRestore())
  with reading():
    check_regular_files(path)
    meta = manager.restore(step, args=args).meta
    check_seal(meta, 'meta')
    check_format(meta, path)
  return meta


def read_fitting_meta(
  manager: ocp.CheckpointManager,
  step: int,
  identity: Mapping[str, Any],
  wanted: Parameters,
) -> dict[str, Any]:
  """Read the item `meta`, and refuse a checkpoint of another model."""
  path = Path(manager.directory) / str(step)
  meta = read_meta(manager, step)
  with reading():
    _check_identity(meta, identity, path)
    stored = {
      name.removeprefix('parameters/'): array['shape']
      for name, array in meta['arrays'].items()
      if name.startswith('parameters/')
    }
    shapes = {
      path_name(place): list(leaf.shape)
      for place, leaf in jax.tree.leaves_with_path(wanted)
    }
    _check_same(path, stored, shapes)
  return meta


def check_regular_files(path: Path) -> None:
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
  """Read the items that consist of arrays; all processes must call it."""
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
