"""Chips that can be compiled for, topologies of them, and their devices.

TPUs: the tables of key specifications in docs.cloud.google.com/tpu/docs/v4,
/v5e, /v5p and /v6e, except the links of v4, six of 50e9; memory: what libtpu
0.0.42 leaves to a program. GPUs: nominal figures of the SXM cards and of DGX,
not looked up in a source; memory: the three quarters that JAX allocates unless
XLA_PYTHON_CLIENT_MEM_FRACTION says otherwise.
"""

import dataclasses
import importlib.metadata
import importlib.util
import math
import os
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from fusion_jax.errors import InputError

GIB = 2**30


class Chip(NamedTuple):
  """One kind of chip.

  Attributes:
    memory: Bytes of its HBM that a program can use.
    flops: Operations per second of bfloat16 matrix products.
    bandwidth: Bytes per second of its HBM.
    link: Most bytes per second that it sends inside its slice or host.
    clock: Cycles per second of a TPU, 0 for GPUs: the peak over the operations
      per cycle, which are 2 * 128 * 128 for each unit of products (v4 and v5p
      have eight, v5e four) and 2 * 256 * 256 for each of the four of a v6e. A
      compiled product of 4,096 x 4,096 matrices takes 87 to 97 % of these.
    largest: Number of chips of the largest slice, or of a host.
  """

  memory: float
  flops: float
  bandwidth: float
  link: float
  clock: float
  largest: int


CHIPS = {
  'v4': Chip(30.75 * GIB, 275e12, 1.2e12, 300e9, 1.05e9, 4_096),
  'v5e': Chip(15.75 * GIB, 197e12, 0.819e12, 200e9, 1.5e9, 256),
  'v5p': Chip(95.74 * GIB, 459e12, 2.765e12, 600e9, 1.75e9, 6_144),
  'v6e': Chip(31.25 * GIB, 918e12, 1.6e12, 400e9, 1.75e9, 256),
  'a100': Chip(0.75 * 85.1e9, 312e12, 2.039e12, 300e9, 0, 8),
  'h100': Chip(0.75 * 84.9e9, 989e12, 3.35e12, 450e9, 0, 8),
  'h200': Chip(0.75 * 150.1e9, 989e12, 4.8e12, 450e9, 0, 8),
}

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
# Values for XLA's GpuTargetConfigProto: capability, cores, bytes per second,
# cache, GHz, memory, shared memory of a core and of a block. h100 is as in
# XLA's own specs (target_config/specs/h100_sxm.txtpb), the others are nominal.
_GPUS = {
  'a100': (8, 108, 2_039e9, 41_943_040, 1.41, 85.1e9, 167_936, 166_912),
  'h100': (9, 132, 3_352e9, 52_428_800, 1.98, 84.9e9, 233_472, 232_448),
  'h200': (9, 132, 4_800e9, 52_428_800, 1.98, 150.1e9, 233_472, 232_448),
}
_CUDA_PLUGINS = 'jax_plugins.xla_cuda13', 'jax_plugins.xla_cuda12'
_GPU_TARGET = """
gpu_device_info {{
  cuda_compute_capability {{ major: {0} }}
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: {6}
  shared_memory_per_block_optin: {7}
  threads_per_core_limit: 2048
  core_count: {1}
  fpus_per_core: {8}
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: {2:.0f}
  l2_cache_size: {3}
  clock_rate_ghz: {4}
  device_memory_size: {5:.0f}
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 }}
device_description_str: "{9}"
"""


@dataclasses.dataclass(frozen=True)
class Topology:
  """Chips to compile for.

  Attributes:
    name: Name as the user gave it.
    chip: Name of a row of `CHIPS`.
    slices: Number of slices of a pod, or of GPU hosts, joined by a network.
    shape: Number of chips of a slice along its axes; one axis for GPUs.
  """

  name: str
  chip: str
  slices: int
  shape: tuple[int, ...]

  @property
  def is_gpu(self) -> bool:
    """Whether its chips are cards of hosts."""
    return self.chip in _GPUS

  @property
  def figures(self) -> Chip:
    """The figures of one chip."""
    return CHIPS[self.chip]

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
  slices, chip, shape = match.groups()
  if chip not in CHIPS:
    raise InputError(
      f'--topology: no chip {chip!r}; there are {", ".join(CHIPS)}'
    )
  topology = Topology(
    name, chip, int(slices or 1), tuple(map(int, shape.split('x')))
  )
  axes = {'v4': 3, 'v5p': 3}.get(chip, 1 if chip in _GPUS else 2)
  figures, size = topology.figures, math.prod(topology.shape)
  if len(topology.shape) != axes or not topology.size:
    example = {1: '8', 2: '4x4', 3: '2x2x2'}[axes]
    raise InputError(
      f'--topology: {name!r}: {chip} has {axes} axes, as in {chip}:{example}'
    )
  if size > figures.largest:
    raise InputError(
      f'--topology: {name!r}: {size} chips, the largest {chip} has '
      f'{figures.largest}; several are 2x{chip}:... and so on'
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
  if importlib.util.find_spec('libtpu') is None:
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
  figures = _GPUS[topology.chip]
  floats = 64 if topology.chip == 'a100' else 128
  target = _GPU_TARGET.format(*figures, floats, topology.chip.upper())
  cards = f'1x{topology.slices}x{topology.shape[0]}'
  return '', {'target_config': target, 'topology': cards}


def _is_installed(module: str) -> bool:
  try:
    return importlib.util.find_spec(module) is not None
  except ModuleNotFoundError:
    return False
