"""What XLA plans and how long it compiles; nothing is run.

    python -m benchmarks.planned search [--size=base]
    python -m benchmarks.planned groups [--size=base]
    python -m benchmarks.planned depth [--width=512]

search  MB of a search with its encoder and its results, against what no search
        can do without: the parameters, the keys and values of all positions and
        of the source, and the logits of a step
groups  MB of a training step and of its loss alone, with a group of GTRANS for
        each decoder layer beside the baseline
depth   seconds for the training step of deep GTRANS models, whose layers run
        under scan, so that one of each stack is compiled
"""

import argparse
import dataclasses
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float

from benchmarks.common import (
  RESULTS,
  circumstances,
  log,
  make_parser,
  table,
  write_results,
)
from benchmarks.decode_task import END, LENGTH, TASKS, Task
from benchmarks.fusion_jax_step import experiment, make_model, random_batches
from benchmarks.schemes import POST_NORM
from benchmarks.sizes import SIZES, Size
from fusion_jax.config import ExperimentConfig
from fusion_jax.config.fusion import GtransOptions
from fusion_jax.config.presets import both_sides, changed, depth
from fusion_jax.data.batching import Batch
from fusion_jax.decoding.compiled import (
  SearchRows,
  SearchSettings,
  search_batch,
)
from fusion_jax.decoding.model_step import Source, start
from fusion_jax.models.losses import cross_entropy
from fusion_jax.models.transformer import OutputLayer, initial_parameters
from fusion_jax.parallel.mesh import data_mesh
from fusion_jax.search.hypotheses import LengthPenalty
from fusion_jax.training.gradients import batch_loss
from fusion_jax.training.optimizer import make_optimizer
from fusion_jax.training.state import initial_state
from fusion_jax.training.step import make_train_step, zero_totals

# Decoder features, output layer and log weights of groups.
_Learned = tuple[
  Float[Array, '*G B T D'], OutputLayer, Float[Array, ' G'] | None
]
_DEPTHS = ((6, 6), (12, 12), (60, 12))


def search(size: Size) -> tuple[dict[str, Any], str]:
  """Plans all tasks of the comparison of searches."""
  found = {task.name: _search(size, task) for task in TASKS}
  names = list(next(iter(found.values())))
  rows = [
    (
      task,
      *(f'{own[name]:,.1f}' for name in names),
      f'{own["planned"] / own["needed"]:.2f}',
    )
    for task, own in found.items()
  ]
  return {'mb': found}, table(('MB', *names, 'planned / needed'), rows)


def _search(size: Size, task: Task) -> dict[str, float]:
  model = make_model(size, experiment(size))
  parameters = jax.eval_shape(lambda: initial_parameters(model, 0))
  limits = np.full(task.rows, LENGTH, np.int32)
  source = Source(np.ones((task.rows, LENGTH), np.int32), limits)
  settings = SearchSettings(task.beam, 1, END, LengthPenalty(), compacts=True)

  def cached(parameters):
    step, cache = start(
      [model],
      [parameters],
      [source],
      beam=settings.beam,
      max_length=LENGTH,
      mixture=settings.mixture,
      coverage=0.0,
    )
    return cache, step.memories

  plan = search_batch.lower(
    (parameters,),
    SearchRows((source,), limits, limits),
    models=(model,),
    settings=settings,
    max_length=LENGTH,
  ).compile()
  parts = {
    'parameters': _bytes(parameters),
    'cache': _bytes(jax.eval_shape(cached, parameters)),
    'logits': 4 * task.rows * task.beam * size.vocabulary,
  }
  memory = plan.memory_analysis()
  peak = memory.argument_size_in_bytes + memory.output_size_in_bytes
  peak += memory.temp_size_in_bytes
  parts |= {'needed': sum(parts.values()), 'planned': peak}
  return {name: value / 1e6 for name, value in parts.items()}


def _bytes(tree: Any) -> int:
  return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def groups(size: Size) -> tuple[dict[str, Any], str]:
  """Plans the baseline and GTRANS with a group for each decoder layer."""
  single = both_sides('gtrans', gtrans=GtransOptions(group_size=1))
  both = {
    name: _training(size, changed(experiment(size), POST_NORM | row))
    for name, row in (('baseline', {}), ('gtrans', single))
  }
  rows = [
    (f'{part}, {kind}', f'{own:,.0f}', f'{other:,.0f}', f'{other / own:.2f}')
    for part, kinds in both['baseline'].items()
    for kind, own in kinds.items()
    for other in [both['gtrans'][part][kind]]
  ]
  text = (
    f'{size.rows} sentences of {size.length}+{size.length}, '
    f'vocabulary {size.vocabulary:,}, {size.layers} groups\n'
  )
  return both, text + table(('MB', 'baseline', 'GTRANS', 'ratio'), rows)


def _training(
  size: Size, config: ExperimentConfig
) -> dict[str, dict[str, float]]:
  """MB of a training step, and of the loss with its gradients alone."""
  step, model, arguments = _step(size, config)
  state, _, batch = arguments
  output = jax.eval_shape(
    lambda p, b: batch_loss(model, p, b, 0.0, 0)[1], state.parameters, batch
  )
  learned = output.features, output.output, output.log_weights
  with jax.set_mesh(data_mesh()):
    return {
      'training step': _planned(step, *arguments),
      'loss': _planned(jax.jit(_gradient(config)), learned, batch),
    }


def _step(size: Size, config: ExperimentConfig) -> tuple[Any, Any, Any]:
  """A training step, its model, and the shapes of its arguments."""
  model = make_model(size, config)
  optimizer = make_optimizer(config.optimizer, size.width)
  arguments = jax.eval_shape(
    lambda: (
      initial_state(model, optimizer, 0),
      zero_totals(config.model.encoder_layers),
      random_batches(size)[0],
    )
  )
  return make_train_step(model, optimizer, config), model, arguments


def _gradient(config: ExperimentConfig) -> Callable[..., Any]:
  """Of the loss by features, output layer and log weights of groups."""

  def loss(learned: _Learned, batch: Batch) -> Float[Array, '']:
    features, output, log_weights = learned
    return cross_entropy(
      features,
      output,
      batch.target,
      batch.target_lengths,
      config.training.label_smoothing,
      config.training.loss_chunk,
      log_weights,
      config.model.decoder.combine,
    ).loss

  return jax.grad(loss)


def _planned(function: Any, *arguments: Any) -> dict[str, float]:
  memory = function.lower(*arguments).compile().memory_analysis()
  temporary = memory.temp_size_in_bytes
  kept = memory.argument_size_in_bytes + memory.output_size_in_bytes
  peak = temporary + kept - memory.alias_size_in_bytes
  return {'temporary': temporary / 2**20, 'peak': peak / 2**20}


def depths(size: Size) -> tuple[dict[str, Any], str]:
  """Seconds to trace and to compile a training step of each depth."""
  found = {}
  for layers in _DEPTHS:
    name = '{}+{}'.format(*layers)
    found[name] = _compiled(size, layers)
    log(f'{name}: {found[name]}')
  rows = [
    (name, f'{each["trace"]:.1f}', f'{each["compile"]:.1f}')
    for name, each in found.items()
  ]
  return {'seconds': found}, table(('layers', 'trace s', 'compile s'), rows)


def _compiled(size: Size, layers: tuple[int, int]) -> dict[str, float]:
  deep = both_sides('gtrans', gtrans=GtransOptions(group_size=6))
  deep |= POST_NORM | depth(*layers)
  deep |= {'model.scan_layers': True, 'model.remat': True}
  step, _, arguments = _step(size, changed(experiment(size), deep))
  begin = time.perf_counter()
  lowered = step.lower(*arguments)
  traced = time.perf_counter()
  lowered.compile()
  return {'trace': traced - begin, 'compile': time.perf_counter() - traced}


_PARTS = {
  'search': (search, 'decode_memory'),
  'groups': (groups, 'fusion_memory'),
  'depth': (depths, 'compile_depth'),
}


def _size(arguments: argparse.Namespace) -> Size:
  size, width = SIZES[arguments.size], arguments.width
  if width:
    heads = max(width // 64, 1)
    size = dataclasses.replace(size, width=width, filter=4 * width, heads=heads)
  return size


def main() -> None:
  parser = make_parser(__doc__)
  parser.add_argument('part', choices=_PARTS)
  parser.add_argument('--size', choices=SIZES, default='base')
  parser.add_argument('--width', type=int, help='default: as --size')
  parser.add_argument('--output', type=Path)
  arguments = parser.parse_args()
  part, name = _PARTS[arguments.part]
  size = _size(arguments)
  found, text = part(size)
  path = arguments.output or RESULTS / f'{name}.json'
  settings = {'size': dataclasses.asdict(size)}
  write_results(path, circumstances() | settings | found)
  print(text)


if __name__ == '__main__':
  sys.exit(main())
