r"""The input pipeline alone against the training step on the same batches.

    python -m benchmarks.input_throughput --config=configs/multi30k.py \
        --config.data.root=DIR [--config.data.batch.packing=true]

Counts target tokens without padding. The step is timed on the first batches
after a pass over them that compiles their shapes. --profile prints where one
thread spends its time when it reads and assembles batches.
"""

import argparse
import cProfile
import pstats
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.common import (
  RESULTS,
  circumstances,
  spread,
  table,
  write_results,
)
from benchmarks.fusion_jax_step import fresh_totals
from fusion_jax.config import ExperimentConfig
from fusion_jax.config.flags import parse_experiment
from fusion_jax.data.batching import Batch
from fusion_jax.data.pipeline import (
  TrainingBatches,
  training_iterator,
  training_shapes,
)
from fusion_jax.data.prepare import prepare
from fusion_jax.data.prepared import PreparedCorpus
from fusion_jax.parallel.mesh import by_rows, data_mesh, replicated
from fusion_jax.runs.loading import make_model
from fusion_jax.startup import one_line_errors, start_logging, use_huge_pages
from fusion_jax.training.initial_state import initial_state
from fusion_jax.training.optimizer import make_optimizer
from fusion_jax.training.step import make_train_step

# Batches of a profile.
_PROFILED = 100


@one_line_errors
def main(argv: list[str]) -> None:
  """Measures both and prints the table."""
  parser = argparse.ArgumentParser()
  parser.add_argument('--rounds', type=int, default=3)
  parser.add_argument('--seconds', type=float, default=10, help='of a round')
  parser.add_argument(
    '--steps', type=int, default=24, help='of a round of the model; 0: none'
  )
  parser.add_argument(
    '--profile', action='store_true', help='profile one thread, no more'
  )
  parser.add_argument(
    '--output', type=Path, default=RESULTS / 'input_throughput.json'
  )
  config, arguments = parse_experiment(argv, parser)
  start_logging()
  jax.set_mesh(data_mesh())
  corpus = prepare(config.data)
  batches = training_batches(config, corpus)
  print(batches.table())
  if arguments.profile:
    print_profile(batches, _PROFILED)
    return
  results = circumstances() | _results(config, corpus, batches, arguments)
  write_results(arguments.output, results)
  print(_report(results))


def training_batches(
  config: ExperimentConfig, corpus: PreparedCorpus
) -> TrainingBatches:
  """As the training loop makes them."""
  split = corpus.split('train')
  shapes = training_shapes(
    split.lengths,
    config.data.batch,
    config.optimizer.accumulation,
    config.data.filter.max_length,
  )
  return TrainingBatches(
    split,
    shapes,
    config.training.seed,
    sampling=config.data.sampling.enabled,
    packing=config.data.batch.packing,
  )


def real_share(batches: TrainingBatches, lengths: np.ndarray) -> float:
  """Share of the slots of an epoch that hold real tokens, both sides."""
  return float(np.asarray(lengths).sum() / batches.plan.epoch(0).slots())


def host_rate(batches: TrainingBatches, seconds: float) -> float:
  """Target tokens/s that one thread reads and assembles."""
  tokens = step = 0
  batches.plan.epoch(0)
  begin = time.perf_counter()
  while (passed := time.perf_counter() - begin) < seconds:
    tokens += _target_tokens(batches[step])
    step += 1
  return tokens / passed


def print_profile(batches: TrainingBatches, steps: int) -> None:
  """Prints what one thread does in the first batches, the slowest first."""
  batches.plan.epoch(0)
  with cProfile.Profile() as profile:
    for step in range(steps):
      batches[step]
  pstats.Stats(profile).strip_dirs().sort_stats('tottime').print_stats(12)


def input_rate(batches: TrainingBatches, seconds: float) -> float:
  """Target tokens/s of the pipeline, to the device, with nothing else."""
  iterator = training_iterator(batches, by_rows(data_mesh()))
  next(iterator)
  tokens, begin = 0, time.perf_counter()
  while (passed := time.perf_counter() - begin) < seconds:
    tokens += _target_tokens(next(iterator))
  iterator.close()
  return tokens / passed


def model_rates(
  config: ExperimentConfig,
  corpus: PreparedCorpus,
  batches: TrainingBatches,
  steps: int,
  rounds: int,
) -> list[float]:
  """Target tokens/s of the training step on the first batches."""
  mesh = data_mesh()
  model = make_model(config, corpus.source_tokenizer, corpus.target_tokenizer)
  optimizer = make_optimizer(config.optimizer, config.model.width)
  step = make_train_step(model, optimizer, config)
  state = initial_state(model, optimizer, 0)
  carry = jax.device_put(state, replicated(mesh)), fresh_totals(config)
  held = [jax.device_put(batches[i], by_rows(mesh)) for i in range(steps)]
  tokens = sum(map(_target_tokens, held))
  rates = []
  for _ in range(rounds + 1):
    begin = time.perf_counter()
    for batch in held:
      carry = step(*carry, batch)
    jax.block_until_ready(carry)
    rates.append(tokens / (time.perf_counter() - begin))
  return rates[1:]


def _results(
  config: ExperimentConfig,
  corpus: PreparedCorpus,
  batches: TrainingBatches,
  arguments: argparse.Namespace,
) -> dict[str, Any]:
  results = {
    'config': config.name,
    'shapes': [list(shape) for shape in batches.plan.shapes],
    'real_share': real_share(batches, corpus.split('train').lengths),
    'packing': config.data.batch.packing,
    **{
      name: spread(
        [rate(batches, arguments.seconds) for _ in range(arguments.rounds)]
      )
      for name, rate in (('one thread', host_rate), ('input', input_rate))
    },
  }
  if arguments.steps:
    results['model'] = spread(
      model_rates(config, corpus, batches, arguments.steps, arguments.rounds)
    )
    ratio = results['input']['median'] / results['model']['median']
    results['input_per_model'] = ratio
  return results


def _target_tokens(batch: Batch) -> int:
  return int(np.asarray(batch.target_lengths).sum())


def _report(results: dict[str, Any]) -> str:
  rows = [
    (name, *(f'{results[name][key]:,.0f}' for key in ('median', 'min', 'max')))
    for name in ('one thread', 'input', 'model')
    if name in results
  ]
  lines = [
    table(('target tokens/s', 'median', 'min', 'max'), rows),
    f'{len(results["shapes"])} shapes, '
    f'{results["real_share"]:.1%} of their slots hold real tokens',
  ]
  if 'input_per_model' in results:
    lines.append(
      f'the input delivers {results["input_per_model"]:.0f} times what the '
      'model takes'
    )
  return '\n'.join(lines)


if __name__ == '__main__':
  use_huge_pages()
  sys.exit(main(sys.argv[1:]))
