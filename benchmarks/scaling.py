"""What a training step exchanges on a mesh, against what it has to.

    python -m benchmarks.scaling

Compares the exchanges of a small model, compiled for meshes of eight CPU
devices, with those worked out on paper, and fails where they differ.

Of n devices that exchange an array of b bytes, each sends (n - 1) / n b to
gather it and as much to scatter its sum, and twice that to have the sum on
all. Parameters and gradients are float32, exchanged once an update:

  fsdp    gathers every parameter that is cut over it, and scatters its
          gradient
  data    adds the gradients, of the cut ones a part each; what is not cut is
          added over data and fsdp together
  tensor  cuts heads, the hidden layer and the vocabulary (Shoeybi et al.
          2019). Sums of activations [B, S, D] or [B, T, D] of each part of a
          batch, in a plain Transformer:
            forward   each embedding; the end of each sublayer
            backward  its input: once for each product that reads it, query,
                      key, value, hidden layer; keys and values of the source
                      once for each decoder layer
            loss      the gradient of the features [B, T, D]; of each token
                      the largest logit and three sums over the vocabulary

What else there is are a few numbers: norms of gradients and sums of the loss.
"""

import collections
import math
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from benchmarks import common
from fusion_jax.config import PRESETS, ExperimentConfig, ModelConfig
from fusion_jax.config.flags import parse_arguments
from fusion_jax.config.presets import changed, depth
from fusion_jax.config.training import ParallelConfig
from fusion_jax.data.batching import Shape
from fusion_jax.errors import CheckFailed
from fusion_jax.parallel.mesh import ROW_AXES
from fusion_jax.startup import one_line_errors
from fusion_jax.tools.aot.counts import Collective, collectives
from fusion_jax.tools.aot.programs import ProgramRequest, program_for

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


class Way(NamedTuple):
  """Between whom what is exchanged how."""

  kind: str
  axes: tuple[str, ...]


class Expected(NamedTuple):
  """An exchange that a layout needs: what, and bytes a device in an update."""

  why: str
  sent: float


def small(layout: Sequence[int], parts: int) -> ExperimentConfig:
  """A plain Transformer of 2 + 2 layers, and 64 rows of 16 + 16 positions."""
  fields = {
    'data.tokenizer.vocabulary_size': 1_024,
    'data.batch.tokens': 1_024,
    'data.batch.row_multiple': 16,
    'model': PRESETS['tiny'],
    'optimizer.accumulation': parts,
    'training.loss_chunk': 64,
    'parallel': ParallelConfig(*layout),
  }
  config = changed(ExperimentConfig(), fields)
  model = {'model.width': 64, 'model.filter': 256, **depth(2, 2)}
  return changed(config, model)


def measured(layout: Sequence[int], parts: int) -> list[dict[str, Any]]:
  config = small(layout, parts)
  devices = jax.devices()[:DEVICES]
  program = program_for(config, ProgramRequest('train', 16, 16), devices)
  exchanges = collections.defaultdict(list)
  for one in collectives(program.traced.lower().compile().as_text()):
    exchanges[way(one, program.mesh)].append(one)
  wanted = expected(
    program.weights, program.mesh, config.model, program.shape, parts
  )
  rows = []
  for key in sorted({*exchanges, *wanted}):
    paper = wanted.get(key, Expected('numbers', 0.0))
    rows.append(
      {
        'mesh': list(layout),
        'parts': parts,
        'what': paper.why,
        'kind': key.kind,
        'axes': list(key.axes),
        'times': sum(one.times for one in exchanges[key]),
        'sent': sum(one.sent for one in exchanges[key]),
        'paper': paper.sent,
      }
    )
    check(rows[-1], max((one.times for one in exchanges[key]), default=0))
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
  return common.table(_HEADER, cells)


def expected(
  weights: Any, mesh: Mesh, model: ModelConfig, shape: Shape, parts: int
) -> dict[Way, Expected]:
  """All exchanges of an update of a plain Transformer."""
  size = {axis: mesh.shape[axis] for axis in mesh.axis_names}
  rows = tuple(axis for axis in ROW_AXES if size[axis] > 1)
  exchanges: dict[Way, Expected] = {}

  def add(why, kind, axes, whole):
    axes = tuple(axis for axis in axes if size[axis] > 1)
    n = math.prod(size[axis] for axis in axes)
    passes = 2 if kind == 'all-reduce' else 1
    if n > 1:
      before = exchanges.get(Way(kind, axes), Expected(why, 0.0))
      sent = before.sent + passes * (n - 1) / n * whole
      exchanges[Way(kind, axes)] = Expected(why, sent)

  for leaf in jax.tree.leaves(weights):
    axes = [axis for axis in leaf.sharding.spec if axis]
    whole = 4 * math.prod(leaf.shape)
    whole //= size['tensor'] if 'tensor' in axes else 1
    if 'fsdp' in axes:
      add('parameters', 'all-gather', ['fsdp'], whole)
      add('gradients', 'reduce-scatter', ['fsdp'], whole)
      add('gradients', 'all-reduce', ['data'], whole // size['fsdp'])
    else:
      add('gradients', 'all-reduce', rows, whole)
  shards = math.prod(size[axis] for axis in rows)
  one = Shape(shape.rows // shards // parts, shape.source, shape.target)
  activations = parts * _summed_activations(model, one)
  add('activations', 'all-reduce', ['tensor'], activations)
  return exchanges


def _summed_activations(model: ModelConfig, shape: Shape) -> int:
  """Bytes of what tensor adds for one part of one shard's rows."""
  encoder, decoder = model.encoder_layers, model.decoder_layers
  # Embedding; two sublayers forward; query, key, value and hidden layer
  # backward; keys and values of the source.
  source = 1 + encoder * (2 + 4) + 2 * decoder
  # Three sublayers forward; one product more backward, and the loss.
  target = 1 + decoder * (3 + 5) + 1
  numbers = source * shape.source + target * shape.target
  return 4 * shape.rows * (numbers * model.width + 4 * shape.target)


def way(exchange: Collective, mesh: Mesh) -> Way:
  """Between whom a compiled program exchanges something."""
  places = np.unravel_index(exchange.members, tuple(mesh.shape.values()))
  axes = zip(mesh.axis_names, places, strict=True)
  return Way(
    exchange.kind,
    tuple(axis for axis, of_axis in axes if len(set(of_axis)) > 1),
  )


@one_line_errors
def main(argv: list[str]) -> None:
  parser = common.make_parser(__doc__, common.RESULTS / 'scaling.json')
  arguments = parse_arguments(argv, parser)
  jax.config.update('jax_platforms', 'cpu')
  jax.config.update('jax_num_cpu_devices', DEVICES)
  rows = [
    row
    for layout in LAYOUTS
    for parts in _PARTS
    for row in measured(layout, parts)
  ]
  results = common.circumstances() | {'rows': rows}
  common.write_results(arguments.output, results)
  print(report(rows))


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
