"""What a training logs: progress, validations, warnings, and their numbers.

The numbers go to metrics.jsonl, to TensorBoard events and, where
`training.wandb` names a project, to Weights & Biases; WANDB_MODE=offline keeps
those in the run directory, for `wandb sync`.

tensorboardX writes events in a thread: when the disk is full, the thread dies
and the caller waits for it forever. Here it only makes the records.
"""

import contextlib
import dataclasses
import datetime
import json
import logging
import math
import re
import resource
import secrets
import socket
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary
from tensorboardX.record_writer import masked_crc32c
from tensorboardX.summary import scalar

from fusion_jax.config import ExperimentConfig
from fusion_jax.config.serialization import to_dict
from fusion_jax.errors import InputError, first_line
from fusion_jax.files import AppendedFile, write_whole
from fusion_jax.models.transformer import Parameters
from fusion_jax.parallel.processes import is_first
from fusion_jax.runs.checkpoint import Progress, TrainState
from fusion_jax.runs.directory import read_metrics
from fusion_jax.training.build import Parts
from fusion_jax.training.evaluate import token_means
from fusion_jax.training.step import Totals
from fusion_jax.training.telemetry import (
  WATCH_EVERY,
  Watch,
  encoder_trouble,
  router_troubles,
  routers,
)

logger = logging.getLogger(__name__)

_STATUS = Path('/proc/self/status')


@dataclasses.dataclass
class Position:
  """Where a training is between two steps; progress is that at this start."""

  step: int
  state: TrainState
  totals: Totals
  progress: Progress

  def __post_init__(self):
    self._begin = self._lap = time.monotonic()

  def timed_progress(self) -> Progress:
    """Return the progress with the time of this start added."""
    seconds = self.progress.seconds + time.monotonic() - self._begin
    return dataclasses.replace(self.progress, seconds=seconds)

  def lap(self) -> float:
    """Return the seconds since the last lap without pauses; begin another."""
    now = time.monotonic()
    seconds, self._lap = now - self._lap, now
    return max(seconds, 1e-9)

  @contextlib.contextmanager
  def paused(self) -> Iterator[None]:
    """Leave the time that is spent in the block out of the lap."""
    begin = time.monotonic()
    yield
    self._lap += time.monotonic() - begin


class MetricsLog:
  """Log of named numbers in all places, written on process 0 alone.

  Damaged lines are removed first, and so are lines of steps after `step`: a run
  that was killed and resumed from an earlier checkpoint left them.
  """

  def __init__(self, config: ExperimentConfig, workdir: Path, step: int):
    """Open the files on process 0."""
    self._writes = is_first()
    if not self._writes:
      return
    self._wandb = _wandb_run(config, workdir) if config.training.wandb else None
    path = workdir / 'metrics.jsonl'
    if path.exists():
      kept = [row for row in read_metrics(path) if row['step'] <= step]
      text = ''.join(json.dumps(row) + '\n' for row in kept)
      write_whole(path, text.encode())
    self._file = AppendedFile(path)
    name = f'events.out.tfevents.{int(time.time())}.{socket.gethostname()}'
    self._events = AppendedFile(workdir / name)
    self._add_event(file_version='brain.Event:2')
    start = SessionLog(status=SessionLog.START)
    self._add_event(step=step + 1, session_log=start)

  def write(self, step: int, kind: str, values: dict[str, float]) -> None:
    """Write one line and one point of each curve."""
    if not self._writes:
      return
    finite = {
      name: value if math.isfinite(value) else None
      for name, value in values.items()
    }
    line = json.dumps({'step': step, 'kind': kind} | finite) + '\n'
    self._file.append(line.encode())
    named = {f'{kind}/{name}': value for name, value in values.items()}
    points = [scalar(*point).value[0] for point in named.items()]
    self._add_event(step=step, summary=Summary(value=points))
    if self._wandb:
      self._wandb.log(named, step=step)

  def close(self) -> None:
    """Close all."""
    if self._writes:
      self._file.close()
      self._events.close()
      if self._wandb:
        self._wandb.finish()

  def _add_event(self, **content: Any) -> None:
    """Append a TFRecord: length, its checksum, content, its checksum."""
    event = Event(wall_time=time.time(), **content).SerializeToString()
    length = struct.pack('<Q', len(event))
    checks = [struct.pack('<I', masked_crc32c(x)) for x in (length, event)]
    self._events.append(length + checks[0] + event + checks[1])


def _wandb_run(config: ExperimentConfig, workdir: Path) -> Any:
  """Begin a run on Weights & Biases, or resume that of the run directory."""
  import wandb

  name = workdir / 'wandb_id'
  if not name.exists():
    write_whole(name, secrets.token_hex(8).encode())
  try:
    return wandb.init(
      project=config.training.wandb,
      name=config.name,
      config=to_dict(config),
      dir=str(workdir),
      id=name.read_text(),
      resume='allow',
    )
  except wandb.Error as error:
    raise InputError(f'config.training.wandb: {first_line(error)}') from None


def _peak_memory() -> int:
  """Return the peak memory in bytes: of the first device, or of the process."""
  if statistics := jax.local_devices()[0].memory_stats():
    return statistics['peak_bytes_in_use']
  if sys.platform == 'darwin':
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  # Linux counts in ru_maxrss what the parent had when it began this process.
  (peak,) = re.findall(r'VmHWM:\s+(\d+) kB', _STATUS.read_text())
  return 1_024 * int(peak)


class Reports:
  """Reports of one training, written to the log and to its metrics."""

  def __init__(self, parts: Parts, log: MetricsLog):
    self._parts, self._plan, self._log = parts, parts.plan, log
    self._watch, self._watched = Watch(), -WATCH_EVERY
    self._telemetry: dict[str, float] = {}

  def progress(self, position: Position) -> None:
    """Log the means since the last report, and start new sums."""
    totals = jax.device_get(position.totals)
    self.check_skips(totals)
    position.progress = position.progress.with_skipped(int(totals.skipped))
    if totals.skipped > 0:
      logger.warning(
        f'step {position.step}: {totals.skipped} update(s) skipped since the '
        f'last report, the first at step {totals.first_bad_step}: loss or '
        f'gradient not finite; {position.progress.skipped} so far'
      )
    in_a_row = position.totals.in_a_row
    position.totals = self._parts.zero_totals()._replace(in_a_row=in_a_row)
    seconds = position.lap()
    if totals.steps > 0:
      self._means(position, totals, seconds)
    if news := self._parts.compilations.news():
      logger.info('%s', news)

  def validation(self, position: Position) -> float:
    """Validate, log the result and keep it if it is the best."""
    validator = self._plan.validator
    assert validator is not None
    parameters = self._parts.gathered(position.state.evaluated)
    values = validator(parameters, position.step)
    self._log.write(position.step, 'valid', values)
    if self._watched != position.step:
      self._watch_fusions(position, parameters)
    metric = self._plan.config.training.metric
    lower = metric == 'loss'
    position.progress = position.progress.updated(
      values[metric], position.step, lower
    )
    return -values[metric] if lower else values[metric]

  def check_skips(self, totals: Totals) -> None:
    """End a run that skips too many updates in a row."""
    most = self._plan.config.training.max_skipped
    if totals.longest < most:
      return
    first = int(totals.first_bad_step)
    epoch, shape, slots = self._plan.batches.plan.batch(first - 1)
    pairs = self._plan.batches.examples(epoch, slots[slots >= 0])[:3].tolist()
    last_good = self._parts.checkpoints.latest_step()
    raise InputError(
      f'step {first}: the loss or its gradient is not finite '
      f'(batch {first - 1}, epoch {epoch}, shape {tuple(shape)}, first pairs '
      f'{pairs}), {int(totals.longest)} updates in a row were '
      f'skipped and training.max_skipped is {most}; the last good checkpoint '
      f'is {"none" if last_good is None else f"step {last_good}"}; a lower '
      'learning rate, longer warm-up or optimizer.clip_norm may help'
    )

  def _means(self, position: Position, totals: Totals, seconds: float) -> None:
    training, steps = self._plan.config.training, int(totals.steps)
    encoder_norms = [float(x) / steps for x in totals.encoder_gradient_norms]
    values = token_means(totals.sums) | {
      'tokens_per_second': int(totals.sums.tokens) / seconds,
      'gradient_norm': float(totals.gradient_norm) / steps,
      **{
        f'encoder_gradient_norm_{layer}': norm
        for layer, norm in enumerate(encoder_norms, 1)
      },
      'learning_rate': float(self._parts.last_rate(position.state.optimizer)),
      'epoch': position.step / self._plan.batches.plan.batches_per_epoch,
      'seconds': position.timed_progress().seconds,
      'skipped': position.progress.skipped,
      'peak_memory': _peak_memory(),
    }
    if training.diversity:
      values['diversity'] = float(totals.diversity) / steps
    self._log.write(position.step, 'train', values)
    self._warn(position, encoder_norms, values['gradient_norm'])
    left = (training.steps - position.step) / (steps + int(totals.skipped))
    kind = 'loss (label-smoothed)' if training.label_smoothing else 'nll'
    logger.info(
      f'step {position.step} of {training.steps}, epoch {values["epoch"]:.2f}, '
      f'{kind} {values["loss"]:.4f}, perplexity {values["perplexity"]:.2f}, '
      f'{values["tokens_per_second"]:.0f} target tokens/s, rate '
      f'{values["learning_rate"]:.2e}, '
      f'{datetime.timedelta(seconds=round(left * seconds))} left'
    )

  def _warn(
    self, position: Position, encoder_norms: list[float], gradient_norm: float
  ) -> None:
    """Warn of a fusion or an encoder that has not learned for a long time."""
    config = self._plan.config
    troubles = encoder_trouble(encoder_norms, gradient_norm, config)
    if routers(config.model) and self._plan.validator:
      if position.step - self._watched >= WATCH_EVERY:
        self._watch_fusions(
          position, self._parts.gathered(position.state.evaluated)
        )
      troubles |= router_troubles(self._telemetry, config.model)
    for line in self._watch(position.step, troubles):
      logger.warning('%s', line)

  def _watch_fusions(self, position: Position, parameters: Parameters) -> None:
    """Take and log the telemetry of the fusions."""
    assert self._plan.validator is not None
    self._watched = position.step
    self._telemetry = self._plan.validator.telemetry(parameters)
    if self._telemetry:
      self._log.write(position.step, 'fusion', self._telemetry)
