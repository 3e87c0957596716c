r"""Preparing a corpus, the input pipeline, the training step, each alone.

    python -m benchmarks.input_throughput --config=multi30k \
        --config.data.root=DIR [--config.data.batch.packing=true]

Counts target tokens without padding. The corpus is prepared anew with the
tokenizers that it has, on one core and on all. The step is timed on the first
batches after a pass over them that compiles their shapes.
"""

import argparse
import dataclasses
import os
import sys
import tempfile
import time
from pathlib import Path

import jax
import numpy as np

from benchmarks import common
from fusion_jax.config import DataConfig, ExperimentConfig
from fusion_jax.config.flags import parse_experiment
from fusion_jax.data.batching import Batch
from fusion_jax.data.pipeline import (
  TrainingBatches,
  training_iterator,
  training_shapes,
)
from fusion_jax.data.prepare import prepare
from fusion_jax.data.prepared import SOURCE_MODEL, TARGET_MODEL, PreparedCorpus
from fusion_jax.parallel.mesh import by_rows, data_mesh, replicated
from fusion_jax.runs.loading import make_model
from fusion_jax.startup import one_line_errors, restart_tuned, start_logging
from fusion_jax.training.build import initial_state
from fusion_jax.training.optimizer import make_optimizer
from fusion_jax.training.step import make_train_step, zero_totals


def training_batches(
  config: ExperimentConfig, corpus: PreparedCorpus
) -> TrainingBatches:
  """As the training loop makes them."""
  split, data = corpus.split('train'), config.data
  shapes = training_shapes(
    split.lengths,
    data.batch,
    config.optimizer.accumulation,
    data.filter.max_length,
  )
  return TrainingBatches(
    split,
    shapes,
    config.training.seed,
    sampling=data.sampling.enabled,
    packing=data.batch.packing,
  )


def input_rate(batches: TrainingBatches, seconds: float) -> float:
  """Target tokens/s of the pipeline, to the device, with nothing else."""
  iterator = training_iterator(batches, by_rows(data_mesh()))
  next(iterator)
  tokens, begin = 0, time.perf_counter()
  while (passed := time.perf_counter() - begin) < seconds:
    tokens += _target_tokens(next(iterator))
  iterator.close()
  return tokens / passed


def prepare_rates(
  data: DataConfig, corpus: PreparedCorpus, rounds: int
) -> dict[str, list[float]]:
  """Pairs/s prepared with the tokenizers of a corpus, by number of cores."""
  models = [
    str(corpus.directory.resolve() / name)
    for name in (SOURCE_MODEL, TARGET_MODEL)
  ]
  tokenizer = dataclasses.replace(
    data.tokenizer, source_model=models[0], target_model=models[1], joint=False
  )
  data = dataclasses.replace(data, tokenizer=tokenizer)
  splits = corpus.report['splits'].values()
  pairs = sum(split['pairs'] for split in splits)
  every = os.sched_getaffinity(0)
  rates: dict[str, list[float]] = {}
  for _ in range(rounds):
    for cores in ({min(every)}, every):
      os.sched_setaffinity(0, cores)
      rate = pairs / _seconds_to_prepare(data)
      rates.setdefault(f'cores: {len(cores)}', []).append(rate)
  return rates


def _seconds_to_prepare(data: DataConfig) -> float:
  with tempfile.TemporaryDirectory() as folder:
    begin = time.perf_counter()
    prepare(dataclasses.replace(data, prepared=folder))
    return time.perf_counter() - begin


def model_rates(
  config: ExperimentConfig,
  corpus: PreparedCorpus,
  batches: TrainingBatches,
  arguments: argparse.Namespace,
) -> list[float]:
  """Target tokens/s of the training step on the first batches."""
  mesh = data_mesh()
  model = make_model(config, corpus.source_tokenizer, corpus.target_tokenizer)
  optimizer = make_optimizer(config.optimizer, config.model.width)
  step = make_train_step(model, optimizer, config)
  state = initial_state(model, optimizer, 0)
  totals = zero_totals(config.model.encoder_layers)
  carry = jax.device_put((state, totals), replicated(mesh))
  first = (batches[index] for index in range(arguments.steps))
  placed = [jax.device_put(batch, by_rows(mesh)) for batch in first]
  tokens, rates = sum(map(_target_tokens, placed)), []
  for _ in range(arguments.rounds + 1):
    begin = time.perf_counter()
    for batch in placed:
      carry = step(*carry, batch)
    jax.block_until_ready(carry)
    rates.append(tokens / (time.perf_counter() - begin))
  return rates[1:]


def _target_tokens(batch: Batch) -> int:
  return int(np.asarray(batch.target_lengths).sum())


@one_line_errors
def main(argv: list[str]) -> None:
  parser = argparse.ArgumentParser()
  add = parser.add_argument
  add('--rounds', type=int, default=3)
  add('--seconds', type=float, default=10, help='of a round')
  add('--steps', type=int, default=24, help='of a round of the model')
  output = common.RESULTS / 'input_throughput.json'
  add('--output', type=Path, default=output)
  config, arguments = parse_experiment(argv, parser)
  start_logging()
  jax.set_mesh(data_mesh())
  corpus = prepare(config.data)
  batches = training_batches(config, corpus)
  print(batches.table())
  seconds, rounds = arguments.seconds, range(arguments.rounds)
  prepared = {
    cores: common.spread(rates)
    for cores, rates in prepare_rates(config.data, corpus, len(rounds)).items()
  }
  host = common.spread([input_rate(batches, seconds) for _ in rounds])
  rates = model_rates(config, corpus, batches, arguments)
  model = common.spread(rates)
  real = float(np.asarray(corpus.split('train').lengths).sum())
  results = {
    'config': config.name,
    'shapes': [list(shape) for shape in batches.plan.shapes],
    'real_share': real / batches.plan.epoch(0).slots(),
    'packing': config.data.batch.packing,
    'prepare': prepared,
    'input': host,
    'model': model,
    'input_per_model': host['median'] / model['median'],
  }
  common.write_results(arguments.output, common.circumstances() | results)
  rows = [(name, *common.cells(rates)) for name, rates in prepared.items()]
  print(common.table(('pairs/s prepared', 'median', 'min', 'max'), rows))
  rows = [(name, *common.cells(results[name])) for name in ('input', 'model')]
  print(common.table(('target tokens/s', 'median', 'min', 'max'), rows))
  print(
    f'{len(results["shapes"])} shapes, {results["real_share"]:.1%} of their '
    'slots hold real tokens; the input delivers '
    f'{results["input_per_model"]:.0f} times what the model takes'
  )


if __name__ == '__main__':
  restart_tuned()
  sys.exit(main(sys.argv[1:]))
