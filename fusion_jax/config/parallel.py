"""How the devices are arranged, and which axis of an array is on which."""

import math
from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from fusion_jax.bounds import Natural
from fusion_jax.config.section import section
from fusion_jax.errors import require

MeshAxis = Literal['', 'fsdp', 'tensor']
_Devices: TypeAlias = Annotated[int, Field(ge=-1, le=2**20)]


@section('parallel.rules')
class AxisRules:
  """The axis of the mesh that each logical axis of a parameter is sharded over.

  Empty: it stays whole. An axis of the mesh shards one axis of a parameter at
  most, the first that names it; a size that it does not divide stays whole.
  """

  vocab: MeshAxis = 'tensor'
  """Pieces of a vocabulary."""

  embed: MeshAxis = 'fsdp'
  """The model width D, and concatenations of it."""

  heads: MeshAxis = 'tensor'
  """Heads times head width."""

  mlp: MeshAxis = 'tensor'
  """The hidden axis of feed-forward layers and of what fuses layers."""

  position: MeshAxis = ''
  """Learned positions."""

  norm: MeshAxis = ''
  """Scales and offsets of norms and gates."""

  layers: MeshAxis = ''
  """Layers of a stack."""

  hops: MeshAxis = ''
  """Hops of multi-hop attention."""

  groups: MeshAxis = ''
  """Groups of GTRANS."""

  capsules: MeshAxis = ''
  """Capsules of routing."""


@section('parallel')
class ParallelConfig:
  """The mesh: its three axes multiply to the number of devices.

  The rows of a batch are sharded over data and fsdp; parameters and optimizer
  state over fsdp (and gathered for a step) and over tensor (which also shards
  the products). -1 is what the other axes leave.
  """

  data: _Devices = -1
  """Devices along the axis data."""

  fsdp: _Devices = 1
  """Devices along the axis fsdp."""

  tensor: _Devices = 1
  """Devices along the axis tensor."""

  rules: AxisRules = AxisRules()
  """How the axes of parameters are sharded."""

  lost_after: Natural = 60
  """Seconds without a heartbeat of one process after which the others end; 0:
  they wait."""

  stalled_after: Natural = 3_600
  """Seconds in which no process begins a step, validations included, after
  which all end; 0: they wait."""

  def __post_init__(self):
    for field, size in self._sizes().items():
      require(
        size >= 1 or size == -1,
        f'parallel.{field}',
        f'must be at least 1, or -1 for the rest, got {size}',
      )
    rest = [field for field, size in self._sizes().items() if size == -1]
    require(
      len(rest) <= 1,
      f'parallel.{rest[-1] if rest else "data"}',
      f'only one axis can be -1, the rest; {" and ".join(rest)} are',
    )

  def _sizes(self) -> dict[str, int]:
    return {'data': self.data, 'fsdp': self.fsdp, 'tensor': self.tensor}

  def shape(self, devices: int) -> tuple[int, int, int]:
    """Return the sizes of the axes data, fsdp and tensor."""
    sizes = self._sizes()
    given = math.prod(size for size in sizes.values() if size != -1)
    rest = devices // given
    data, fsdp, tensor = (
      rest if size == -1 else size for size in sizes.values()
    )
    listed = ' x '.join(f'{field}={size}' for field, size in sizes.items())
    require(
      data * fsdp * tensor == devices,
      'parallel',
      f'{listed} does not multiply to the {devices} devices there are',
    )
    return data, fsdp, tensor
