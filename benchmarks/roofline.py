r"""What bounds training and search on chips that are absent, by compiled text.

    python -m benchmarks.roofline [--rows=base,big] \
        [--topologies=v5e:2x4,h100:8] [--text=DIR] [--output=FILE.json]

Compiles the program of each row for each topology, and prints for a chip: the
times of its matrix products, of its bytes and of its exchanges at the peaks of
the chip; the time that the TPU compiler estimates; and the share of the peak
(MFU) that the slowest of them allows. A second table has the bytes by part of
the program. A search has all steps that its longest sentence may take. The same
command resumes; --fresh compiles again.
"""

import argparse
import sys
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import common
from benchmarks.hlo_traffic import PARTS, by_part, traffic
from fusion_jax.config.flags import load_config, parse_arguments
from fusion_jax.config.presets import SINCE_2020, changed
from fusion_jax.errors import InputError
from fusion_jax.files import read_json
from fusion_jax.startup import one_line_errors, start_logging
from fusion_jax.tools.aot.topology import (
  Chip,
  read_topology,
  topology_devices,
  without_accelerator,
)

_SEARCH = 'base_search'
# What each row changes in a named config of wmt14_ende; `on_gpu`: only there.
_ROWS = common.data_of(__file__)
_ROWS |= {name: {'on_demand': True, 'config': name} for name in SINCE_2020}


class Bound(NamedTuple):
  """Times of a step on a chip, in ms."""

  products: float
  bytes: float
  exchanges: float
  estimate: float

  @classmethod
  def of(cls, row: dict[str, Any], chip: Chip) -> 'Bound':
    return cls(
      1e3 * row['flops'] / chip.flops,
      1e3 * row['bytes'] / chip.bandwidth,
      1e3 * row['sent'] / chip.link,
      1e3 * row['cycles'] / chip.clock if chip.clock else 0.0,
    )

  @property
  def slowest(self) -> str:
    return max(self._fields, key=lambda name: getattr(self, name))

  @property
  def mfu(self) -> float:
    """The share of the peak, if all but the slowest happen meanwhile."""
    return self.products / max(self)


def measure(
  row: str, topology_name: str, arguments: argparse.Namespace
) -> dict[str, Any]:
  """Figures of one row, of a chip; the compiled text goes to --text."""
  from fusion_jax.tools.aot.compile import figures_for
  from fusion_jax.tools.aot.programs import ProgramRequest

  topology = read_topology(topology_name)
  fields = _ROWS[row].get('fields', {})
  config = load_config(f'wmt14_ende:{_ROWS[row].get("config", "base")}')
  config = changed(config, fields)
  request = ProgramRequest('decode' if row == _SEARCH else 'train')
  figures, program, text = figures_for(
    config, request, topology.figures, topology_devices(topology)
  )
  if arguments.text:
    arguments.text.mkdir(parents=True, exist_ok=True)
    (arguments.text / f'{topology_name}-{row}.txt').write_text(text)
  moved = traffic(text, program.trips)
  parts = by_part(moved)
  return {
    'flops': figures.flops / figures.chips,
    'bytes': sum(parts.values()),
    'bytes_by_xla': figures.moved,
    'parts': parts,
    'kernels': sum(one.times for one in moved),
    'cycles': sum(one.times * one.cycles for one in moved),
    'sent': figures.sent,
    'peak': figures.peak,
    'shape': figures.shape,
    'compile_seconds': figures.compile_seconds,
  }


def bounds_table(rows: dict[str, Any]) -> str:
  lines = []
  for name, row in rows.items():
    bound = Bound.of(row, read_topology(name.partition(' ')[0]).figures)
    times = (f'{time:.2f}' for time in bound)
    share, memory = f'{bound.mfu:.2f}', f'{row["peak"] / 2**30:.2f}'
    kernels = str(row.get('kernels', ''))
    lines.append((name, *times, bound.slowest, share, memory, kernels))
  header = ('ms', *Bound._fields, 'slowest', 'MFU', 'GiB', 'kernels')
  return common.table(header, lines)


def parts_table(rows: dict[str, Any]) -> str:
  lines = []
  for name, row in rows.items():
    moved = (row['bytes'], *(row['parts'].get(part, 0) for part in PARTS))
    lines.append((name, *(f'{x / 1e9:.2f}' for x in moved)))
  return common.table(('GB', 'all', *PARTS), lines)


def _names(text: str) -> list[str]:
  return text.split(',')


def _parser() -> argparse.ArgumentParser:
  parser = common.make_parser(__doc__, common.RESULTS / 'roofline.json')
  add = parser.add_argument
  usual = [name for name in _ROWS if not _ROWS[name].get('on_demand')]
  add('--rows', type=_names, default=usual)
  add('--topologies', type=_names, default=['v5e:2x4'])
  add('--text', type=Path, help='a folder for the compiled programs')
  add('--fresh', action='store_true', help='compile what is there too')
  return parser


@one_line_errors
def main(argv: list[str]) -> None:
  """Compiles what is missing; each row is written when it is done."""
  arguments = parse_arguments(argv, _parser())
  for row in arguments.rows:
    if row not in _ROWS:
      raise InputError(f'--rows: no {row!r}; there are {", ".join(_ROWS)}')
  gpus = {name: read_topology(name).is_gpu for name in arguments.topologies}
  without_accelerator()
  start_logging()
  known = arguments.output.exists() and not arguments.fresh
  rows = read_json(arguments.output, dict[str, Any])['rows'] if known else {}
  for topology, is_gpu in gpus.items():
    for row in arguments.rows:
      name = f'{topology} {row}'
      if name not in rows and (is_gpu or not _ROWS[row].get('on_gpu')):
        rows[name] = measure(row, topology, arguments)
        seconds = rows[name]['compile_seconds']
        common.log(f'{name}: compiled in {seconds:.0f} s')
        results = common.circumstances() | {'rows': rows}
        common.write_results(arguments.output, results)
  print(bounds_table(rows), end='\n\n')
  print(parts_table(rows))


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
