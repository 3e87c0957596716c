r"""What bounds a training step on chips that are absent, by its compiled text.

    python -m benchmarks.roofline [--rows=base,big] [--topology=v5e:2x4] \
        [--before=FILE.json] [--output=FILE.json]

Compiles the step of each row for a slice of TPUs or a host of GPUs and counts
operations and the bytes that a chip moves, by part of the step. With the peaks
of the chips it prints the time of each and the share of the peak (MFU) that the
slower of them allows. The compiled program belongs to the chip of --topology;
for others the table takes its operations and bytes.
"""

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import (
  RESULTS,
  circumstances,
  log,
  make_parser,
  table,
  write_results,
)
from fusion_jax.config.flags import parse_arguments, parse_experiment
from fusion_jax.errors import InputError
from fusion_jax.json_input import read_json
from fusion_jax.startup import one_line_errors, start_logging
from fusion_jax.tools.aot.chips import CHIPS, Chip
from fusion_jax.tools.aot.hlo_traffic import PARTS
from fusion_jax.tools.aot.topology import (
  read_topology,
  topology_devices,
  without_accelerator,
)

_CHIPS = ('v5e', 'v5p', 'v6e', 'h100', 'h200')
_BASE = '--config=wmt14_ende:base'
_ROWS = {
  'base': (_BASE,),
  'big': ('--config=wmt14_ende:big',),
  'em_routing': ('--config=wmt14_ende:em_routing',),
  'multi_layer_3': ('--config=wmt14_ende:multi_layer_3',),
  'base_one_row': (
    _BASE,
    '--config.data.batch.tokens=1024',
    '--config.data.batch.row_multiple=8',
  ),
}


@dataclasses.dataclass(frozen=True)
class Bound:
  """Times of a step on a chip, in ms, and the MFU that they allow."""

  operations: float
  memory: float
  exchanges: float

  @classmethod
  def of(cls, row: dict[str, Any], chip: Chip) -> 'Bound':
    sent = row['sent'] / chip.link
    return cls(
      1e3 * row['flops'] / chip.flops,
      1e3 * row['bytes'] / chip.bandwidth,
      1e3 * sent,
    )

  @property
  def time(self) -> float:
    """That of the slowest, if the others happen meanwhile."""
    return max(self.operations, self.memory, self.exchanges)

  @property
  def by(self) -> str:
    return max(
      ('operations', 'memory', 'exchanges'), key=lambda x: getattr(self, x)
    )

  @property
  def mfu(self) -> float:
    return self.operations / self.time


def measure(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
  """Figures of one row, of a chip; the compiled text goes to --text."""
  from fusion_jax.tools.aot.compile import figures_for
  from fusion_jax.tools.aot.programs import ProgramRequest

  topology = read_topology(arguments.topology)
  flags = [*_ROWS[name], *arguments.overrides]
  config, _ = parse_experiment(flags, argparse.ArgumentParser())
  figures, _, text = figures_for(
    config, ProgramRequest(), topology.figures, topology_devices(topology)
  )
  if arguments.text:
    arguments.text.mkdir(parents=True, exist_ok=True)
    (arguments.text / f'{name}.txt').write_text(text)
  return {
    'flops': figures.flops / figures.chips,
    'bytes': figures.hbm,
    'xla_bytes': figures.moved,
    'parts': figures.parts,
    'sent': figures.sent,
    'peak': figures.peak,
    'shape': figures.shape,
    'compile_seconds': figures.compile_seconds,
  }


def bounds_table(rows: dict[str, Any], chips: Sequence[str]) -> str:
  """What bounds each row on each chip."""
  lines = []
  for name, row in rows.items():
    for each in chips:
      bound = Bound.of(row, CHIPS[each])
      lines.append((
        *(f'{name}, {each}', f'{bound.operations:.2f}'),
        *(f'{bound.memory:.2f}', f'{bound.exchanges:.2f}'),
        *(bound.by, f'{bound.mfu:.2f}'),
      ))  # fmt: skip
  header = 'step', 'operations, ms', 'bytes, ms', 'exchanges, ms', 'by', 'MFU'
  return table(header, lines)


def parts_table(rows: dict[str, Any], before: dict[str, Any]) -> str:
  """GB of each part of each row, after / before where that is known."""
  lines = []
  for part in ('all', *PARTS):
    cells = [
      ' / '.join(_gigabytes(x, part) for x in (row, before.get(name)) if x)
      for name, row in rows.items()
    ]
    lines.append((part, *cells))
  return table(('GB', *rows), lines)


def _gigabytes(row: dict[str, Any], part: str) -> str:
  size = row['bytes'] if part == 'all' else row['parts'].get(part, 0)
  return f'{size / 1e9:.2f}'


def _parser() -> argparse.ArgumentParser:
  parser = make_parser(__doc__, RESULTS / 'roofline.json')
  add = parser.add_argument
  add('--rows', type=lambda text: text.split(','), default=list(_ROWS))
  add('--topology', default='v5e:2x4')
  add('--before', type=Path, help='results to print beside')
  add('--text', type=Path, help='a folder for the compiled programs')
  add('overrides', nargs='*', help='after --: overrides of the config, for all')
  return parser


@one_line_errors
def main(argv: list[str]) -> None:
  """Compiles what is asked for; each row is written when it is done."""
  arguments = parse_arguments(argv, _parser())
  for name in arguments.rows:
    if name not in _ROWS:
      raise InputError(f'--rows: no {name!r}; there are {", ".join(_ROWS)}')
  without_accelerator()
  start_logging()
  before = (
    read_json(arguments.before, dict[str, Any])['rows']
    if arguments.before
    else {}
  )
  found = circumstances() | {'topology': arguments.topology, 'rows': {}}
  for name in arguments.rows:
    found['rows'][name] = measure(name, arguments)
    log(f'{name}: compiled in {found["rows"][name]["compile_seconds"]:.0f} s')
    write_results(arguments.output, found)
  print(bounds_table(found['rows'], _CHIPS))
  print()
  print(parts_table(found['rows'], before))


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
