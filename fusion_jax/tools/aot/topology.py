"""Topologies of absent chips: their names, and devices to compile for."""

import importlib.metadata
import importlib.util
import math
import os
import re
import tomllib
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fusion_jax.errors import InputError

GIB = 2**30

_NAME = re.compile(r'(?:(\d{1,6})x)?([a-z]\w*):(\d{1,6}(?:x\d{1,6}){0,2})')
# What libtpu asks about the machine that it believes to run on. The topology
# alone decides what is compiled for.
_TPU_HOST = {
  'TPU_SKIP_MDS_QUERY': '1',
  'TPU_ACCELERATOR_TYPE': 'v5litepod-8',
  'TPU_WORKER_HOSTNAMES': 'localhost',
  'TPU_WORKER_ID': '0',
  'ALLOW_MULTIPLE_LIBTPU_LOAD': '1',
}
_CUDA_PLUGINS = 'jax_plugins.xla_cuda13', 'jax_plugins.xla_cuda12'
# What all cards have in XLA's GpuTargetConfigProto.
_GPU_TARGET = """
gpu_device_info {{
  {figures}
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  threads_per_core_limit: 2048
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 }}
device_description_str: "{name}"
"""


class Chip(NamedTuple):
  """One kind of chip; see the head of chips.toml."""

  axes: int
  memory: float
  flops: float
  bandwidth: float
  link: float
  largest: int
  clock: float = 0.0
  target: Mapping[str, Any] = types.MappingProxyType({})


_FILE = Path(__file__).with_name('chips.toml')
CHIPS = {
  name: Chip(**figures)
  for name, figures in tomllib.loads(_FILE.read_text('utf-8')).items()
}


class Topology(NamedTuple):
  """Chips to compile for: slices, or hosts of GPUs, joined by a network."""

  name: str
  chip: str
  slices: int
  shape: tuple[int, ...]

  @property
  def figures(self) -> Chip:
    """The figures of one chip."""
    return CHIPS[self.chip]

  @property
  def is_gpu(self) -> bool:
    """Whether its chips are cards of hosts."""
    return bool(self.figures.target)

  @property
  def size(self) -> int:
    """The number of all chips."""
    return self.slices * math.prod(self.shape)


def read_topology(name: str) -> Topology:
  """Read 'v5e:16x16', '2xv5e:16x16' for two slices, or 'h100:8'."""
  match = _NAME.fullmatch(name)
  if not match:
    raise InputError(
      f'--topology: {name!r} is none; give CHIP:AxB, CHIP:AxBxC or GPU:CARDS, '
      'or SLICESxCHIP:AxB, such as v5e:16x16, 2xv5e:16x16, v5p:4x4x4, h100:8'
    )
  slices, chip, sizes = match.groups()
  if chip not in CHIPS:
    raise InputError(
      f'--topology: no chip {chip!r}; there are {", ".join(CHIPS)}'
    )
  shape = tuple(map(int, sizes.split('x')))
  topology = Topology(name, chip, int(slices or 1), shape)
  axes, largest = CHIPS[chip].axes, CHIPS[chip].largest
  if len(shape) != axes or not topology.size:
    example = {1: '8', 2: '4x4', 3: '2x2x2'}[axes]
    raise InputError(
      f'--topology: {name!r}: {chip} has {axes} axes, as in {chip}:{example}'
    )
  if math.prod(shape) > largest:
    raise InputError(
      f'--topology: {name!r}: {math.prod(shape)} chips, the largest {chip} has '
      f'{largest}; several are 2x{chip}:... and so on'
    )
  return topology


def without_accelerator() -> None:
  """Keep JAX from looking for accelerators; call it before importing JAX."""
  os.environ.update(_TPU_HOST | {'JAX_PLATFORMS': 'cpu'})


def topology_devices(topology: Topology) -> Sequence[Any]:
  """Return a topology's devices; programs are compiled for them, not run."""
  from jax.experimental import topologies

  name, options = _gpus(topology) if topology.is_gpu else _tpus(topology)
  platform = 'cuda' if topology.is_gpu else 'tpu'
  try:
    return topologies.get_topology_desc(name, platform, **options).devices
  except Exception as error:  # Plugins raise many types.
    raise InputError(
      f'--topology: {topology.name!r}: {str(error).splitlines()[0]}'
    ) from error


def _tpus(topology: Topology) -> tuple[str, dict[str, Any]]:
  """Return the name and the options of a topology for libtpu."""
  if not _is_installed('libtpu'):
    version = importlib.metadata.version('jax')
    raise InputError(
      f'--topology: {topology.name!r} needs libtpu, which compiles for TPUs '
      f'where none is: pip install "jax[tpu]=={version}"'
    )
  options: dict[str, Any] = {}
  if topology.slices > 1:
    options['num_slices'] = topology.slices
  if topology.chip == 'v4':
    options['chip_config_name'] = 'megacore'
  if math.prod(topology.shape) == 1:
    options['chips_per_host_bounds'] = [1, 1, 1]
  shape = 'x'.join(map(str, topology.shape))
  return f'{topology.chip}:{shape}', options


def _gpus(topology: Topology) -> tuple[str, dict[str, Any]]:
  """Return the name and the options of a topology for the CUDA plugin."""
  if not any(map(_is_installed, _CUDA_PLUGINS)):
    version = importlib.metadata.version('jax')
    raise InputError(
      f'--topology: {topology.name!r} needs the CUDA plugin, which compiles '
      f'for GPUs where none is: pip install --no-deps '
      f'jax-cuda13-pjrt=={version} jax-cuda13-plugin=={version}'
    )
  figures = (_field(*item) for item in topology.figures.target.items())
  target = _GPU_TARGET.format(
    figures='\n  '.join(figures), name=topology.chip.upper()
  )
  cards = f'1x{topology.slices}x{topology.shape[0]}'
  return '', {'target_config': target, 'topology': cards}


def _field(name: str, value: Any) -> str:
  """Write a field of a Protobuf message as text."""
  if isinstance(value, Mapping):
    return f'{name} {{ {" ".join(_field(*part) for part in value.items())} }}'
  return f'{name}: {value}'


def _is_installed(module: str) -> bool:
  try:
    return importlib.util.find_spec(module) is not None
  except ModuleNotFoundError:
    return False
