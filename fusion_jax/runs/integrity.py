"""Checks that a checkpoint is what was written, and of this model.

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

import fnmatch
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, UInt32

from fusion_jax.config import ExperimentConfig
from fusion_jax.config.serialization import flatten
from fusion_jax.data.tokenizer import Tokenizer
from fusion_jax.errors import InputError
from fusion_jax.json_files import DamagedError
from fusion_jax.layers.dropout import lowbias32, row_major_positions
from fusion_jax.models.transformer import Parameters, path_name

_ODD = np.uint32(0x9E3779B9)

# Fields that decide what a trained model computes; tags are part of its input.
_DECISIVE = ('model.*', 'data.source_tag', 'data.target_tag')

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

  Arrays of equal shape, dtype and layout share a program. So there are few
  programs, also for a deep model.
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
  return {
    'source.model': source.digest,
    'target.model': target.digest,
    'model': _model_fields(config),
  }


def check_identity(
  meta: Mapping[str, Any], identity: Mapping[str, Any], path: Path
) -> None:
  """Refuse a checkpoint of other tokenizers, or of another model."""
  for name in ('source.model', 'target.model'):
    if meta[name] != identity[name]:
      raise InputError(
        f'{path}: trained with another tokenizer than {name} of this run: '
        f'its SHA-256 is {meta[name][:12]}..., the file has '
        f'{identity[name][:12]}...'
      )
  _check_fields(path, meta['model'], identity['model'])


def _model_fields(config: ExperimentConfig) -> dict[str, Any]:
  """Return the fields, by dotted names, that decide what a model computes."""
  return {
    name: value
    for name, value in flatten(config).items()
    if _matches(name, _DECISIVE) and not _matches(name, _FREE)
  }


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
  return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _check_fields(
  path: Path, stored: Mapping[str, Any], wanted: Mapping[str, Any]
) -> None:
  """Refuse a checkpoint of another model, even if its arrays fit."""
  different = [
    f'{name} is {stored[name]!r} there and {wanted[name]!r} here'
    for name in wanted
    if name in stored and stored[name] != wanted[name]
  ]
  if different:
    raise _another_model(path, ', '.join(different))


def check_model(
  path: Path, meta: Mapping[str, Any], wanted: Parameters
) -> None:
  """Refuse a checkpoint whose parameters do not fit."""
  stored = {
    name.removeprefix('parameters/'): tuple(array['shape'])
    for name, array in meta['arrays'].items()
    if name.startswith('parameters/')
  }
  difference = _difference(stored, _shapes(wanted))
  if difference:
    raise _another_model(path, difference)


def _another_model(path: Path, difference: str) -> InputError:
  return InputError(
    f'{path}: holds another model than that of config.json: {difference}; '
    'put back the config.json that it was trained with, or give another '
    '--workdir'
  )


def _shapes(tree: Any) -> dict[str, tuple[int, ...]]:
  return {
    path_name(path): tuple(leaf.shape)
    for path, leaf in jax.tree.leaves_with_path(tree)
  }


def _difference(
  stored: dict[str, tuple[int, ...]], wanted: dict[str, tuple[int, ...]]
) -> str:
  """Describe the first parameter that differs; '' if none does."""
  for name in sorted(stored | wanted):
    there, here = stored.get(name), wanted.get(name)
    if there is None:
      return f'it has no {name}'
    if here is None:
      return f'it has {name}, which this model lacks'
    if there != here:
      return f'{name} is {list(there)} there and {list(here)} here'
  return ''
