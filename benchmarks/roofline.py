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
import dataclasses
import sys
from pathlib import Path
from typing import Any

from benchmarks import common
from benchmarks.hlo_traffic import PARTS, by_part, total_cycles, traffic
from fusion_jax.config.flags import parse_arguments, parse_experiment
from fusion_jax.config.presets import SINCE_2020
from fusion_jax.errors import InputError
from fusion_jax.json_input import read_json
from fusion_jax.startup import one_line_errors, start_logging
from fusion_jax.tools.aot.topology import (
  Chip,
  read_topology,
  topology_devices,
  without_accelerator,
)

_CONFIG = '--config=wmt14_ende:'
_CUDNN = '--config.model.attention_implementation=cudnn'
_ROWS = {
  'base': (f'{_CONFIG}base',),
  'big': (f'{_CONFIG}big',),
  'em_routing': (f'{_CONFIG}em_routing',),
  'multi_layer_3': (f'{_CONFIG}multi_layer_3',),
  # 128 rows per chip instead of 32.
  'base_128_rows': (f'{_CONFIG}base', '--config.data.batch.tokens=131072'),
  # One row of 128 positions per chip: what a step costs whatever its batch.
  'base_one_row': (
    f'{_CONFIG}base',
    '--config.data.batch.tokens=1024',
    '--config.data.batch.row_multiple=8',
  ),
  'base_search': (f'{_CONFIG}base',),
  'base_cudnn': (f'{_CONFIG}base', _CUDNN),
  'big_cudnn': (f'{_CONFIG}big', _CUDNN),
  'base_128_rows_cudnn': (
    f'{_CONFIG}base',
    _CUDNN,
    '--config.data.batch.tokens=131072',
  ),
}
# Compiled on demand: Base in pre-norm, with and without the later schemes.
_LATER = {
  'base_pre_norm': (f'{_CONFIG}base', '--config.model.norm=pre'),
  **{name: (f'{_CONFIG}{name}',) for name in SINCE_2020},
}
_SEARCHES = ('base_search',)
_GPU_ROWS = tuple(row for row in _ROWS if row.endswith('_cudnn'))


@dataclasses.dataclass(frozen=True)
class Bound:
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
    times = dataclasses.asdict(self)
    return max(times, key=lambda name: times[name])

  @property
  def mfu(self) -> float:
    """The share of the peak, if all but the slowest happen meanwhile."""
    return self.products / getattr(self, self.slowest)


def measure(
  row: str, topology_name: str, arguments: argparse.Namespace
) -> dict[str, Any]:
  """Figures of one row, of a chip; the compiled text goes to --text."""
  from fusion_jax.tools.aot.compile import figures_for
  from fusion_jax.tools.aot.programs import ProgramRequest

  topology = read_topology(topology_name)
  config, _ = parse_experiment((_ROWS | _LATER)[row], argparse.ArgumentParser())
  request = ProgramRequest('decode' if row in _SEARCHES else 'train')
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
    'cycles': total_cycles(moved),
    'sent': figures.sent,
    'peak': figures.peak,
    'shape': figures.shape,
    'compile_seconds': figures.compile_seconds,
  }


def bounds_table(rows: dict[str, Any]) -> str:
  """What bounds each step."""
  lines = []
  for name, row in rows.items():
    bound = Bound.of(row, read_topology(name.partition(' ')[0]).figures)
    times = dataclasses.astuple(bound)
    lines.append(
      (
        name,
        *(f'{time:.2f}' for time in times),
        bound.slowest,
        f'{bound.mfu:.2f}',
        f'{row["peak"] / 2**30:.2f}',
        str(row.get('kernels', '')),
      )
    )
  header = 'ms', 'products', 'bytes', 'exchanges', 'estimate', 'slowest', 'MFU'
  return common.table((*header, 'GiB', 'kernels'), lines)


def parts_table(rows: dict[str, Any]) -> str:
  """GB of each part of each step."""
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
  add('--rows', type=_names, default=list(_ROWS))
  add('--topologies', type=_names, default=['v5e:2x4'])
  add('--text', type=Path, help='a folder for the compiled programs')
  add('--fresh', action='store_true', help='compile what is there too')
  return parser


@one_line_errors
def main(argv: list[str]) -> None:
  """Compiles what is asked for; each row is written when it is done."""
  arguments = parse_arguments(argv, _parser())
  for row in arguments.rows:
    if row not in _ROWS | _LATER:
      names = ', '.join(_ROWS | _LATER)
      raise InputError(f'--rows: no {row!r}; there are {names}')
  for topology in arguments.topologies:
    read_topology(topology)
  without_accelerator()
  start_logging()
  known = arguments.output.exists() and not arguments.fresh
  rows = _rows(arguments.output) if known else {}
  for topology in arguments.topologies:
    for row in arguments.rows:
      name = f'{topology} {row}'
      if name not in rows and _exists(row, topology):
        rows[name] = measure(row, topology, arguments)
        common.log(f'{name}: compiled in {rows[name]["compile_seconds"]:.0f} s')
        common.write_results(
          arguments.output, common.circumstances() | {'rows': rows}
        )
  print(bounds_table(rows), end='\n\n')
  print(parts_table(rows))


def _exists(row: str, topology: str) -> bool:
  return row not in _GPU_ROWS or read_topology(topology).is_gpu


def _rows(path: Path) -> dict[str, Any]:
  rows: dict[str, Any] = read_json(path, dict[str, Any])['rows']
  return rows


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
