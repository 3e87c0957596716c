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
_DATA = tomllib.loads(_FILE.read_text('utf-8'))
CHIPS = {name: Chip(**figures) for name, figures in _DATA['chips'].items()}


class Topology(NamedTuple):
  """Chips to compile for: slices, or hosts of GPUs, joined by a network."""

  name: str
  chip: str
  slices: int
  shape: tuple[int, ...]

  @property
  def figures(self) -> Chip:
    return CHIPS[self.chip]

  @property
  def is_gpu(self) -> bool:
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
  os.environ.update(_DATA['tpu_host'] | {'JAX_PLATFORMS': 'cpu'})


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
  target = _DATA['gpu_target'].replace('TARGET', topology.figures.target)
  target = target.replace('NAME', topology.chip.upper())
  cards = f'1x{topology.slices}x{topology.shape[0]}'
  return '', {'target_config': target, 'topology': cards}
