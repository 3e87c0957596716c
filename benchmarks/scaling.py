"""What a training step exchanges, against what it has to.

    python -m benchmarks.scaling

Compares the exchanges of a small model, compiled for meshes of eight CPU
devices, with those of scaling_expected.py, and fails where they differ.
"""

import collections
import dataclasses
import os
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.common import (
  RESULTS,
  circumstances,
  make_parser,
  table,
  write_results,
)
from fusion_jax.config import (
  PRESETS,
  BatchConfig,
  DataConfig,
  ExperimentConfig,
  OptimizerConfig,
  TokenizerConfig,
  TrainingConfig,
)
from fusion_jax.config.flags import parse_arguments
from fusion_jax.config.parallel import ParallelConfig
from fusion_jax.errors import CheckFailed
from fusion_jax.startup import one_line_errors

DEVICES = 8
LAYOUTS = ((8, 1, 1), (1, 8, 1), (4, 1, 2), (2, 2, 2))
_PARTS = (1, 2)
# Bytes of a few numbers: norms of gradients, sums of the loss.
SMALL = 2_000
_TOLERANCE = 0.05
_HEADER = (
  *('mesh, parts', 'what', 'how', 'over', 'times'),
  *('bytes a device', 'on paper', 'ratio'),
)


def small(layout: Sequence[int], parts: int) -> ExperimentConfig:
  """A plain Transformer of 2 + 2 layers, and 64 rows of 16 + 16 positions."""
  return ExperimentConfig(
    data=DataConfig(
      tokenizer=TokenizerConfig(vocabulary_size=1_024),
      batch=BatchConfig(tokens=1_024, row_multiple=16),
    ),
    model=dataclasses.replace(
      PRESETS['tiny'], width=64, filter=256, encoder_layers=2, decoder_layers=2
    ),
    optimizer=OptimizerConfig(accumulation=parts),
    training=TrainingConfig(loss_chunk=64),
    parallel=ParallelConfig(*layout),
  )


def measured(layout: Sequence[int], parts: int) -> list[dict[str, Any]]:
  """The exchanges of a compiled step beside those on paper."""
  import jax

  from benchmarks.scaling_expected import Expected, expected, way
  from fusion_jax.tools.aot.hlo_collectives import collectives
  from fusion_jax.tools.aot.programs import ProgramRequest, program_for

  config = small(layout, parts)
  devices = jax.devices()[:DEVICES]
  program = program_for(config, ProgramRequest('train', 16, 16), devices)
  found = collections.defaultdict(list)
  for one in collectives(program.traced.lower().compile().as_text()):
    found[way(one, program.mesh)].append(one)
  wanted = expected(
    program.weights, program.mesh, config.model, program.shape, parts
  )
  rows = []
  for each in sorted({*found, *wanted}):
    paper = wanted.get(each, Expected('numbers', 0.0))
    rows.append(
      {
        'mesh': list(layout),
        'parts': parts,
        'what': paper.why,
        'kind': each.kind,
        'axes': list(each.axes),
        'times': sum(one.times for one in found[each]),
        'sent': sum(one.sent for one in found[each]),
        'paper': paper.sent,
      }
    )
    check(rows[-1], max((one.times for one in found[each]), default=0))
  return rows


def check(row: dict[str, Any], most_times: int) -> None:
  """Refuses what a layout does not need."""
  mesh = ' x '.join(map(str, row['mesh']))
  where = f'mesh {mesh}, {row["parts"]} parts: {row["kind"]} over '
  where += f'{" and ".join(row["axes"])}'
  sent, paper = row['sent'], row['paper']
  numbers = row['kind'] == 'all-reduce' and sent <= SMALL
  if not paper and not numbers:
    raise CheckFailed(f'{where}: {sent:,.0f} bytes that the layout needs not')
  if paper and abs(sent - paper) > _TOLERANCE * paper:
    raise CheckFailed(f'{where}: {sent:,.0f} bytes, on paper {paper:,.0f}')
  if most_times > 1 and row['axes'] != ['tensor']:
    raise CheckFailed(f'{where}: {most_times} times an update')


def report(rows: Sequence[dict[str, Any]]) -> str:
  """The table."""
  cells = [
    (
      f'{" x ".join(map(str, row["mesh"]))}, {row["parts"]}',
      row['what'],
      row['kind'],
      ' and '.join(row['axes']),
      row['times'],
      f'{row["sent"]:,.0f}',
      f'{row["paper"]:,.0f}' if row['paper'] else '',
      f'{row["sent"] / row["paper"]:.3f}' if row['paper'] else '',
    )
    for row in rows
  ]
  return table(_HEADER, cells)


@one_line_errors
def main(argv: list[str]) -> None:
  arguments = parse_arguments(
    argv, make_parser(__doc__, RESULTS / 'scaling.json')
  )
  os.environ['JAX_PLATFORMS'] = 'cpu'
  import jax

  jax.config.update('jax_num_cpu_devices', DEVICES)
  rows = [
    row
    for layout in LAYOUTS
    for parts in _PARTS
    for row in measured(layout, parts)
  ]
  write_results(arguments.output, circumstances() | {'rows': rows})
  print(report(rows))


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
