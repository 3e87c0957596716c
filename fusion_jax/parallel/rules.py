"""From the logical axes of parameters to the mesh."""

import dataclasses
import math
from typing import Any

import jax
from flax import linen as nn
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fusion_jax.parallel_options import AxisRules


def partition_specs(boxed: Any, rules: AxisRules, mesh: Mesh) -> Any:
  """How each array of a tree is cut.

  Args:
    boxed: shapes or arrays in Flax's boxes with their logical axes, as
      `boxed_parameters` gives them, or any state made of such boxes; what has
      no box is left whole.
    rules: the mesh axis of each logical axis.
    mesh: gives the sizes.

  Returns:
    A `PartitionSpec` for each array, in the tree without boxes.
  """
  table = [
    (name, axis or None) for name, axis in dataclasses.asdict(rules).items()
  ]

  def spec(axes: PartitionSpec, unboxed: Any) -> Any:
    # What is frozen has a box without an array.
    own = nn.logical_to_mesh_axes(axes, table)
    return jax.tree.map(lambda x: _dividing(own, x.shape, mesh), unboxed)

  return jax.tree.map(
    spec,
    nn.get_partition_spec(boxed),
    nn.unbox(boxed),
    is_leaf=lambda x: isinstance(x, PartitionSpec),
  )


def _dividing(
  spec: PartitionSpec, shape: tuple[int, ...], mesh: Mesh
) -> PartitionSpec:
  """The spec without axes of size 1 or that do not divide their dimension."""

  def kept(axis: str | None, size: int) -> str | None:
    pieces = math.prod(mesh.shape[axis] for axis in [axis] if axis)
    return axis if pieces > 1 and size % pieces == 0 else None

  axes = [kept(axis, size) for axis, size in zip(spec, shape, strict=False)]
  while axes and axes[-1] is None:
    axes.pop()
  return PartitionSpec(*axes)


def shardings(specs: Any, mesh: Mesh) -> Any:
  """The same on a mesh."""
  return jax.tree.map(
    lambda spec: NamedSharding(mesh, spec),
    specs,
    is_leaf=lambda x: isinstance(x, PartitionSpec),
  )
