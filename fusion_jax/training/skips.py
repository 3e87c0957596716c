"""Skipped updates: they are counted and logged, and too many end the run."""

import dataclasses
import logging
from collections.abc import Callable

from fusion_jax.errors import InputError
from fusion_jax.runs.checkpoint import Progress
from fusion_jax.training.step import Totals

logger = logging.getLogger(__name__)


def check_skips(
  totals: Totals,
  most: int,
  batch_of: Callable[[int], str],
  last_good: int | None,
) -> None:
  """End a run that skips too many updates in a row."""
  if totals.longest < most:
    return
  first = int(totals.first_bad_step)
  raise InputError(
    f'step {first}: the loss or its gradient is not finite '
    f'({batch_of(first)}), {int(totals.longest)} updates in a row were skipped '
    f'and training.max_skipped is {most}; the last good checkpoint is '
    f'{"none" if last_good is None else f"step {last_good}"}; a lower learning '
    'rate, longer warm-up or optimizer.clip_norm may help'
  )


def with_skips(progress: Progress, totals: Totals) -> Progress:
  """Add the updates skipped since the last report to the progress."""
  return dataclasses.replace(
    progress, skipped=progress.skipped + int(totals.skipped)
  )


def log_skips(totals: Totals, step: int, so_far: int) -> None:
  """Warn of the updates skipped since the last report."""
  if totals.skipped > 0:
    logger.warning(
      'step %d: %d update(s) skipped since the last report, the first at step '
      '%d: loss or gradient not finite; %d so far',
      step,
      int(totals.skipped),
      int(totals.first_bad_step),
      so_far,
    )
