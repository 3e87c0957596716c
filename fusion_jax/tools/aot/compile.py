"""Compiles a program for chips that are not here, and reads what it will need.

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
from fusion_jax.errors import CheckFailed
from fusion_jax.tools.aot.chips import GIB, Chip
from fusion_jax.tools.aot.hlo_collectives import Total, collectives, totals
from fusion_jax.tools.aot.matmul_flops import product_gflop
from fusion_jax.tools.aot.programs import Program, Request, program_for

logger = logging.getLogger(__name__)

_UNITS = {'': 1, 'K': 2**10, 'M': 2**20, 'G': 2**30, 'T': 2**40}
# What libtpu says of a program that is too large, in two ways.
_TOO_LARGE = re.compile(
  r'(?:Used |\()([\d.]+)([KMGT]?)\)?'
  r'(?: of | exceeds available HBM \()([\d.]+)([KMGT]?)'
)


class DoesNotFit(CheckFailed):
  """A program needs more memory than a chip has.

  Attributes:
    needed, available: bytes.
  """

  def __init__(self, needed: float, available: float):
    super().__init__(
      f'it does not fit: {(needed - available) / GIB:.2f} GiB too much, '
      f'{needed / GIB:.2f} GiB of {available / GIB:.2f} GiB a chip'
    )
    self.needed = needed
    self.available = available


@dataclasses.dataclass(frozen=True)
class Figures:
  """What a compiled program needs.

  Attributes:
    mesh: devices along each of its axes.
    shape: rows, source and target positions of the batch.
    parameters: of the model.
    peak: bytes a chip at most has in use.
    state: bytes of the arguments a chip, which stay between steps.
    flops: operations of the matrix products of all chips, 2mnk each; in a
      search those of the most steps.
    moved: bytes that a chip reads and writes in its HBM, as XLA estimates
      it, with a loop's body once; 0 where it does not.
    exchanges: by kind, how many and what a chip sends.
    trace_seconds, compile_seconds: on the machine that compiled.
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
    """How many compute it together."""
    return math.prod(self.mesh.values())

  @property
  def sent(self) -> float:
    """Bytes that a chip sends."""
    return sum(total.sent for total in self.exchanges.values())

  def as_json(self) -> dict[str, Any]:
    """Plain values."""
    exchanges = {kind: x._asdict() for kind, x in self.exchanges.items()}
    return dataclasses.asdict(self) | {
      'exchanges': exchanges,
      'shape': dict(zip(('rows', 'source', 'target'), self.shape, strict=True)),
    }


def figures_for(
  config: ExperimentConfig,
  request: Request,
  chip: Chip,
  devices: Sequence[Any],
) -> tuple[Figures, Program, str]:
  """Traces and compiles a program.

  Args:
    config: of the experiment.
    request: which program of it.
    chip: what the devices are.
    devices: that it is for.

  Returns:
    The figures, the program, and its text as it was compiled.

  Raises:
    InputError: of `program_for`.
    DoesNotFit: a chip has not the memory for it.
  """
  begin = time.monotonic()
  program = program_for(config, request, devices)
  traced = time.monotonic() - begin
  logger.info('traced in %.0f s; compiling for %d', traced, program.mesh.size)
  figures, text = _compiled(program, chip)
  return dataclasses.replace(figures, trace_seconds=traced), program, text


def _compiled(program: Program, chip: Chip) -> tuple[Figures, str]:
  begin = time.monotonic()
  try:
    compiled = program.traced.lower().compile()
  except jax.errors.JaxRuntimeError as error:
    raise too_large(error) from None
  seconds = time.monotonic() - begin
  memory = compiled.memory_analysis()
  if memory.peak_memory_in_bytes > chip.memory:
    raise DoesNotFit(float(memory.peak_memory_in_bytes), chip.memory)
  text = compiled.as_text()
  costs = compiled.cost_analysis() or {}
  figures = Figures(
    mesh=dict(program.mesh.shape),
    shape=tuple(program.shape),
    parameters=program.parameters,
    peak=memory.peak_memory_in_bytes,
    state=memory.argument_size_in_bytes,
    flops=1e9 * product_gflop(program.traced.jaxpr, program.trips),
    moved=float(costs.get('bytes accessed', 0)),
    exchanges=totals(collectives(text, program.trips)),
    trace_seconds=0.0,
    compile_seconds=seconds,
  )
  return figures, text


def too_large(error: jax.errors.JaxRuntimeError) -> Exception:
  """What to raise when the compiler refuses a program.

  Args:
    error: of the compiler.

  Returns:
    `DoesNotFit` with its figures where memory is the reason; any other error
    as it is.
  """
  message = str(error)
  match = _TOO_LARGE.search(message)
  if 'RESOURCE_EXHAUSTED' not in message or not match:
    return error
  needed, available = (
    float(match[number]) * _UNITS[match[number + 1]] for number in (1, 3)
  )
  return DoesNotFit(needed, available)
