"""Training steps and searches of a config, compiled for given devices.

`cost_analysis` counts the body of a loop once; products and exchanges are
counted here as often as they are done.
"""

import dataclasses
import functools
import logging
import math
import re
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from fusion_jax.config import DecodingConfig, ExperimentConfig
from fusion_jax.config.presets import changed
from fusion_jax.data.batching import Shape
from fusion_jax.data.mixing import training_mixture
from fusion_jax.data.pipeline import abstract_batch, training_shapes
from fusion_jax.data.prepared import PreparedCorpus
from fusion_jax.decoding import model_step
from fusion_jax.decoding.batches import decode_shapes
from fusion_jax.errors import CheckFailed, require
from fusion_jax.models.transformer import Transformer, initial_parameters
from fusion_jax.parallel.mesh import by_rows, data_mesh, make_mesh, replicated
from fusion_jax.runs.checkpoint import abstract_like
from fusion_jax.search.constraints import TokenRules
from fusion_jax.search.hypotheses import LengthPenalty
from fusion_jax.tools.aot import counts
from fusion_jax.tools.aot.topology import GIB, Chip
from fusion_jax.training.build import check_experiment, plan_state
from fusion_jax.training.optimizer import optimizer_for
from fusion_jax.training.step import make_train_step, zero_totals

logger = logging.getLogger(__name__)

# The ids that start and end a line do not change the programs.
_START, _END = 1, 2


@dataclasses.dataclass(frozen=True)
class ProgramRequest:
  """What of a config is compiled."""

  step: Literal['train', 'decode'] = 'train'
  # None: that of the other side, or else the most that the config allows.
  source_length: int | None = None
  target_length: int | None = None
  prepared: str = ''  # Prepared folder that gives shapes and vocabularies.


@dataclasses.dataclass(frozen=True)
class Program:
  """A program that is ready to be compiled."""

  traced: jax.stages.Traced
  mesh: Mesh
  shape: Shape
  weights: Any  # Shapes of the model's parameters, and their sharding.
  trips: int = 1  # Of a loop of unknown count: the most steps of a search.

  @property
  def parameters(self) -> int:
    return sum(math.prod(x.shape) for x in jax.tree.leaves(self.weights))


def program_for(
  config: ExperimentConfig, request: ProgramRequest, devices: Sequence[Any]
) -> Program:
  sizes = vocabulary_sizes(config, request.prepared)
  model = Transformer(config.model, *sizes, _START)
  if request.step == 'train':
    shape = training_shape(config, request)
    return training_program(config, model, shape, devices)
  return _search_program(config, model, search_shape(config, request), devices)


def vocabulary_sizes(
  config: ExperimentConfig, prepared: str
) -> tuple[int, int]:
  if not prepared:
    return (config.data.tokenizer.vocabulary_size,) * 2
  corpus = PreparedCorpus(prepared)
  source, target = corpus.source_tokenizer, corpus.target_tokenizer
  return source.vocabulary.size, target.vocabulary.size


def training_shape(config: ExperimentConfig, request: ProgramRequest) -> Shape:
  """Return the shape of the largest batch of a training run."""
  data, longest = config.data, config.data.filter.max_length
  source, target = request.source_length, request.target_length
  given = source or target
  sizes = source or target or longest, target or source or longest
  known = np.array([sizes], np.int32)
  if request.prepared and not given:
    split = PreparedCorpus(request.prepared).split('train')
    seed = config.training.seed
    known = training_mixture(
      data, split.directions, split.lengths, seed
    ).lengths
  parts = config.optimizer.accumulation
  limit = None if given else longest
  return training_shapes(known, data.batch, parts, limit)[-1]


def training_program(
  config: ExperimentConfig,
  model: Transformer,
  shape: Shape,
  devices: Sequence[Any],
) -> Program:
  """Trace the training step on the mesh of the config."""
  check_experiment(config, devices)
  mesh = make_mesh(config.parallel, devices)
  optimizer = optimizer_for(config, model)
  plan = plan_state(model, optimizer, config, mesh)
  no_steps = abstract_like(
    jax.eval_shape(lambda: zero_totals(config.model.encoder_layers)),
    replicated(mesh),
  )
  batch = abstract_batch(shape, config.data.batch.packing, by_rows(mesh))
  with jax.set_mesh(mesh):
    step = make_train_step(model, optimizer, config, mesh, plan.specs)
    traced = step.trace(plan.abstract, no_steps, batch)
  return Program(traced, mesh, shape, plan.abstract.parameters)


def search_shape(config: ExperimentConfig, request: ProgramRequest) -> Shape:
  """Return the shape of the search with the most target positions."""
  model, options = config.model, config.decoding
  limit = model.max_positions if model.positions == 'learned' else None
  shapes = decode_shapes(options, limit)
  if length := request.source_length:
    require(
      length <= options.max_source_length,
      'decoding.max_source_length',
      f'must be at least --source_length={length}, '
      f'got {options.max_source_length}',
    )
    source = min(x.source for x in shapes if x.source >= length)
    shapes = tuple(x for x in shapes if x.source == source)
  return max(shapes, key=lambda x: (x.rows * x.target, x.target))


def _search_program(
  config: ExperimentConfig,
  model: Transformer,
  shape: Shape,
  devices: Sequence[Any],
) -> Program:
  """Trace the beam search of all processes, where each device has its rows."""
  require(
    config.decoding.search == 'beam',
    'decoding.search',
    "must be 'beam': sampling is not compiled ahead of time",
  )
  mesh = data_mesh(devices)
  parameters = abstract_like(
    jax.eval_shape(lambda: initial_parameters(model, 0)), replicated(mesh)
  )
  processes = len({device.process_index for device in devices})
  # Rows are added as `placed` fills up the devices of a process.
  rows = math.ceil(shape.rows / (mesh.size // processes)) * mesh.size
  ids: Any = functools.partial(
    jax.ShapeDtypeStruct, dtype=jnp.int32, sharding=by_rows(mesh)
  )
  numbers = ids((rows,))
  source = model_step.Source(ids((rows, shape.source)), numbers)
  with jax.set_mesh(mesh):
    traced = model_step.search_batch.trace(
      (parameters,),
      model_step.SearchRows((source,), numbers, numbers),
      models=(model,),
      settings=_settings(config.decoding),
      max_length=shape.target,
    )
  shape = shape._replace(rows=rows)
  return Program(traced, mesh, shape, parameters, shape.target)


def _settings(options: DecodingConfig) -> model_step.SearchSettings:
  """Return settings as `search_settings` does, without tokenizer."""
  return model_step.SearchSettings(
    beam=options.beam_size,
    keep=1,
    end_id=_END,
    penalty=LengthPenalty(options.length_penalty, options.alpha),
    coverage=options.coverage,
    patience=options.patience,
    rules=TokenRules((), options.no_repeat_ngram),
    compacts=True,
  )


class DoesNotFit(CheckFailed):
  """A program needs more bytes of memory than a chip has."""

  def __init__(self, needed: float, available: float):
    super().__init__(
      f'it does not fit: {(needed - available) / GIB:.2f} GiB too much, '
      f'{needed / GIB:.2f} GiB of {available / GIB:.2f} GiB a chip'
    )
    self.needed = needed
    self.available = available


@dataclasses.dataclass(frozen=True)
class Figures:
  """Figures of a compiled program."""

  mesh: dict[str, int]
  shape: Shape
  parameters: int
  peak: int  # Most bytes that a chip has in use.
  state: int  # Bytes of the arguments per chip, which stay between steps.
  flops: float  # Of the products of all chips; of a search, at most.
  # Bytes that a chip reads and writes, as XLA estimates: a loop's body counts
  # once, as does what stays on the chip. 0 without an estimate.
  moved: float
  exchanges: dict[str, counts.Total]
  trace_seconds: float
  compile_seconds: float

  @property
  def chips(self) -> int:
    return math.prod(self.mesh.values())

  @property
  def sent(self) -> float:
    return sum(total.sent for total in self.exchanges.values())


def figures_for(
  config: ExperimentConfig,
  request: ProgramRequest,
  chip: Chip,
  devices: Sequence[Any],
) -> tuple[Figures, Program, str]:
  """Trace and compile a program; return its text too."""
  begin = time.monotonic()
  program = program_for(config, request, devices)
  traced = time.monotonic()
  logger.info(
    'traced in %.0f s; compiling for %d', traced - begin, program.mesh.size
  )
  compiled = _compiled(program, chip)
  seconds = time.monotonic() - traced
  memory, text = compiled.memory_analysis(), compiled.as_text()
  counted = program
  if config.model.attention_implementation == 'cudnn':
    # The products of the kernel are not in the traced program.
    plain = changed(config, {'model.attention_implementation': 'plain'})
    counted = program_for(plain, request, devices)
  figures = Figures(
    mesh=dict(program.mesh.shape),
    shape=program.shape,
    parameters=program.parameters,
    peak=memory.peak_memory_in_bytes,
    state=memory.argument_size_in_bytes,
    flops=1e9 * counts.product_gflop(counted.traced.jaxpr, counted.trips),
    moved=float((compiled.cost_analysis() or {}).get('bytes accessed', 0)),
    exchanges=counts.totals(counts.collectives(text, program.trips)),
    trace_seconds=traced - begin,
    compile_seconds=seconds,
  )
  return figures, program, text


def _compiled(program: Program, chip: Chip) -> Any:
  try:
    compiled: Any = program.traced.lower().compile()
  except jax.errors.JaxRuntimeError as error:
    raise too_large(error) from None
  peak = compiled.memory_analysis().peak_memory_in_bytes
  if peak > chip.memory:
    raise DoesNotFit(float(peak), chip.memory)
  return compiled


_UNITS = {'': 1, 'K': 2**10, 'M': 2**20, 'G': 2**30, 'T': 2**40}
# The two forms of libtpu's message about a program that is too large.
_TOO_LARGE = re.compile(
  r'(?:Used |\()([\d.]+)([KMGT]?)\)?'
  r'(?: of | exceeds available HBM \()([\d.]+)([KMGT]?)'
)


def too_large(error: jax.errors.JaxRuntimeError) -> Exception:
  """Return the error to raise when the compiler refuses a program."""
  message = str(error)
  match = _TOO_LARGE.search(message)
  if 'RESOURCE_EXHAUSTED' not in message or not match:
    return error
  needed, unit, available, other = match.groups()
  return DoesNotFit(
    float(needed) * _UNITS[unit], float(available) * _UNITS[other]
  )


COMPILATIONS = 6
# The search ends when the bounds are this close, and aims this far below the
# line, because the compiler lays out memory differently at different sizes.
_CLOSE, _SAFE = 0.05, 0.98
# Far from the measurements the line is a guess.
_REACH = 16.0


def largest_batch(
  config: ExperimentConfig,
  request: ProgramRequest,
  compile_one: Callable[[ExperimentConfig], Figures],
  memory: float,
) -> Figures:
  """Search the largest data.batch.tokens that fits, in few compilations.

  Memory is nearly linear in the rows of a batch: what stays between steps and
  one measurement give the line, which each further measurement corrects.
  """
  shape = training_shape(config, request)
  # Sizes are in steps of the rows of a batch.
  step = config.data.batch.row_multiple * shape.slots
  size, least, most = shape.rows * shape.slots // step, 0, math.inf
  best: Figures | None = None
  for _ in range(COMPILATIONS):
    tokens = -(-size * step // 2)
    try:
      best = compile_one(changed(config, {'data.batch.tokens': tokens}))
    except DoesNotFit as error:
      most, said = size, str(error)
      growth = max(error.available / error.needed * _SAFE, 1 / _REACH)
    else:
      least, said = size, f'{best.peak / GIB:.2f} of {memory / GIB:.2f} GiB'
      growth = (memory - best.state) / (best.peak - best.state)
      growth = min(growth * _SAFE, _REACH)
    logger.info('data.batch.tokens=%d: %s', tokens, said)
    size = max(least + 1, int(min(int(size * growth), most - 1)))
    if size >= most or (least > 0 and size <= least * (1 + _CLOSE)):
      break
  if best is None:
    raise CheckFailed(
      f'no batch fits, down to data.batch.tokens={tokens}, the smallest that '
      'was tried; cut the parameters with parallel.fsdp or parallel.tensor'
    )
  return best
