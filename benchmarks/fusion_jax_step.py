"""The training step of fusion_jax as a contestant."""

import functools
import itertools
import sys
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import jax
import numpy as np

from benchmarks.serving import contestant_parser, serve
from benchmarks.sizes import SIZES, Size
from fusion_jax.config import (
  ExperimentConfig,
  ModelConfig,
  OptimizerConfig,
  TrainingConfig,
)
from fusion_jax.data.batching import Batch
from fusion_jax.models.transformer import Parameters, Transformer
from fusion_jax.parallel.mesh import by_rows, data_mesh, replicated
from fusion_jax.tools.aot.matmul_flops import product_gflop
from fusion_jax.training.initial_state import initial_state
from fusion_jax.training.optimizer import make_optimizer
from fusion_jax.training.step import Totals, make_train_step, zero_totals

_SPECIAL_SYMBOLS = 4
_START = 2
_BATCHES = 4
_COMPILED = '/jax/core/compile/backend_compile_duration'


class CompilationCounter:
  """Programs that XLA has compiled in this process, and the seconds."""

  def __init__(self):
    self.count, self.seconds = 0, 0.0
    jax.monitoring.register_event_duration_secs_listener(self._add)

  def _add(self, event: str, seconds: float, **_: Any) -> None:
    if event == _COMPILED:
      self.count += 1
      self.seconds += seconds


def experiment(
  size: Size, dropout_everywhere: bool = False
) -> ExperimentConfig:
  """The size as a config."""
  inner = size.dropout if dropout_everywhere else 0.0
  return ExperimentConfig(
    model=ModelConfig(
      width=size.width,
      filter=size.filter,
      heads=size.heads,
      encoder_layers=size.layers,
      decoder_layers=size.layers,
      norm='pre',
      dropout=size.dropout,
      embedding_dropout=size.dropout,
      attention_dropout=inner,
      activation_dropout=inner,
    ),
    optimizer=OptimizerConfig(schedule='inverse_sqrt'),
    training=TrainingConfig(
      label_smoothing=size.label_smoothing, loss_chunk=size.loss_chunk
    ),
  )


def make_model(size: Size, config: ExperimentConfig) -> Transformer:
  """The Transformer of a config for the vocabulary of a size."""
  vocabulary = size.vocabulary
  return Transformer(config.model, vocabulary, vocabulary, start_id=_START)


def fresh_totals(config: ExperimentConfig) -> Totals:
  """Zeros that can be donated: a buffer for each, on all devices."""
  zeros = functools.partial(zero_totals, config.model.encoder_layers)
  return jax.jit(zeros, out_shardings=replicated(data_mesh()))()


def random_batches(size: Size) -> Iterator[Batch]:
  """Dense batches of random ids, on the host, over and over."""
  random = np.random.default_rng(0)
  shape, lengths = (size.rows, size.length), np.full(size.rows, size.length)
  batches = [
    Batch(
      *random.integers(
        _SPECIAL_SYMBOLS, size.vocabulary, (2, *shape), dtype=np.int32
      ),
      lengths.astype(np.int32),
      lengths.astype(np.int32),
    )
    for _ in range(_BATCHES)
  ]
  return itertools.cycle(batches)


class FusionJaxStep:
  """Compiled ahead of time, so that its memory can be read.

  Attributes:
    model: the Transformer.
    gflop: 10^9 floating point operations of the products of a step.
  """

  def __init__(
    self,
    size: Size,
    config: ExperimentConfig,
    batches: Iterator[Batch] | None = None,
  ):
    """Compiles the step.

    Args:
      size: of the model, and of its batches.
      config: of the experiment.
      batches: of one shape, without end; None: dense ones of the size.
    """
    self._compilations = CompilationCounter()
    mesh = data_mesh()
    jax.set_mesh(mesh)
    self.model = make_model(size, config)
    optimizer = make_optimizer(config.optimizer, size.width)
    state = initial_state(self.model, optimizer, seed=0)
    self._state = jax.device_put(state, replicated(mesh))
    self._totals = fresh_totals(config)
    self._sharding = by_rows(mesh)
    self._batches = batches or random_batches(size)
    before = self._compilations.count, self._compilations.seconds
    traced = make_train_step(self.model, optimizer, config).trace(
      self._state, self._totals, self._batch()
    )
    self.gflop = product_gflop(traced.jaxpr)
    self._step = traced.lower().compile()
    self._of_step = {
      'compilations_of_step': self._compilations.count - before[0],
      'compile_seconds': self._compilations.seconds - before[1],
    }
    self._compiled_warm: int | None = None

  def _batch(self) -> Batch:
    return jax.device_put(next(self._batches), self._sharding)

  @property
  def parameters(self) -> Parameters:
    """Of the model, until the next step."""
    return self._state.parameters

  def step(self) -> None:
    """One update."""
    self.updates(1)

  def updates(self, count: int) -> None:
    """Some updates; the host waits for the last one only."""
    for _ in range(count):
      self._state, self._totals = self._step(
        self._state, self._totals, self._batch()
      )
    jax.block_until_ready((self._state, self._totals))
    if self._compiled_warm is None:
      self._compiled_warm = self._compilations.count

  def report(self) -> dict[str, Any]:
    """Also compilation and the memory that XLA planned."""
    memory = self._step.memory_analysis()
    sums = jax.device_get(self._totals.sums)
    return {
      'version': f'jax {version("jax")}, flax {version("flax")}',
      'parameters': sum(x.size for x in jax.tree.leaves(self.parameters)),
      'loss': float(sums.loss / sums.tokens),
      **self._of_step,
      'compilations_after_first_step': (
        self._compilations.count - self._compiled_warm
      ),
      'temporary_memory_mb': memory.temp_size_in_bytes / 2**20,
      'argument_memory_mb': memory.argument_size_in_bytes / 2**20,
    }


def main() -> None:
  """Serves until stdin ends."""
  parser = contestant_parser()
  parser.add_argument(
    '--dropout_everywhere',
    action='store_true',
    help='also on attention weights and the hidden layer of the filter',
  )
  arguments = parser.parse_args()
  serve(
    lambda size: FusionJaxStep(
      size, experiment(size, arguments.dropout_everywhere)
    ),
    SIZES[arguments.size],
  )


if __name__ == '__main__':
  sys.exit(main())
