"""How the devices are arranged, and which axis of an array lies on which."""

import dataclasses
import math
import types
from typing import Annotated, Literal, TypeAlias

from fusion_jax.bounds import Bound, Natural, check_fields
from fusion_jax.errors import require

_STRICT = types.MappingProxyType({'extra': 'forbid'})

MeshAxis = Literal['', 'fsdp', 'tensor']
_Devices: TypeAlias = Annotated[int, Bound('<=', 2**20), Bound('>=', -1)]


@dataclasses.dataclass(frozen=True)
class AxisRules:
  """The axis of the mesh that each logical axis of a parameter is cut over.

  '' leaves it whole. An axis of the mesh cuts one axis of a parameter at most,
  the first that names it; a size that it does not divide stays whole.
  """

  __pydantic_config__ = _STRICT

  # Pieces of a vocabulary.
  vocab: MeshAxis = 'tensor'
  # The model width D, and concatenations of it.
  embed: MeshAxis = 'fsdp'
  # Heads times head width.
  heads: MeshAxis = 'tensor'
  # The hidden axis of feed-forward layers and of what fuses layers.
  mlp: MeshAxis = 'tensor'
  # Learned positions.
  position: MeshAxis = ''
  # Scales and offsets of norms and gates.
  norm: MeshAxis = ''
  # Layers of a stack, hops, groups and capsules: few, and small.
  layers: MeshAxis = ''
  hops: MeshAxis = ''
  groups: MeshAxis = ''
  capsules: MeshAxis = ''


@dataclasses.dataclass(frozen=True)
class ParallelConfig:
  """The mesh: its three axes multiply to the number of devices."""

  __pydantic_config__ = _STRICT

  # Devices along each axis; -1 is what the others leave. The rows of a batch
  # are cut over data and fsdp; parameters and optimizer state over fsdp
  # (gathered for a step) and over tensor (which also cuts the products).
  data: _Devices = -1
  fsdp: _Devices = 1
  tensor: _Devices = 1
  rules: AxisRules = AxisRules()
  # Of several processes: seconds without a sign of life of one, and without a
  # new step of any, validations included, after which the others end; 0: wait.
  lost_after: Natural = 60
  stalled_after: Natural = 3_600

  def __post_init__(self):
    check_fields(self, 'parallel')
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
    """The sizes of the axes data, fsdp and tensor.

    Args:
      devices: of all processes.

    Returns:
      Three sizes whose product is `devices`.

    Raises:
      InputError: there are none.
    """
    sizes = self._sizes()
    given = math.prod(size for size in sizes.values() if size != -1)
    rest = devices // given
    shape = tuple(rest if size == -1 else size for size in sizes.values())
    listed = ' x '.join(f'{field}={size}' for field, size in sizes.items())
    require(
      math.prod(shape) == devices,
      'parallel',
      f'{listed} does not multiply to the {devices} devices there are',
    )
    return shape
