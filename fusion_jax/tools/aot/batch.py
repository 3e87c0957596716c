"""Search for the largest batch that fits, with few slow compilations.

Each compilation takes minutes. Memory is nearly linear in the rows of a batch.
The memory that stays in use between steps and one measurement give the line.
Each further measurement corrects it, within the bounds found so far and by at
most a factor of `_REACH`: far from the measurements the line is a guess.
"""

import dataclasses
import logging
import math
from collections.abc import Callable
from typing import Any

from fusion_jax.config import ExperimentConfig
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


def largest_batch(
  config: ExperimentConfig,
  request: ProgramRequest,
  compile_one: Callable[[ExperimentConfig], tuple[Figures, Any, Any]],
  memory: float,
) -> Figures:
  """Search the largest data.batch.tokens that fits."""
  shape = training_problem(config, request).shape
  step = config.data.batch.row_multiple * shape.slots
  search = _Search(shape.rows * shape.slots // step)
  best: Figures | None = None
  for _ in range(COMPILATIONS):
    tokens = -(-search.units * step // 2)
    logger.info('data.batch.tokens=%d: compiling', tokens)
    try:
      found, *_ = compile_one(_with_tokens(config, tokens))
    except DoesNotFit as error:
      logger.info('data.batch.tokens=%d: %s', tokens, error)
      search.too_large(error.available / error.needed)
    else:
      peak, room = found.peak / GIB, memory / GIB
      logger.info('data.batch.tokens=%d: %.2f of %.2f GiB', tokens, peak, room)
      best = found
      search.fits((memory - found.state) / (found.peak - found.state))
    if search.is_over:
      break
  if best is None:
    raise CheckFailed(
      f'no batch fits, down to data.batch.tokens={tokens}, the smallest that '
      'was tried; cut the parameters with parallel.fsdp or parallel.tensor'
    )
  if not search.is_over:
    logger.info('%d compilations are over; more may fit', COMPILATIONS)
  return best


class _Search:
  """State of the search; sizes are in steps of the rows of a batch.

  Attributes:
    units: Size to try next.
    is_over: Whether nothing is left to try between what fits and what does not.
  """

  def __init__(self, units: int):
    self.units = units
    self.is_over = False
    self._least: int = 0
    self._most: float = math.inf

  def fits(self, growth: float) -> None:
    """Record that `units` fits; memory would suffice for `growth` times it."""
    self._least = self.units
    self._next(min(growth * _SAFE, _REACH))

  def too_large(self, growth: float) -> None:
    """Record that `units` does not fit; `growth` times as much might."""
    self._most = self.units
    self._next(max(growth * _SAFE, 1 / _REACH))

  def _next(self, growth: float) -> None:
    wanted = int(self.units * growth)
    wanted = max(self._least + 1, int(min(wanted, self._most - 1)))
    close = wanted <= self._least * (1 + _CLOSE)
    self.is_over = wanted >= self._most or (self._least > 0 and close)
    self.units = wanted


def _with_tokens(config: ExperimentConfig, tokens: int) -> ExperimentConfig:
  batch = dataclasses.replace(config.data.batch, tokens=tokens)
  data = dataclasses.replace(config.data, batch=batch)
  return dataclasses.replace(config, data=data)
