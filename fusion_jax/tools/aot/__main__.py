"""Compile training or decoding for chips that this machine does not have.

    python -m fusion_jax.tools.aot --config=NAME[:VARIANT]
      --topology=v5e:16x16 [--config.parallel.fsdp=8 ...]
      [--step=train|decode] [--find_batch] [--output=FILE.json]

It prints the memory that a chip needs, whether the chip has it, the operations
and exchanges of a step, and the seconds of compilation. 2xv5e:16x16 means two
slices of a pod, h100:8 eight cards of a host. Nothing is run or downloaded.
"""

import argparse
import dataclasses
import importlib.metadata
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fusion_jax.bounds import Size, number
from fusion_jax.config import ExperimentConfig
from fusion_jax.config.flags import command_parser, parse_experiment
from fusion_jax.errors import InputError
from fusion_jax.files import write_whole
from fusion_jax.startup import one_line_errors, start_logging
from fusion_jax.tools.aot.topology import (
  GIB,
  Topology,
  read_topology,
  topology_devices,
  without_accelerator,
)

if TYPE_CHECKING:
  from fusion_jax.tools.aot.programs import Figures

_COMPILERS = ('jax', 'jaxlib', 'libtpu', 'jax-cuda13-pjrt', 'jax-cuda12-pjrt')


def _parser() -> argparse.ArgumentParser:
  parser = command_parser(__doc__)
  add = parser.add_argument
  add('--topology', required=True, help='v5e:16x16, 2xv5e:16x16, h100:8, ...')
  add('--step', choices=('train', 'decode'), default='train')
  add('--find_batch', action='store_true', help='the largest that fits')
  for side in ('source', 'target'):
    add(f'--{side}_length', type=number(Size), help='positions of the batch')
  add('--prepared', default='', help='prepared folder: its shapes, vocabulary')
  add('--output', type=Path, help='writes the figures as JSON too')
  return parser


@one_line_errors
def main(argv: list[str]) -> None:
  config, flags = parse_experiment(argv, _parser())
  topology = read_topology(flags.topology)
  for name in ('find_batch', 'target_length'):
    if getattr(flags, name) and flags.step != 'train':
      raise InputError(f'--{name}: is for --step=train')
  if flags.output and not flags.output.parent.is_dir():
    raise InputError(f'--output: {flags.output.parent}: no such folder')
  without_accelerator()
  start_logging()
  figures = _figures(config, flags, topology)
  print(report(topology, flags.step, figures))
  if flags.output:
    values = as_json(topology, flags.step, figures)
    text = json.dumps(values, indent=1) + '\n'
    write_whole(flags.output, text.encode())


def _figures(
  config: ExperimentConfig, flags: argparse.Namespace, topology: Topology
) -> 'Figures':
  devices, chip = topology_devices(topology), topology.figures
  # Imported after `without_accelerator`, because it imports JAX.
  from fusion_jax.tools.aot import programs

  request = programs.ProgramRequest(
    flags.step, flags.source_length, flags.target_length, flags.prepared
  )

  def compiled(config: ExperimentConfig) -> 'Figures':
    return programs.figures_for(config, request, chip, devices)[0]

  if flags.find_batch:
    return programs.largest_batch(config, request, compiled, chip.memory)
  return compiled(config)


def report(topology: Topology, step: str, figures: 'Figures') -> str:
  chip, chips = topology.figures, figures.chips
  rows, source, target = figures.shape
  axes = ' x '.join(f'{axis} {size}' for axis, size in figures.mesh.items())
  most = ' at most' if step == 'decode' else ''
  exchanges = [
    f'{kind:<18}  {total.count:,}{most}, '
    f'a chip sends {total.sent / 2**20:,.1f} MiB'
    for kind, total in figures.exchanges.items()
  ]
  lines = [
    f'{topology.name}, {step}: {chips} chips, {axes}; '
    f'{figures.parameters:,} parameters; '
    f'a batch of {rows} rows of {source} + {target} positions',
    f'memory      {figures.peak / GIB:.2f} GiB of {chip.memory / GIB:.2f} GiB '
    f'a chip, it fits; {figures.state / GIB:.2f} GiB of it between steps',
    f'operations  {figures.flops / 1e12:.3f} * 10^12{most}, products alone; '
    f'{figures.flops / chips / chip.flops * 1e3:.2f} ms per chip at its peak',
    *(exchanges or ['nothing is exchanged between chips']),
    f'seconds     {figures.trace_seconds:.0f} to trace, '
    f'{figures.compile_seconds:.0f} to compile',
  ]
  return '\n'.join(lines)


def as_json(
  topology: Topology, step: str, figures: 'Figures'
) -> dict[str, Any]:
  """Return the figures and what they depend on as plain values."""
  installed = {x.name: x.version for x in importlib.metadata.distributions()}
  return {
    'topology': topology.name,
    'step': step,
    'available': topology.figures.memory,
    **dataclasses.asdict(figures),
    'shape': figures.shape._asdict(),
    'versions': {x: installed[x] for x in _COMPILERS if x in installed},
  }


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
