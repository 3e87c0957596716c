"""Search for the largest batch that fits, with few slow compilations.

Each compilation takes minutes. Memory is nearly linear in the rows of a batch.
The memory that stays in use between steps and one measurement give the line.
Each further measurement corrects it, within the bounds found so far and by at
most a factor of `_REACH`: far from the measurements the line is a guess.
"""

import logging
import math
from collections.abc import Callable
from typing import Any

from fusion_jax.config import ExperimentConfig
from fusion_jax.config.presets import changed
from fusion_jax.errors import CheckFailed
from fusion_jax.tools.aot.compile import DoesNotFit, Figures
from fusion_jax.tools.aot.programs import ProgramRequest, training_problem
from fusion_jax.tools.aot.topology import GIB

logger = logging.getLogger(__name__)

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
