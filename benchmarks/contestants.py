r"""fusion_jax as a contestant: its training step, its search, and its products.

    echo 5 | python -m benchmarks.contestants step --size=base \
        --dtype=bfloat16 --layout=packed --rows=64 --length=128 --updates=5
    echo 1 | python -m benchmarks.contestants search --size=base --beam=4
    echo 5 | python -m benchmarks.contestants products --size=base
    python -m benchmarks.contestants export --size=base --output=DIR

A timed step is as many updates as --updates says, which the host starts one
after another without waiting, as in a training. `products` are those of a step
and nothing else: the machine's own rate for these shapes. `export` writes the
run of the search, with random parameters, as a model of CTranslate2.
"""

import argparse
import dataclasses
import functools
import itertools
import sys
import time
import types
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int32
from sentencepiece import sentencepiece_model_pb2

from benchmarks.hlo_traffic import traffic
from benchmarks.serving import add_size, add_task, serve, task_of
from benchmarks.sizes import (
  END,
  LENGTH,
  SIZES,
  SPECIAL_SYMBOLS,
  START,
  Product,
  Size,
  Task,
)
from fusion_jax.config import (
  ExperimentConfig,
  ModelConfig,
  OptimizerConfig,
  TrainingConfig,
)
from fusion_jax.config.presets import Row, changed
from fusion_jax.data.batching import Batch, Shape
from fusion_jax.data.packed_batches import PackedPlan, assemble_packed
from fusion_jax.data.tokenizer import Tokenizer
from fusion_jax.decoding.compiled import (
  SearchRows,
  SearchSettings,
  search_batch,
)
from fusion_jax.decoding.model_step import Source
from fusion_jax.models.transformer import (
  Parameters,
  Transformer,
  initial_parameters,
)
from fusion_jax.parallel.mesh import by_rows, data_mesh, replicated
from fusion_jax.runs.loading import TrainedModel
from fusion_jax.search.constraints import Requirements
from fusion_jax.search.hypotheses import LengthPenalty
from fusion_jax.tools.aot.matmul_flops import product_gflop
from fusion_jax.tools.export.ctranslate2 import export
from fusion_jax.training.optimizer import make_optimizer
from fusion_jax.training.state import initial_state
from fusion_jax.training.step import make_train_step, zero_totals

_BATCHES = 4
_COMPILED = '/jax/core/compile/backend_compile_duration'
_PIECES = ('<pad>', '<unk>', '<s>', '</s>')
_PLAIN: Row = types.MappingProxyType({})
# Which axis of each operand of a product is contracted.
_DIRECTIONS = {'forward': (1, 0), 'by input': (1, 1), 'by weight': (0, 0)}


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
  return Transformer(config.model, vocabulary, vocabulary, start_id=START)


def moved_gbytes(text: str, trips: int = 1) -> float:
  """10^9 bytes that the instructions of a compiled program read and write."""
  return sum(one.moved for one in traffic(text, trips)) / 1e9


def _compilations() -> list[float]:
  """Seconds of every compilation from now on.

  JAX keeps a listener for ever: it must not hold a model.
  """
  seconds_of_all: list[float] = []

  def listen(event: str, seconds: float, **_: Any) -> None:
    if event == _COMPILED:
      seconds_of_all.append(seconds)

  jax.monitoring.register_event_duration_secs_listener(listen)
  return seconds_of_all


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
    SPECIAL_SYMBOLS,
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
    random.integers, SPECIAL_SYMBOLS, size.vocabulary, dtype=np.int32
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

  Its state takes memory from the first step on. A step has `gflop` 10^9
  operations of matrix products, and its instructions move `gbytes` 10^9 bytes.
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


def random_run(size: Size, dtype: str, row: Row = _PLAIN) -> TrainedModel:
  """The Transformer of a size, as a scheme changes it, with made-up pieces."""
  config = changed(experiment(size), {'model.compute_dtype': dtype} | row)
  model = make_model(size, config)
  tokenizer = _made_up_tokenizer(size.vocabulary)
  # Larger layers: with a tied table alone every token would repeat the last.
  parameters = jax.tree.map(
    lambda x: 2 * x if x.ndim > 1 else x, initial_parameters(model, seed=0)
  )
  parameters['source_embedding'] /= 2
  return TrainedModel(config, model, parameters, 0, tokenizer, tokenizer)


def _made_up_tokenizer(pieces: int) -> Tokenizer:
  """The four special symbols and piece4, piece5, ..."""
  model = sentencepiece_model_pb2.ModelProto()
  kinds = sentencepiece_model_pb2.ModelProto.SentencePiece
  for piece in _PIECES:
    kind = kinds.UNKNOWN if piece == '<unk>' else kinds.CONTROL
    model.pieces.add(piece=piece, score=0.0, type=kind)
  for index in range(len(_PIECES), pieces):
    model.pieces.add(piece=f'piece{index}', score=-float(index))
  spec = model.trainer_spec
  spec.model_type, spec.vocab_size = spec.UNIGRAM, pieces
  spec.pad_id, spec.unk_id, spec.bos_id, spec.eos_id = range(len(_PIECES))
  return Tokenizer(model.SerializeToString())


class FusionJaxSearch:
  """Encoder and search of all sentences, from ids to ids on the host.

  It is compiled ahead of time, and its parameters take memory of the device
  from the first step on.
  """

  def __init__(self, size: Size, task: Task, dtype: str, row: Row = _PLAIN):
    with jax.default_device(jax.devices('cpu')[0]):
      run = random_run(size, dtype, row)
    self._on_host = jax.device_get(run.parameters)
    settings = SearchSettings(task.beam, 1, END, LengthPenalty(), compacts=True)
    limits = np.full(task.rows, LENGTH, np.int32)
    self._rows = [
      SearchRows(
        (Source(np.array(batch, np.int32), limits),),
        max_lengths=limits,
        numbers=np.arange(task.rows, dtype=np.int32),
        requirements=Requirements(limits),
      )
      for batch in task.batches(size)
    ]
    self._search = search_batch.lower(
      (self._on_host,),
      self._rows[0],
      models=(run.model,),
      settings=settings,
      max_length=LENGTH,
    ).compile()
    self._first: list[int] = []

  @functools.cached_property
  def _parameters(self) -> Parameters:
    return jax.device_put(self._on_host)

  def step(self) -> None:
    """Translates everything once."""
    translated = [
      jax.device_get(self._search((self._parameters,), rows))
      for rows in self._rows
    ]
    if any((batch.lengths != LENGTH).any() for batch in translated):
      raise RuntimeError('a translation has another length')
    self._first = translated[0].tokens[0, 0, :-1].tolist()

  def report(self) -> dict[str, Any]:
    """Version, device, and the first translation without its end symbol."""
    return {
      'version': f'jax {version("jax")}',
      'device': jax.devices()[0].platform,
      'first': self._first,
    }


class _Timed:
  """One kind of product in one direction, with its seconds and GFLOP so far.

  It writes into the same memory every time, so that its rate is that of the
  arithmetic and not that of fresh memory.
  """

  def __init__(self, product: Product, left: int, right: int):
    rows, inner, columns = product.rows, product.inner, product.columns
    x_shape, w_shape, y_shape = (rows, inner), (inner, columns), (rows, columns)
    a = y_shape if (left, right) == (1, 1) else x_shape
    b = y_shape if (left, right) == (0, 0) else w_shape
    out = (a[1 - left], b[1 - right])
    lead = (product.batch,) if product.batch > 1 else ()
    contracted = (left + len(lead),), (right + len(lead),)
    dims = contracted, (((0,), (0,)) if lead else ((), ()))
    self._multiply = jax.jit(
      lambda a, b, out: jax.lax.dot_general(a, b, dims),
      donate_argnums=2,
      keep_unused=True,
    )
    self._a, self._b, self._out = (
      jnp.full(lead + shape, 0.01, jnp.float32) for shape in (a, b, out)
    )
    self._count, self._gflop = product.count, product.gflop / 3
    self.run()
    self.seconds = self.gflop = 0.0

  def run(self) -> float:
    """Seconds of all products of this kind."""
    begin, out = time.perf_counter(), self._out
    for _ in range(self._count):
      out = self._multiply(self._a, self._b, out)
    self._out = out.block_until_ready()
    return time.perf_counter() - begin

  def step(self) -> None:
    """Counts what `run` takes."""
    self.seconds += self.run()
    self.gflop += self._gflop


class MatrixProducts:
  """All products of a step: forward, by the input, by the weight."""

  def __init__(self, size: Size):
    self._timed = {
      f'{product.name}, {direction}': _Timed(product, *axes)
      for product in size.products()
      for direction, axes in _DIRECTIONS.items()
    }

  def step(self) -> None:
    """All products of a step, one after another."""
    for kind in self._timed.values():
      kind.step()

  def report(self) -> dict[str, Any]:
    """Also GFLOP/s of every kind."""
    rates = {
      name: kind.gflop / kind.seconds for name, kind in self._timed.items()
    }
    return {'version': f'jax {version("jax")}', 'gflop_per_second': rates}


def _parse() -> argparse.Namespace:
  parser = argparse.ArgumentParser()
  programs = parser.add_subparsers(dest='program', required=True)
  step, search, products, exported = map(
    programs.add_parser, ('step', 'search', 'products', 'export')
  )
  add_task(search)
  for program in (step, products, exported):
    add_size(program)
  for program in (step, search):
    program.add_argument(
      '--dtype', choices=('float32', 'bfloat16'), default='float32'
    )
  exported.add_argument('--output', type=Path, required=True)
  step.add_argument(
    '--dropout_everywhere',
    action='store_true',
    help='also on attention weights and the hidden layer of the filter',
  )
  step.add_argument('--layout', choices=('dense', 'packed'), default='dense')
  for name in ('rows', 'length', 'loss_chunk'):
    step.add_argument(f'--{name}', type=int, help='default: as --size')
  step.add_argument('--updates', type=int, default=1)
  return parser.parse_args()


def _training_step(arguments: argparse.Namespace, size: Size) -> FusionJaxStep:
  changes = {
    name: getattr(arguments, name)
    for name in ('rows', 'length', 'loss_chunk')
    if getattr(arguments, name)
  }
  size = dataclasses.replace(size, **changes)
  config = experiment(size, arguments.dropout_everywhere)
  config = changed(config, {'model.compute_dtype': arguments.dtype})
  make = packed_batches if arguments.layout == 'packed' else random_batches
  return FusionJaxStep(size, config, make(size), arguments.updates)


def main() -> None:
  arguments = _parse()
  size = SIZES[arguments.size]
  if arguments.program == 'step':
    serve(lambda: _training_step(arguments, size))
  elif arguments.program == 'search':
    task = task_of(arguments)
    serve(lambda: FusionJaxSearch(size, task, arguments.dtype), warm_up_steps=1)
  elif arguments.program == 'products':
    serve(lambda: MatrixProducts(size))
  else:
    export(random_run(size, 'float32'), arguments.output)


if __name__ == '__main__':
  sys.exit(main())
