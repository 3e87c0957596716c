"""The device mesh: data parallel over all devices; one device is a mesh of one.

A step is jitted once for any number of devices. Parameters are replicated,
batches are cut by rows, and XLA adds the sum of the gradients.
"""

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

DATA_AXIS = 'data'


def data_mesh(devices: int | None = None) -> Mesh:
  """A one-axis mesh over the first `devices` devices; None: over all."""
  chosen = jax.devices()[:devices]
  return jax.make_mesh(
    (len(chosen),),
    (DATA_AXIS,),
    axis_types=(AxisType.Auto,),
    devices=chosen,
  )


def replicated(mesh: Mesh) -> NamedSharding:
  """The whole array on every device."""
  return NamedSharding(mesh, PartitionSpec())


def by_rows(mesh: Mesh) -> NamedSharding:
  """The first axis cut over the devices."""
  return NamedSharding(mesh, PartitionSpec(DATA_AXIS))
