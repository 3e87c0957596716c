"""Functions that run on the rows or heads of each shard, without exchange."""

import functools
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import PartitionSpec

from fusion_jax.parallel.mesh import row_axes


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
      lambda mask, *own: function(*own, mask=mask),
      in_specs=(PartitionSpec(), *(heads for _ in arrays)),
      out_specs=heads,
      axis_names=left,
      check_vma=False,
    )(mask, *arrays)

  return on_all_shards
