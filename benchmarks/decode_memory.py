"""What XLA plans for a search, against what no search can do without.

    python -m benchmarks.decode_memory [--size=base]

No search can do without the parameters, the keys and values of all positions
and of the source, and the logits of a step. The program is planned with its
encoder, its results and all that it holds at its peak; nothing is run.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.common import RESULTS, circumstances, table, write_results
from benchmarks.decode_task import END, LENGTH, TASKS, Task
from benchmarks.fusion_jax_step import experiment, make_model
from benchmarks.sizes import SIZES, Size
from fusion_jax.decoding.compiled import (
  SearchRows,
  SearchSettings,
  search_batch,
)
from fusion_jax.decoding.model_step import Source, start
from fusion_jax.models.transformer import Transformer, initial_parameters
from fusion_jax.search.hypotheses import LengthPenalty


def planned(size: Size, task: Task) -> dict[str, float]:
  """MB of a search and of its parts.

  Args:
    size: of the model.
    task: beam and rows.

  Returns:
    'needed' is the sum of 'parameters', 'cache' and 'logits'.
  """
  model = make_model(size, experiment(size))
  parameters = jax.eval_shape(lambda: initial_parameters(model, 0))
  limits = np.full(task.rows, LENGTH, np.int32)
  source = Source(np.ones((task.rows, LENGTH), np.int32), limits)
  settings = SearchSettings(task.beam, 1, END, LengthPenalty(), narrows=True)
  plan = (
    search_batch.lower(
      (parameters,),
      SearchRows((source,), limits, limits),
      models=(model,),
      settings=settings,
      max_length=LENGTH,
    )
    .compile()
    .memory_analysis()
  )
  peak = (
    plan.argument_size_in_bytes
    + plan.output_size_in_bytes
    + plan.temp_size_in_bytes
  )
  parts = {
    'parameters': _bytes(parameters),
    'cache': _bytes(_cache(model, parameters, source, settings)),
    'logits': 4 * task.rows * task.beam * size.vocabulary,
  }
  parts |= {'needed': sum(parts.values()), 'planned': peak}
  return {name: value / 1e6 for name, value in parts.items()}


def _cache(
  model: Transformer, parameters: Any, source: Source, settings: SearchSettings
) -> Any:
  """Shapes of the keys and values of all positions and of the source."""

  def started(parameters):
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

  return jax.eval_shape(started, parameters)


def _bytes(tree: Any) -> int:
  return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def main() -> None:
  """Plans all tasks and prints the table."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument('--size', choices=SIZES, default='base')
  parser.add_argument(
    '--output', type=Path, default=RESULTS / 'decode_memory.json'
  )
  arguments = parser.parse_args()
  size = SIZES[arguments.size]
  plans = {task.name: planned(size, task) for task in TASKS}
  write_results(
    arguments.output, circumstances() | {'size': arguments.size, 'mb': plans}
  )
  names = list(next(iter(plans.values())))
  rows = [
    (
      task,
      *(f'{own[name]:,.1f}' for name in names),
      f'{own["planned"] / own["needed"]:.2f}',
    )
    for task, own in plans.items()
  ]
  print(table(('MB', *names, 'planned / needed'), rows))


if __name__ == '__main__':
  sys.exit(main())
