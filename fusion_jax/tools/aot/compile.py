"""Compilation of a program for absent chips, and figures of what it needs.

`cost_analysis` counts the body of a loop once; products and exchanges are
counted here as often as they are done.
"""

import dataclasses
import logging
import math
import re
import time
from collections.abc import Sequence
from typing import Any

import jax

from fusion_jax.config import ExperimentConfig
from fusion_jax.config.presets import changed
from fusion_jax.errors import CheckFailed
from fusion_jax.tools.aot.hlo_collectives import Total, collectives, totals
from fusion_jax.tools.aot.matmul_flops import product_gflop
from fusion_jax.tools.aot.programs import Program, ProgramRequest, program_for
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
