"""Topologies of absent chips: their names, and devices to compile for."""

import importlib.metadata
import math
import os
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fusion_jax.errors import InputError, first_line

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
# What all cards have in XLA's GpuTargetConfigProto.
_GPU_TARGET = """
gpu_device_info {{
  {target}
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
  target: str = ''


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


def read_topology(name: str) -> Topology:
  """Read 'v5e:16x16', '2xv5e:16x16' for two slices, or 'h100:8'."""
  match = _NAME.fullmatch(name)
  if not match or match[2] not in CHIPS:
    raise InputError(
      f'--topology: {name!r} is none; give CHIP:AxB, CHIP:AxBxC, GPU:CARDS or '
      f'SLICESxCHIP:AxB, such as 2xv5e:16x16; there are {", ".join(CHIPS)}'
    )
  slices, shape = int(match[1] or 1), tuple(map(int, match[3].split('x')))
  axes, largest = CHIPS[match[2]].axes, CHIPS[match[2]].largest
  fits = len(shape) == axes and 0 < math.prod(shape) <= largest
  if not fits or not slices:
    raise InputError(
      f'--topology: {name!r}: {match[2]} has {axes} axes and at most {largest} '
      f'chips; several slices are 2x{match[2]}:... and so on'
    )
  return Topology(name, match[2], slices, shape)


def without_accelerator() -> None:
  """Keep JAX from looking for accelerators; call it before importing JAX."""
  os.environ.update(_TPU_HOST | {'JAX_PLATFORMS': 'cpu'})


def topology_devices(topology: Topology) -> Sequence[Any]:
  """Return a topology's devices; programs are compiled for them, not run."""
  from jax.experimental import topologies

  version = importlib.metadata.version('jax')
  if topology.is_gpu:
    describe, platform = _of_gpus, 'cuda'
    needs = f'--no-deps jax-cuda13-pjrt=={version}'
    needs += f' jax-cuda13-plugin=={version}'
  else:
    describe, platform, needs = _of_tpus, 'tpu', f'"jax[tpu]=={version}"'
  name, options = describe(topology)
  try:
    return topologies.get_topology_desc(name, platform, **options).devices
  except Exception as error:  # Plugins raise many types.
    raise InputError(
      f'--topology: {topology.name!r}: {first_line(error)} (compiling for it '
      f'needs: pip install {needs})'
    ) from error


def _of_tpus(topology: Topology) -> tuple[str, dict[str, Any]]:
  """Return the name and the options of a topology for libtpu."""
  options: dict[str, Any] = {}
  if topology.slices > 1:
    options['num_slices'] = topology.slices
  if topology.chip == 'v4':
    options['chip_config_name'] = 'megacore'
  if math.prod(topology.shape) == 1:
    options['chips_per_host_bounds'] = [1, 1, 1]
  return f'{topology.chip}:{"x".join(map(str, topology.shape))}', options


def _of_gpus(topology: Topology) -> tuple[str, dict[str, Any]]:
  """Return the name and the options of a topology for the CUDA plugin."""
  target = _GPU_TARGET.format(
    target=topology.figures.target, name=topology.chip.upper()
  )
  cards = f'1x{topology.slices}x{topology.shape[0]}'
  return '', {'target_config': target, 'topology': cards}
