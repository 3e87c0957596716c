"""What a training reports: progress lines, validations, warnings."""

import logging
import math

import jax

from fusion_jax.models.transformer import Parameters
from fusion_jax.training.evaluate import token_means
from fusion_jax.training.logs import MetricsLog
from fusion_jax.training.parts import Parts
from fusion_jax.training.position import Position
from fusion_jax.training.skips import check_skips, log_skips, with_skips
from fusion_jax.training.step import Totals
from fusion_jax.training.watch import (
  WATCH_EVERY,
  Watch,
  encoder_trouble,
  has_router,
  router_troubles,
)

logger = logging.getLogger(__name__)


class Reports:
  """Reports of one training, written to the log and to its metrics."""

  def __init__(self, parts: Parts, log: MetricsLog):
    self._parts, self._log = parts, log
    self._watch, self._watched = Watch(), -WATCH_EVERY
    self._telemetry: dict[str, float] = {}

  def progress(self, at: Position) -> None:
    """Log the means since the last report, and start new sums."""
    totals = jax.device_get(at.totals)
    self.check_skips(totals)
    at.progress = with_skips(at.progress, totals)
    log_skips(totals, at.step, at.progress.skipped)
    in_a_row = at.totals.in_a_row
    at.totals = self._parts.zero_totals()._replace(in_a_row=in_a_row)
    seconds = at.clock.lap()
    if totals.steps > 0:
      self._means(at, totals, seconds)
    compiled = self._parts.compilations.news()
    if compiled.programs:
      logger.info('%s', compiled)

  def validation(self, at: Position) -> float:
    """Validate, log the result and keep it if it is the best."""
    parts = self._parts
    assert parts.validator is not None
    parameters = parts.gathered(at.state.evaluated)
    values = parts.validator(parameters, at.step)
    self._log.write(at.step, 'valid', values)
    if self._watched != at.step:
      self._watch_fusions(at, parameters)
    metric = parts.config.training.metric
    lower = metric == 'loss'
    at.progress = at.progress.updated(values[metric], at.step, lower)
    return -values[metric] if lower else values[metric]

  def check_skips(self, totals: Totals) -> None:
    """End a run that skips too many updates in a row."""
    most = self._parts.config.training.max_skipped
    last_good = self._parts.checkpoints.latest_step()
    check_skips(totals, most, self._batch_of, last_good)

  def _means(self, at: Position, totals: Totals, seconds: float) -> None:
    training, steps = self._parts.config.training, int(totals.steps)
    encoder_norms = [
      float(norm) / steps for norm in totals.encoder_gradient_norms
    ]
    values = token_means(totals.sums) | {
      'tokens_per_second': int(totals.sums.tokens) / seconds,
      'gradient_norm': float(totals.gradient_norm) / steps,
      **{
        f'encoder_gradient_norm_{layer}': norm
        for layer, norm in enumerate(encoder_norms, 1)
      },
      'learning_rate': float(self._parts.last_rate(at.state.optimizer)),
      'epoch': at.step / self._parts.batches.plan.batches_per_epoch,
      'seconds': at.timed_progress().seconds,
      'skipped': at.progress.skipped,
    }
    if training.diversity:
      values['diversity'] = float(totals.diversity) / steps
    self._log.write(at.step, 'train', values)
    self._warn(at, encoder_norms, values['gradient_norm'])
    each = seconds / (steps + int(totals.skipped))
    logger.info(
      'step %d of %d, epoch %.2f, %s %.4f, perplexity %.2f, '
      '%.0f target tokens/s, rate %.2e, %s left',
      at.step,
      training.steps,
      values['epoch'],
      'loss (label-smoothed)' if training.label_smoothing else 'nll',
      values['loss'],
      values['perplexity'],
      values['tokens_per_second'],
      values['learning_rate'],
      _duration((training.steps - at.step) * each),
    )

  def _warn(
    self, at: Position, encoder_norms: list[float], gradient_norm: float
  ) -> None:
    """Warn of a fusion or an encoder that has not learned for a long time."""
    config = self._parts.config
    troubles = encoder_trouble(encoder_norms, gradient_norm, config)
    if has_router(config.model) and self._parts.validator:
      if at.step - self._watched >= WATCH_EVERY:
        self._watch_fusions(at, self._parts.gathered(at.state.evaluated))
      troubles |= router_troubles(self._telemetry, config.model)
    for line in self._watch(at.step, troubles):
      logger.warning('%s', line)

  def _watch_fusions(self, at: Position, parameters: Parameters) -> None:
    """Take and log the telemetry of the fusions."""
    assert self._parts.validator is not None
    self._watched = at.step
    self._telemetry = self._parts.validator.telemetry(parameters)
    if self._telemetry:
      self._log.write(at.step, 'fusion', self._telemetry)

  def _batch_of(self, step: int) -> str:
    """Describe the batch of a step."""
    epoch, shape, slots = self._parts.batches.plan.batch(step - 1)
    indices = self._parts.batches.examples(epoch, slots[slots >= 0])
    return (
      f'batch {step - 1}, epoch {epoch}, shape {tuple(shape)}, first pairs '
      f'{indices[:3].tolist()}'
    )


def _duration(seconds: float) -> str:
  minutes = math.ceil(seconds / 60)
  return f'{minutes // 60} h {minutes % 60:02d} min'
