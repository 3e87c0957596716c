"""The largest batch that fits, with few compilations: each takes minutes.

Memory is nearly linear in the rows of a batch. What stays between steps and
one measurement give the line; each further one corrects it, inside of the
bounds that were found, and at most `_REACH` times as far: far away the line is
a guess.
"""

import dataclasses
import logging
import math
from collections.abc import Callable
from typing import Any

from fusion_jax.config import ExperimentConfig
from fusion_jax.errors import CheckFailed
from fusion_jax.tools.aot.chips import GIB
from fusion_jax.tools.aot.compile import DoesNotFit, Figures
from fusion_jax.tools.aot.programs import Request, training_problem

logger = logging.getLogger(__name__)

COMPILATIONS = 6
# The search ends where the bounds are so close, and aims so far below the
# line: the compiler does not lay out memory the same way at every size.
_CLOSE, _SAFE = 0.05, 0.98
_REACH = 16.0


def largest_batch(
  config: ExperimentConfig,
  request: Request,
  compile_one: Callable[[ExperimentConfig], tuple[Figures, Any, Any]],
  memory: float,
) -> Figures:
  """Searches the largest data.batch.tokens that fits.

  Args:
    config: what to train; its batch is tried first.
    request: the lengths.
    compile_one: gives the figures of a config first, or raises `DoesNotFit`.
    memory: bytes of a chip.

  Returns:
    The figures of the largest batch that was compiled and fits.

  Raises:
    CheckFailed: not even the smallest batch fits.
  """
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
  """Where to look next: the sizes are in steps of the rows of a batch.

  Attributes:
    units: the size to try.
    is_over: nothing is left to try between what fits and what does not.
  """

  def __init__(self, units: int):
    self.units = units
    self.is_over = False
    self._least, self._most = 0, math.inf

  def fits(self, growth: float) -> None:
    """`units` fits; memory would suffice for so many times as much."""
    self._least = self.units
    self._next(min(growth * _SAFE, _REACH))

  def too_large(self, growth: float) -> None:
    """`units` does not fit; so many times as much might."""
    self._most = self.units
    self._next(max(growth * _SAFE, 1 / _REACH))

  def _next(self, growth: float) -> None:
    wanted = int(self.units * growth)
    wanted = max(self._least + 1, min(wanted, self._most - 1))
    close = wanted <= self._least * (1 + _CLOSE)
    self.is_over = wanted >= self._most or (self._least > 0 and close)
    self.units = wanted


def _with_tokens(config: ExperimentConfig, tokens: int) -> ExperimentConfig:
  batch = dataclasses.replace(config.data.batch, tokens=tokens)
  data = dataclasses.replace(config.data, batch=batch)
  return dataclasses.replace(config, data=data)
