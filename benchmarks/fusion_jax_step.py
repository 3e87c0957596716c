"""The training step of fusion_jax as a contestant, on dense or packed rows.

    echo 5 | python -m benchmarks.fusion_jax_step --size=base --dtype=bfloat16 \
        --layout=packed --rows=64 --length=128 --updates=5

A timed step is as many updates as --updates says, which the host starts one
after another without waiting, as in a training.
"""

import dataclasses
import functools
import itertools
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Int32

from benchmarks.serving import contestant_parser, serve
from benchmarks.sizes import SIZES, Size
from fusion_jax.config import (
  ExperimentConfig,
  ModelConfig,
  OptimizerConfig,
  TrainingConfig,
)
from fusion_jax.config.presets import changed
from fusion_jax.data.batching import Batch, Shape
from fusion_jax.data.packed_batches import PackedPlan, assemble_packed
from fusion_jax.models.transformer import Parameters, Transformer
from fusion_jax.parallel.mesh import by_rows, data_mesh, replicated
from fusion_jax.tools.aot.hlo_traffic import traffic
from fusion_jax.tools.aot.matmul_flops import product_gflop
from fusion_jax.training.optimizer import make_optimizer
from fusion_jax.training.state import initial_state
from fusion_jax.training.step import make_train_step, zero_totals

_SPECIAL_SYMBOLS, _START, _BATCHES = 4, 2, 4
_COMPILED = '/jax/core/compile/backend_compile_duration'


class _Pair(NamedTuple):
  source: Int32[np.ndarray, ' S']
  target: Int32[np.ndarray, ' T']


def experiment(
  size: Size, dropout_everywhere: bool = False
) -> ExperimentConfig:
  """The size as a config."""
  inner = size.dropout if dropout_everywhere else 0.0
  model = ModelConfig(
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
  )
  return ExperimentConfig(
    model=model,
    optimizer=OptimizerConfig(schedule='inverse_sqrt'),
    training=TrainingConfig(
      label_smoothing=size.label_smoothing, loss_chunk=size.loss_chunk
    ),
  )


def make_model(size: Size, config: ExperimentConfig) -> Transformer:
  """The Transformer of a config for the vocabulary of a size."""
  vocabulary = size.vocabulary
  return Transformer(config.model, vocabulary, vocabulary, start_id=_START)


def moved_gbytes(text: str, trips: int = 1) -> float:
  """10^9 bytes that the instructions of a compiled program read and write."""
  return sum(one.moved for one in traffic(text, trips)) / 1e9


def _compilations() -> list[float]:
  """Seconds of every compilation from now on.

  JAX keeps a listener for ever: it must not hold a model.
  """
  found: list[float] = []

  def listen(event: str, seconds: float, **_: Any) -> None:
    if event == _COMPILED:
      found.append(seconds)

  jax.monitoring.register_event_duration_secs_listener(listen)
  return found


@functools.cache
def _compiled_start(
  model: Transformer, config: ExperimentConfig
) -> tuple[Any, Callable[[], Any]]:
  """Shapes of state and totals before the first step, and what makes them."""

  @functools.partial(jax.jit, out_shardings=replicated(data_mesh()))
  def start():
    optimizer = make_optimizer(config.optimizer, config.model.width)
    totals = zero_totals(config.model.encoder_layers)
    return initial_state(model, optimizer, seed=0), totals

  lowered = start.lower()
  return lowered.out_info, lowered.compile()


def random_batches(size: Size) -> list[Batch]:
  """Dense batches of random ids, on the host."""
  random = np.random.default_rng(0)
  ids = functools.partial(
    random.integers,
    _SPECIAL_SYMBOLS,
    size.vocabulary,
    (2, size.rows, size.length),
    dtype=np.int32,
  )
  lengths = np.full(size.rows, size.length, np.int32)
  return [Batch(*ids(), lengths, lengths) for _ in range(_BATCHES)]


def packed_batches(size: Size) -> list[Batch]:
  """Packed rows of random pairs, on the host.

  Sentences have up to 7/16 of the length of a row, and sources about that of
  their targets.
  """
  random = np.random.default_rng(0)
  # A row takes four pairs of mean length.
  pairs, longest = 4 * size.rows * (_BATCHES + 1), 7 * size.length // 16
  targets = random.integers(2, longest + 1, pairs)
  sources = np.clip(targets + random.integers(-2, 3, pairs), 2, longest)
  lengths = np.stack([sources, targets], axis=1).astype(np.int32)
  shape = Shape(size.rows, size.length, size.length)
  plan = PackedPlan(lengths, shape, seed=0)
  ids = functools.partial(
    random.integers, _SPECIAL_SYMBOLS, size.vocabulary, dtype=np.int32
  )
  batches = []
  for step in range(_BATCHES):
    _, _, chosen = plan.batch(step)
    taken = chosen >= 0
    examples = [_Pair(*map(ids, lengths[index])) for index in chosen[taken]]
    batches.append(assemble_packed(examples, taken.sum(axis=1), shape))
  return batches


class FusionJaxStep:
  """Compiled ahead of time, so that its memory can be read.

  Its state takes memory from the first step on.

  Attributes:
    model: the Transformer.
    gflop: 10^9 floating point operations of the products of a step.
    gbytes: 10^9 bytes that the instructions of a step read and write.
    traffic: what each of them moves.
    planned: the memory that XLA plans for it.
    compile_seconds: what its compilation took.
    target_tokens: of a batch, in the mean.
  """

  def __init__(
    self,
    size: Size,
    config: ExperimentConfig,
    batches: Sequence[Batch] = (),
    updates: int = 1,
  ):
    """Compiles the step; without batches, for dense ones of the size."""
    self._compiled = _compilations()
    mesh = data_mesh()
    jax.set_mesh(mesh)
    self.model, self._updates = make_model(size, config), updates
    optimizer = make_optimizer(config.optimizer, size.width)
    # The start does not depend on the attention, nor on the batch.
    plain = changed(config, {'model.attention_implementation': 'plain'})
    shapes, self._make = _compiled_start(make_model(size, plain), plain)
    self._sharding = by_rows(mesh)
    batches = batches or random_batches(size)
    lengths = [batch.target_lengths.sum() for batch in batches]
    self.target_tokens = float(np.mean(lengths))
    self._batches = itertools.cycle(batches)
    traced = make_train_step(self.model, optimizer, config).trace(
      *shapes, batches[0]
    )
    self.gflop = product_gflop(traced.jaxpr)
    lowered, begin = traced.lower(), time.perf_counter()
    self._step = lowered.compile()
    self.compile_seconds = time.perf_counter() - begin
    self.planned = self._step.memory_analysis()
    self.traffic = traffic(self._step.as_text())
    self.gbytes = sum(one.moved for one in self.traffic) / 1e9
    self._compiled_warm: int | None = None

  @functools.cached_property
  def _carry(self) -> list[Any]:
    """State and totals, which every step replaces."""
    return list(self._make())

  @property
  def parameters(self) -> Parameters:
    """Of the model, until the next step."""
    return self._carry[0].parameters

  @property
  def loss(self) -> float:
    """The mean loss per token of all steps."""
    sums = jax.device_get(self._carry[1].sums)
    return float(sums.loss / sums.tokens)

  def step(self) -> None:
    """Some updates; the host waits for the last one only."""
    for _ in range(self._updates):
      batch = jax.device_put(next(self._batches), self._sharding)
      self._carry[:] = self._step(*self._carry, batch)
    jax.block_until_ready(self._carry)
    if self._compiled_warm is None:
      self._compiled_warm = len(self._compiled)

  def report(self) -> dict[str, Any]:
    """Also compilation, operations, and memory: planned, and of the device."""
    used = jax.local_devices()[0].memory_stats() or {}
    return {
      'version': f'jax {version("jax")}, flax {version("flax")}',
      'parameters': sum(x.size for x in jax.tree.leaves(self.parameters)),
      'loss': self.loss,
      'gflop': self.gflop,
      'gbytes': self.gbytes,
      'target_tokens': self.target_tokens,
      'compile_seconds': self.compile_seconds,
      'compilations_after_first_step': (
        len(self._compiled) - self._compiled_warm
      ),
      'temporary_memory_mb': self.planned.temp_size_in_bytes / 2**20,
      'argument_memory_mb': self.planned.argument_size_in_bytes / 2**20,
      'planned_mb': self.planned.peak_memory_in_bytes / 2**20,
      'peak_device_mb': used.get('peak_bytes_in_use', 0) / 2**20 or None,
    }


def main() -> None:
  parser = contestant_parser()
  add = parser.add_argument
  add(
    '--dropout_everywhere',
    action='store_true',
    help='also on attention weights and the hidden layer of the filter',
  )
  add('--dtype', choices=('float32', 'bfloat16'), default='float32')
  add('--layout', choices=('dense', 'packed'), default='dense')
  for name in ('rows', 'length', 'loss_chunk'):
    add(f'--{name}', type=int, help='default: as --size')
  add('--updates', type=int, default=1)
  own = parser.parse_args()
  given = {
    name: getattr(own, name) for name in ('rows', 'length', 'loss_chunk')
  }
  given = {name: value for name, value in given.items() if value}
  make = packed_batches if own.layout == 'packed' else random_batches

  def contestant(size: Size) -> FusionJaxStep:
    config = experiment(size, own.dropout_everywhere)
    config = changed(config, {'model.compute_dtype': own.dtype})
    return FusionJaxStep(size, config, make(size), own.updates)

  serve(contestant, dataclasses.replace(SIZES[own.size], **given))


if __name__ == '__main__':
  sys.exit(main())
