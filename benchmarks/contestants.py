"""fusion_jax as a contestant: its training step, its search, and its products.

    echo 5 | python -m benchmarks.contestants step --size=base
    echo 1 | python -m benchmarks.contestants search --size=base --beam=4
    echo 5 | python -m benchmarks.contestants products --size=base
    python -m benchmarks.contestants export --size=base --output=DIR

`products` are those of a step and nothing else: the machine's own rate for
these shapes. `export` writes the run of the search, with random parameters, as
a model of CTranslate2.
"""

import argparse
import functools
import itertools
import sys
import time
import types
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from sentencepiece import sentencepiece_model_pb2

from benchmarks.hlo_traffic import traffic
from benchmarks.serving import add_size, add_task, serve, task_of, timed
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
from fusion_jax.config import ExperimentConfig
from fusion_jax.config.presets import Row, changed, depth
from fusion_jax.data.batching import Batch, Shape, assemble
from fusion_jax.data.encoding import Example
from fusion_jax.data.packing import PackedPlan
from fusion_jax.data.tokenizer import Tokenizer
from fusion_jax.decoding.model_step import (
  SearchRows,
  SearchSettings,
  Source,
  search_batch,
)
from fusion_jax.models.transformer import (
  Parameters,
  Transformer,
  initial_parameters,
)
from fusion_jax.parallel.mesh import by_rows, data_mesh, replicated
from fusion_jax.runs.loading import TrainedModel
from fusion_jax.runs.precision import Precision, narrow
from fusion_jax.search.constraints import Requirements
from fusion_jax.search.hypotheses import LengthPenalty
from fusion_jax.tools.aot.counts import product_gflop
from fusion_jax.tools.export.ctranslate2 import export
from fusion_jax.training.build import initial_state
from fusion_jax.training.optimizer import make_optimizer
from fusion_jax.training.step import make_train_step, zero_totals

_BATCHES = 4
_PIECES = ('<pad>', '<unk>', '<s>', '</s>')
_PLAIN: Row = types.MappingProxyType({})
# Which axis of each operand of a product is contracted.
_DIRECTIONS = {'forward': (1, 0), 'by input': (1, 1), 'by weight': (0, 0)}


def experiment(
  size: Size, dropout_everywhere: bool = False, product_dtype: str = 'float32'
) -> ExperimentConfig:
  inner = size.dropout if dropout_everywhere else 0.0
  fields = {
    'model.width': size.width,
    'model.filter': size.filter,
    'model.heads': size.heads,
    **depth(size.layers, size.layers),
    'model.norm': 'pre',
    'model.product_dtype': product_dtype,
    'model.dropout': size.dropout,
    'model.embedding_dropout': size.dropout,
    'model.attention_dropout': inner,
    'model.activation_dropout': inner,
    'optimizer.schedule': 'inverse_sqrt',
    'training.label_smoothing': size.label_smoothing,
    'training.loss_chunk': size.loss_chunk,
  }
  return changed(ExperimentConfig(), fields)


def make_model(size: Size, config: ExperimentConfig) -> Transformer:
  vocabulary = size.vocabulary
  return Transformer(config.model, vocabulary, vocabulary, start_id=START)


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
    pairs = (map(ids, lengths[index]) for index in chosen[taken])
    examples = [Example(*pair) for pair in pairs]
    batches.append(assemble(examples, shape, taken.sum(axis=1)))
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

  @functools.cached_property
  def _carry(self) -> list[Any]:
    """State and totals, which every step replaces."""
    return list(self._make())

  @property
  def parameters(self) -> Parameters:
    return self._carry[0].parameters

  @property
  def loss(self) -> float:
    sums = jax.device_get(self._carry[1].sums)
    return float(sums.loss / sums.tokens)

  def step(self) -> None:
    for _ in range(self._updates):
      batch = jax.device_put(next(self._batches), self._sharding)
      self._carry[:] = self._step(*self._carry, batch)
    jax.block_until_ready(self._carry)

  def report(self) -> dict[str, Any]:
    used = jax.local_devices()[0].memory_stats() or {}
    return {
      'version': f'jax {version("jax")}, flax {version("flax")}',
      'parameters': sum(x.size for x in jax.tree.leaves(self.parameters)),
      'loss': self.loss,
      'gflop': self.gflop,
      'gbytes': self.gbytes,
      'target_tokens': self.target_tokens,
      'compile_seconds': self.compile_seconds,
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

  def __init__(
    self,
    size: Size,
    task: Task,
    dtype: str,
    row: Row = _PLAIN,
    precision: Precision = 'float32',
  ):
    with jax.default_device(jax.devices('cpu')[0]):
      run = random_run(size, dtype, row)
      parameters = narrow(run.model, run.parameters, precision)
    self._on_host = jax.device_get(parameters)
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

  @property
  def text(self) -> str:
    return self._search.as_text()

  @functools.cached_property
  def _parameters(self) -> Parameters:
    return jax.device_put(self._on_host)

  def step(self) -> None:
    translated = [
      jax.device_get(self._search((self._parameters,), rows))
      for rows in self._rows
    ]
    if any((batch.lengths != LENGTH).any() for batch in translated):
      raise RuntimeError('a translation has another length')
    self._first = translated[0].tokens[0, 0, :-1].tolist()

  def report(self) -> dict[str, Any]:
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
    """Of operands whose axes `left` and `right` are contracted."""
    x = product.rows, product.inner
    w = product.inner, product.columns
    y = product.rows, product.columns
    a, b = {(1, 0): (x, w), (1, 1): (y, w), (0, 0): (x, y)}[left, right]
    lead = (product.batch,) if product.batch > 1 else ()
    contracted = (left + len(lead),), (right + len(lead),)
    dims = contracted, (((0,), (0,)) if lead else ((), ()))
    self._multiply = jax.jit(
      lambda a, b, out: jax.lax.dot_general(a, b, dims),
      donate_argnums=2,
      keep_unused=True,
    )
    self._a, self._b, self._out = (
      jnp.full(lead + shape, 0.01, jnp.float32)
      for shape in (a, b, (a[1 - left], b[1 - right]))
    )
    self._count, self._gflop = product.count, product.gflop / 3
    self._run()
    self.seconds = self.gflop = 0.0

  def _run(self) -> None:
    out = self._out
    for _ in range(self._count):
      out = self._multiply(self._a, self._b, out)
    self._out = out.block_until_ready()

  def step(self) -> None:
    self.seconds += timed(self._run)
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
    for kind in self._timed.values():
      kind.step()

  def report(self) -> dict[str, Any]:
    rates = {
      name: kind.gflop / kind.seconds for name, kind in self._timed.items()
    }
    return {'version': f'jax {version("jax")}', 'gflop_per_second': rates}


def main(argv: list[str]) -> None:
  parser = argparse.ArgumentParser()
  programs = parser.add_subparsers(dest='program', required=True)
  step, search, products, exported = map(
    programs.add_parser, ('step', 'search', 'products', 'export')
  )
  add_task(search)
  search.add_argument('--precision', default='float32')
  for program in (step, products, exported):
    add_size(program)
  exported.add_argument('--output', type=Path, required=True)
  inner = 'also on attention weights and the hidden layer of the filter'
  step.add_argument('--dropout_everywhere', action='store_true', help=inner)
  step.add_argument('--product_dtype', default='float32')
  arguments = parser.parse_args(argv)
  size = SIZES[arguments.size]
  if arguments.program == 'step':
    config = experiment(
      size, arguments.dropout_everywhere, arguments.product_dtype
    )
    serve(lambda: FusionJaxStep(size, config))
  elif arguments.program == 'search':
    task = task_of(arguments)
    precision = arguments.precision
    serve(
      lambda: FusionJaxSearch(size, task, 'float32', precision=precision),
      warm_up_steps=1,
    )
  elif arguments.program == 'products':
    serve(lambda: MatrixProducts(size))
  else:
    export(random_run(size, 'float32'), arguments.output)


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
