"""Compile training or decoding for chips that this machine does not have.

    python -m fusion_jax.tools.aot --config=NAME[:VARIANT]
      --topology=v5e:16x16 [--config.parallel.fsdp=8 ...]
      [--step=train|decode] [--find_batch] [--output=FILE.json]

It prints the memory that a chip needs, whether the chip has it, the operations
and exchanges of a step, and the seconds of compilation. 2xv5e:16x16 means two
slices of a pod, h100:8 eight cards of a host. Nothing is run or downloaded.
"""

import argparse
import functools
import sys
from pathlib import Path

from fusion_jax.bounds import Size, number
from fusion_jax.config.flags import parse_experiment
from fusion_jax.errors import InputError
from fusion_jax.startup import one_line_errors, start_logging
from fusion_jax.tools.aot.topology import (
  read_topology,
  topology_devices,
  without_accelerator,
)


@one_line_errors
def main(argv: list[str]) -> None:
  """Read the flags, compile the program and print its figures."""
  config, arguments = parse_experiment(argv, _parser())
  topology = read_topology(arguments.topology)
  if arguments.find_batch and arguments.step != 'train':
    raise InputError('--find_batch: is for --step=train')
  if arguments.output and not arguments.output.parent.is_dir():
    raise InputError(f'--output: {arguments.output.parent}: no such folder')
  without_accelerator()
  start_logging()
  devices = topology_devices(topology)
  from fusion_jax.tools.aot import batch as aot_batch
  from fusion_jax.tools.aot import compile as aot_compile
  from fusion_jax.tools.aot import report as aot_report
  from fusion_jax.tools.aot.programs import ProgramRequest

  request = ProgramRequest(
    arguments.step,
    arguments.source_length,
    arguments.target_length,
    arguments.prepared,
  )
  compile_one = functools.partial(
    aot_compile.figures_for,
    request=request,
    chip=topology.figures,
    devices=devices,
  )
  if arguments.find_batch:
    figures = aot_batch.largest_batch(
      config, request, compile_one, topology.figures.memory
    )
  else:
    figures, *_ = compile_one(config)
  print(aot_report.report(topology, arguments.step, figures))
  if arguments.output:
    aot_report.write(arguments.output, topology, arguments.step, figures)


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  add = parser.add_argument
  add('--topology', required=True, help='v5e:16x16, 2xv5e:16x16, h100:8, ...')
  add('--step', choices=('train', 'decode'), default='train')
  add('--find_batch', action='store_true', help='the largest that fits')
  add('--source_length', type=number(Size), help='positions of a source line')
  add(
    '--target_length',
    type=number(Size),
    help='positions of a target line; training',
  )
  add('--prepared', default='', help='prepared folder: its shapes, vocabulary')
  add('--output', type=Path, help='writes the figures as JSON too')
  return parser


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
