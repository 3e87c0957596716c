"""Compilation of a program for absent chips, and figures of what it needs.

`cost_analysis` counts the body of a loop once; products and exchanges are
counted here as often as they are done.

The largest batch that fits is found with few compilations, which take minutes.
Memory is nearly linear in the rows of a batch. The memory that stays in use
between steps and one measurement give the line. Each further measurement
corrects it, within the bounds found so far and by at most a factor of `_REACH`:
far from the measurements the line is a guess.
"""

import dataclasses
import logging
import math
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax

from fusion_jax.config import ExperimentConfig
from fusion_jax.config.presets import changed
from fusion_jax.errors import CheckFailed
from fusion_jax.tools.aot.hlo import Total, collectives, totals
from fusion_jax.tools.aot.matmul_flops import product_gflop
from fusion_jax.tools.aot.programs import (
  Program,
  ProgramRequest,
  program_for,
  training_problem,
)
from fusion_jax.tools.aot.topology import GIB, Chip

logger = logging.getLogger(__name__)

_UNITS = {'': 1, 'K': 2**10, 'M': 2**20, 'G': 2**30, 'T': 2**40}
# The two forms of libtpu's message about a program that is too large.
_TOO_LARGE = re.compile(
  r'(?:Used |\()([\d.]+)([KMGT]?)\)?'
  r'(?: of | exceeds available HBM \()([\d.]+)([KMGT]?)'
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
  """Figures of a compiled program.

  Attributes:
    shape: Rows, source and target positions of the batch.
    peak: Most bytes that a chip has in use.
    state: Bytes of the arguments per chip, which stay between steps.
    flops: Operations of the matrix products of all chips; of a search, those of
      the most steps.
    moved: Bytes that a chip reads and writes, as estimated by XLA: a loop's
      body counts once, as does what stays on the chip. 0 without an estimate.
  """

  mesh: dict[str, int]
  shape: tuple[int, int, int]
  parameters: int
  peak: int
  state: int
  flops: float
  moved: float
  exchanges: dict[str, Total]
  trace_seconds: float
  compile_seconds: float

  @property
  def chips(self) -> int:
    """The number of chips that compute the program together."""
    return math.prod(self.mesh.values())

  @property
  def sent(self) -> float:
    """The bytes that a chip sends."""
    return sum(total.sent for total in self.exchanges.values())

  def as_json(self) -> dict[str, Any]:
    """Return the figures as plain values."""
    exchanges = {kind: x._asdict() for kind, x in self.exchanges.items()}
    shape = dict(zip(('rows', 'source', 'target'), self.shape, strict=True))
    return dataclasses.asdict(self) | {'exchanges': exchanges, 'shape': shape}


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
  figures = Figures(
    mesh=dict(program.mesh.shape),
    shape=(*program.shape,),
    parameters=program.parameters,
    peak=memory.peak_memory_in_bytes,
    state=memory.argument_size_in_bytes,
    flops=_flops(config, request, program, devices),
    moved=float((compiled.cost_analysis() or {}).get('bytes accessed', 0)),
    exchanges=totals(collectives(text, program.trips)),
    trace_seconds=traced - begin,
    compile_seconds=seconds,
  )
  return figures, program, text


def _compiled(program: Program, chip: Chip) -> Any:
  """Return the compiled program; raise DoesNotFit."""
  try:
    compiled: Any = program.traced.lower().compile()
  except jax.errors.JaxRuntimeError as error:
    raise too_large(error) from None
  peak = compiled.memory_analysis().peak_memory_in_bytes
  if peak > chip.memory:
    raise DoesNotFit(float(peak), chip.memory)
  return compiled


def _flops(
  config: ExperimentConfig,
  request: ProgramRequest,
  program: Program,
  devices: Sequence[Any],
) -> float:
  if config.model.attention_implementation == 'cudnn':
    # The products of the kernel are not in the traced program.
    plain = changed(config, {'model.attention_implementation': 'plain'})
    program = program_for(plain, request, devices)
  return 1e9 * product_gflop(program.traced.jaxpr, program.trips)


def too_large(error: jax.errors.JaxRuntimeError) -> Exception:
  """Return the error to raise when the compiler refuses a program."""
  message = str(error)
  match = _TOO_LARGE.search(message)
  if 'RESOURCE_EXHAUSTED' not in message or not match:
    return error
  needed, available = (
    float(match[number]) * _UNITS[match[number + 1]] for number in (1, 3)
  )
  return DoesNotFit(needed, available)


COMPILATIONS = 6
# The search ends when the bounds are this close, and aims this far below the
# line, because the compiler lays out memory differently at different sizes.
_CLOSE, _SAFE = 0.05, 0.98
_REACH = 16.0

# Compiles a config; returns its figures first.
Compile = Callable[[ExperimentConfig], tuple[Figures, Any, Any]]


def largest_batch(
  config: ExperimentConfig,
  request: ProgramRequest,
  compile_one: Compile,
  memory: float,
) -> Figures:
  """Search the largest data.batch.tokens that fits."""
  shape = training_problem(config, request).shape
  # Sizes are in steps of the rows of a batch.
  step = config.data.batch.row_multiple * shape.slots
  size, least, most = shape.rows * shape.slots // step, 0, math.inf
  best: Figures | None = None
  for _ in range(COMPILATIONS):
    tokens = -(-size * step // 2)
    figures, growth = _try(config, tokens, compile_one, memory)
    if figures:
      best, least = figures, size
    else:
      most = size
    size = max(least + 1, int(min(int(size * growth), most - 1)))
    if size >= most or (least > 0 and size <= least * (1 + _CLOSE)):
      break
  else:
    if best:
      logger.info('%d compilations are over; more may fit', COMPILATIONS)
  if best is None:
    raise CheckFailed(
      f'no batch fits, down to data.batch.tokens={tokens}, the smallest that '
      'was tried; cut the parameters with parallel.fsdp or parallel.tensor'
    )
  return best


def _try(
  config: ExperimentConfig, tokens: int, compile_one: Compile, memory: float
) -> tuple[Figures | None, float]:
  """Return the figures if it fits, and the growth that memory allows."""
  logger.info('data.batch.tokens=%d: compiling', tokens)
  try:
    figures, *_ = compile_one(changed(config, {'data.batch.tokens': tokens}))
  except DoesNotFit as error:
    logger.info('data.batch.tokens=%d: %s', tokens, error)
    return None, max(error.available / error.needed * _SAFE, 1 / _REACH)
  peak, room = figures.peak / GIB, memory / GIB
  logger.info('data.batch.tokens=%d: %.2f of %.2f GiB', tokens, peak, room)
  growth = (memory - figures.state) / (figures.peak - figures.state)
  return figures, min(growth * _SAFE, _REACH)
