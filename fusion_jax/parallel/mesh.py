"""The device mesh: rows over data and fsdp, matrix products over tensor.

The logical axes of parameters decide how they are sharded on it. A step is
jitted in the same way for any number of devices; one device is a mesh of one.
Functions may run on the rows or heads of each shard, without exchange.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, UInt32

from fusion_jax.config.training import AxisRules, ParallelConfig
from fusion_jax.errors import InputError, require

# The rows of a batch are sharded over these axes, in this order.
ROW_AXES = ('data', 'fsdp')
AXES = (*ROW_AXES, 'tensor')


def make_mesh(
  config: ParallelConfig, devices: Sequence[jax.Device] | None = None
) -> Mesh:
  """Return the mesh of a config."""
  devices = list(jax.devices() if devices is None else devices)
  shape = config.shape(len(devices))
  slices = len({getattr(device, 'slice_index', 0) for device in devices})
  options: Any = {'devices': devices, 'allow_split_physical_axes': True}
  if slices == 1:
    return _mesh(mesh_utils.create_device_mesh(shape, **options))
  outer = over_slices(shape, slices)
  inner = tuple(size // by for size, by in zip(shape, outer, strict=True))
  return _mesh(mesh_utils.create_hybrid_device_mesh(inner, outer, **options))


def data_mesh(devices: Sequence[jax.Device] | None = None) -> Mesh:
  """Return a data-parallel mesh; the rows of a process are adjacent."""
  devices = sorted(
    jax.devices() if devices is None else devices,
    key=lambda device: (device.process_index, device.id),
  )
  return _mesh(np.array(devices).reshape(-1, 1, 1))


def _mesh(arranged: np.ndarray) -> Mesh:
  return Mesh(arranged, AXES, axis_types=(AxisType.Auto,) * len(AXES))


def over_slices(
  shape: tuple[int, int, int], slices: int
) -> tuple[int, int, int]:
  """Return into how many parts the slices divide each axis."""
  data = math.gcd(shape[0], slices)
  fsdp = slices // data
  require(
    shape[1] % fsdp == 0,
    'parallel',
    f'data={shape[0]} x fsdp={shape[1]} does not divide over the {slices} '
    'slices or hosts of the devices; tensor has to stay inside of one',
  )
  return data, fsdp, 1


def replicated(mesh: Mesh) -> NamedSharding:
  """Return the sharding that puts the whole array on every device."""
  return NamedSharding(mesh, PartitionSpec())


def by_rows(mesh: Mesh) -> NamedSharding:
  """Return the sharding of the first axis over the axes `ROW_AXES`."""
  return NamedSharding(mesh, PartitionSpec(ROW_AXES))


def put_like(values: Any, like: Any) -> Any:
  """Put arrays of one process on the shardings of other arrays."""

  def put(value: Array, other: Array) -> Array:
    if not value.is_fully_addressable or other.is_fully_addressable:
      return jax.device_put(value, other.sharding)
    whole = np.asarray(value)
    return jax.make_array_from_callback(
      whole.shape, other.sharding, lambda index: whole[index]
    )

  return jax.tree.map(put, values, like)


def put_whole(values: Any, mesh: Mesh) -> Any:
  """Put whole arrays on every device."""
  local = jax.device_put(values, replicated(mesh.local_mesh))
  if not mesh.is_multi_process:
    return local

  def joined(value: Array) -> Array:
    parts = [shard.data for shard in value.addressable_shards]
    return jax.make_array_from_single_device_arrays(
      value.shape, replicated(mesh), parts
    )

  return jax.tree.map(joined, local)


def row_shards(mesh: Mesh) -> int:
  """Return into how many shards the rows of a batch are divided."""
  return math.prod(mesh.shape[axis] for axis in ROW_AXES)


def own_rows(mesh: Mesh) -> tuple[int, int]:
  """Return which part of the rows this process reads."""
  process, shards = jax.process_index(), row_shards(mesh)
  holders = mesh.devices.reshape(shards, -1)
  numbers = [
    shard
    for shard, devices in enumerate(holders)
    if any(device.process_index == process for device in devices)
  ]
  part, left = divmod(numbers[0], len(numbers))
  adjacent = numbers == list(range(numbers[0], numbers[-1] + 1))
  if left or shards % len(numbers) or not adjacent:
    raise InputError(
      f'config.parallel: {dict(mesh.shape)} gives process {process} rows that '
      'are not side by side; let tensor divide the devices of one process, or '
      'these divide tensor'
    )
  return part, shards // len(numbers)


def row_axes() -> tuple[str, ...]:
  """Return the axes of the current mesh that shard rows; () without a mesh."""
  shape = jax.sharding.get_abstract_mesh().shape
  return tuple(axis for axis in ROW_AXES if shape.get(axis, 1) > 1)


def local_axes() -> tuple[str, ...]:
  """Return the row axes of which one shard is traced, in ROW_AXES order."""
  manual = jax.sharding.get_abstract_mesh().manual_axes
  return tuple(axis for axis in ROW_AXES if axis in manual)


def shard_number() -> UInt32[Array, '']:
  """Return which shard of the rows is traced here; 0 outside a shard_map."""
  local = local_axes()
  if not local:
    return jnp.uint32(0)
  return jax.lax.axis_index(local).astype(jnp.uint32)


def shards_of_rows() -> int:
  """Return into how many shards XLA divides the rows of what is traced here."""
  shape = jax.sharding.get_abstract_mesh().shape
  return 1 if local_axes() else math.prod(shape[axis] for axis in row_axes())


def partition_specs(boxed: Any, rules: AxisRules, mesh: Mesh) -> Any:
  """Return how each array of a tree is sharded."""
  named = dataclasses.asdict(rules).items()
  table = [(name, axis or None) for name, axis in named]

  def spec(axes: PartitionSpec, unboxed: Any) -> Any:
    # The box of a frozen parameter contains no array.
    sharded = nn.logical_to_mesh_axes(tuple(axes), table)
    assert sharded is not None
    return jax.tree.map(lambda x: _dividing(sharded, x.shape, mesh), unboxed)

  return jax.tree.map(spec, nn.get_partition_spec(boxed), nn.unbox(boxed))


def _dividing(
  spec: PartitionSpec, shape: tuple[int, ...], mesh: Mesh
) -> PartitionSpec:
  """Drop mesh axes of size 1, and those that do not divide their dimension."""

  def kept(axis: str | None, size: int) -> str | None:
    pieces = mesh.shape[axis] if axis else 1
    return axis if pieces > 1 and size % pieces == 0 else None

  axes = [kept(axis, size) for axis, size in zip(spec, shape, strict=False)]
  while axes and axes[-1] is None:
    axes.pop()
  return PartitionSpec(*axes)


def shardings(specs: Any, mesh: Mesh) -> Any:
  """Return the specs as shardings on a mesh."""
  return jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)


def over_rows(function: Callable[..., Any]) -> Callable[..., Any]:
  """Return a function that is called separately for the rows of each shard.

  The axis tensor is left to XLA, which shards the matrix products inside.
  """

  @functools.wraps(function)
  def on_all_shards(whole, batch, *others, **options):
    axes = row_axes()
    on_shard = functools.partial(function, **options)
    if not axes:
      return on_shard(whole, batch, *others)
    uncut = PartitionSpec()
    return jax.shard_map(
      on_shard,
      in_specs=(uncut, PartitionSpec(axes), *(uncut for _ in others)),
      out_specs=PartitionSpec(axes),
      axis_names=set(axes),
      check_vma=False,
    )(whole, batch, *others)

  return on_all_shards


def on_each_shard(function: Callable[..., Any]) -> Callable[..., Any]:
  """Return a function that collects one result for each shard of the rows."""

  def on_shard(*arguments):
    return jax.tree.map(lambda x: x[None], function(*arguments))

  return over_rows(on_shard)


def over_heads(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
  """Return a function that is called separately for the heads of each device.

  A kernel that XLA cannot divide needs this: everything it sees is local.
  """

  @functools.wraps(function)
  def on_all_shards(*arrays, mask):
    mesh = jax.sharding.get_abstract_mesh()
    left = set(mesh.axis_names) - set(mesh.manual_axes)
    if not left:
      return function(*arrays, mask=mask)
    divides = arrays[0].shape[2] % mesh.shape.get('tensor', 1) == 0
    heads = PartitionSpec(None, None, 'tensor' if divides else None)
    return jax.shard_map(
      lambda mask, *local: function(*local, mask=mask),
      in_specs=(PartitionSpec(), *(heads for _ in arrays)),
      out_specs=heads,
      axis_names=left,
      check_vma=False,
    )(mask, *arrays)

  return on_all_shards
