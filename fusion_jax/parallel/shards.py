"""A function on the rows of each shard by itself, without any exchange."""

import functools
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import PartitionSpec

from fusion_jax.parallel.mesh import row_axes


def over_rows(function: Callable[..., Any]) -> Callable[..., Any]:
  """Calls a function for the rows that each shard has.

  The axis tensor stays with XLA, which cuts the products inside.

  Args:
    function: of something that is whole on all shards, a batch, and more that
      is whole, and of options by name; gives something for every row.

  Returns:
    The function of the whole batch on the present mesh; what it gives lies as
    the rows do.
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
  """Calls a function for the rows that each shard has, and keeps all it gives.

  Args:
    function: as for `over_rows`, but what it gives is of the shard.

  Returns:
    The function of the whole batch on the present mesh. Its arrays are those
    of all shards along a new first axis, which lies as the rows do.
  """

  def on_shard(*arguments):
    return jax.tree.map(lambda x: x[None], function(*arguments))

  return over_rows(on_shard)
