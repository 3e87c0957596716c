"""The training loop, read from top to bottom: build, restore, update, save."""

import collections
import contextlib
import logging
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import jax.numpy as jnp

from fusion_jax.config import ExperimentConfig
from fusion_jax.data.batching import Batch, Shape
from fusion_jax.data.prepare import prepare
from fusion_jax.data.prepared import PreparedCorpus
from fusion_jax.parallel.distributed import first_then_others, is_first, on_all
from fusion_jax.parallel.heartbeat import Heartbeat, name_start
from fusion_jax.parallel.mesh import make_mesh, put_like
from fusion_jax.runs import lock, run_directory
from fusion_jax.runs.checkpoint import Progress
from fusion_jax.runs.checkpoint_reading import open_to_read
from fusion_jax.runs.kept_corpus import write_corpus
from fusion_jax.runs.loading import TrainedModel
from fusion_jax.runs.state import TrainState
from fusion_jax.training.checks import (
  check_attention,
  check_freeze,
  check_rows,
  check_same_everywhere,
)
from fusion_jax.training.logs import MetricsLog
from fusion_jax.training.parts import (
  Parts,
  PlannedParts,
  open_parts,
  plan_parts,
)
from fusion_jax.training.position import Clock, Position
from fusion_jax.training.profiling import Profiler
from fusion_jax.training.reports import Reports
from fusion_jax.training.signals import stop_on_signals
from fusion_jax.training.skips import with_skips
from fusion_jax.training.wandb_log import WandbLog, check_wandb
from fusion_jax.training.warm_start import read_baseline, with_baseline

logger = logging.getLogger(__name__)

# Exit code of a training by the signal that stopped it: after SIGTERM the same
# command should be queued again.
EXIT_CODES = {0: 0, signal.SIGINT: 130, signal.SIGTERM: 75}
# Number of steps that may wait on the device: enough to keep it busy, and few
# enough to answer a signal soon.
_STEPS_IN_FLIGHT = 2


def run(
  config: ExperimentConfig,
  workdir: Path,
  profile: tuple[int, int] | None = None,
) -> int:
  """Train an experiment, or resume its training."""
  on_all(lambda: run_directory.check(workdir, config))
  check_same_everywhere(config)
  check_wandb(config)
  # Before anything that takes long, so that a process that is lost later leaves
  # no other waiting here.
  start = name_start()
  mesh = make_mesh(config.parallel)
  check_rows(config, mesh)
  check_attention(config, mesh)
  corpus = first_then_others(lambda: prepare(config.data))
  check_freeze(config, corpus)
  with jax.set_mesh(mesh), contextlib.ExitStack() as opened:
    # Nothing is written until all of this was accepted.
    planned = plan_parts(config, workdir, corpus, mesh)
    baseline = None
    if config.training.init_from and not _has_steps(workdir):
      baseline = _baseline(config, planned, corpus)
    opened.enter_context(_held(workdir))
    first_then_others(lambda: _open_directory(config, workdir, corpus))
    # Closed last: the others take this process for lost once it is closed.
    heartbeat = Heartbeat(workdir, config.parallel, start)
    opened.callback(heartbeat.close)
    with heartbeat.telling():
      parts = open_parts(
        planned, config, workdir, corpus, mesh, heartbeat, opened
      )
      at = _restore_or_start(parts, baseline)
      del baseline  # Its parameters are on a device.
      log = opened.enter_context(contextlib.closing(_log(parts, at.step)))
      profiler = opened.enter_context(
        contextlib.closing(Profiler(workdir, profile))
      )
      with stop_on_signals(parts.programs) as stop:
        reports = Reports(parts, log)
        return EXIT_CODES[train(parts, at, reports, profiler, stop)]


def train(
  parts: Parts,
  at: Position,
  reports: Reports,
  profiler: Profiler,
  stop: Callable[[int], int],
) -> int:
  """Update until the last step, a stop, or the end of patience."""
  training, stopped = parts.config.training, 0
  in_flight: collections.deque[jax.Array] = collections.deque()
  while at.step < training.steps and not stopped and _has_patience(parts, at):
    parts.heartbeat.at(at.step)
    with profiler.step(at.step + 1):
      batch = next(parts.iterator)
      parts.heartbeat.has_batch()
      parts.programs.wait_for(_shape_of(batch))
      with jax.transfer_guard_host_to_device('disallow'):
        at.state, at.totals = parts.step(at.state, at.totals, batch)
    at.step += 1
    in_flight.append(jnp.copy(at.state.step))
    if len(in_flight) > _STEPS_IN_FLIGHT:
      in_flight.popleft().block_until_ready()

    if at.step % training.log_every == 0:
      reports.progress(at)
    if parts.validator and _is_validated(parts, at.step):
      _save(parts, at, reports, validate=True)
    elif at.step % training.save_every == 0:
      _save(parts, at, reports, validate=False)
    stopped = stop(at.step)
  if parts.checkpoints.latest_step() != at.step:
    validate = parts.validator is not None and not stopped
    _save(parts, at, reports, validate, last=True)
  parts.checkpoints.wait()
  if at.step == training.steps or not _has_patience(parts, at):
    stopped = 0
  _log_end(parts, at, stopped)
  return stopped


def _shape_of(batch: Batch) -> Shape:
  rows, source = batch.source.shape
  return Shape(rows, source, batch.target.shape[1])


def _has_patience(parts: Parts, at: Position) -> bool:
  patience = parts.config.training.patience
  return not patience or at.progress.stale < patience


def _is_validated(parts: Parts, step: int) -> bool:
  training = parts.config.training
  return step % training.validate_every == 0 or step == training.steps


def _save(
  parts: Parts,
  at: Position,
  reports: Reports,
  validate: bool,
  last: bool = False,
) -> None:
  """Save a checkpoint, after a validation if asked for.

  While updates are skipped only the last state is saved, and it is not
  validated: it may be the state that makes them bad.
  """
  totals = jax.device_get(at.totals)
  reports.check_skips(totals)
  if totals.in_a_row > 0 and not last:
    logger.warning('no checkpoint at step %d: its update was skipped', at.step)
    return
  quality = None
  with at.clock.paused():
    if validate and totals.in_a_row == 0:
      quality = reports.validation(at)
    progress = with_skips(at.timed_progress(), totals)
    parts.checkpoints.save(at.state, parts.iterator, progress, quality)


def _log_end(parts: Parts, at: Position, stopped: int) -> None:
  training, progress = parts.config.training, at.progress
  if not _has_patience(parts, at):
    logger.info(
      'no better %s in %d validations', training.metric, progress.stale
    )
  if progress.best is not None:
    logger.info(
      'best validation %s: %.4g at step %d',
      training.metric,
      progress.best,
      progress.best_step,
    )
  logger.info('in all, %s', parts.compilations.total)
  logger.info(
    '%s after step %d; run directory: %s',
    'stopped' if stopped else 'finished',
    at.step,
    parts.workdir,
  )


def _log(parts: Parts, step: int) -> MetricsLog:
  asked = parts.config.training.wandb and is_first()
  wandb = WandbLog(parts.config, parts.workdir) if asked else None
  return MetricsLog(parts.workdir, step, wandb)


@contextlib.contextmanager
def _held(workdir: Path) -> Iterator[None]:
  """Keep other trainings out of the run directory; process 0 holds the lock."""
  with contextlib.ExitStack() as stack:

    def hold() -> None:
      if is_first():
        stack.enter_context(lock.held(workdir))

    on_all(hold)
    yield


def _open_directory(
  config: ExperimentConfig, workdir: Path, corpus: PreparedCorpus
) -> None:
  # Checked again: another training may have ended in it in the meantime.
  run_directory.check(workdir, config)
  tokenizers = corpus.source_tokenizer, corpus.target_tokenizer
  run_directory.create(workdir, config, *tokenizers)
  write_corpus(workdir, corpus)


def _has_steps(workdir: Path) -> bool:
  """Return whether there is anything to resume from, damaged or not."""
  directory = workdir / 'checkpoints'
  if not directory.is_dir():
    return False
  with open_to_read(directory) as reader:
    return bool(reader.all_steps())


def _baseline(
  config: ExperimentConfig, planned: PlannedParts, corpus: PreparedCorpus
) -> TrainedModel:
  return read_baseline(
    planned.plan.abstract.parameters,
    planned.model,
    (corpus.source_tokenizer, corpus.target_tokenizer),
    Path(config.training.init_from),
  )


def _restore_or_start(parts: Parts, baseline: TrainedModel | None) -> Position:
  """Return the position of the last checkpoint, or the start.

  The next step is compiled, or read from the cache, at the same time.
  """
  last = parts.checkpoints.latest_step() or 0
  unfinished = last < parts.config.training.steps
  _, shape, _ = parts.batches.plan.batch(last)
  if unfinished:
    parts.programs.begin(shape)
  state, progress = _restored_or_fresh(parts, baseline)
  if unfinished:
    parts.programs.wait_for(shape)
  return Position(
    int(state.step), state, parts.zero_totals(), progress, Clock()
  )


def _restored_or_fresh(
  parts: Parts, baseline: TrainedModel | None
) -> tuple[TrainState, Progress]:
  state, progress = parts.checkpoints.restore(
    parts.plan.abstract, parts.iterator
  )
  step = parts.checkpoints.latest_step() or 0
  if step:
    logger.info('resuming from step %d', step)
    return state, progress
  state = parts.plan.make()
  if baseline:
    started = with_baseline(state.parameters, parts.model, baseline)
    state = state.started_at(put_like(started, state.parameters))
    workdir = parts.config.training.init_from
    logger.info('started from %s, step %d', workdir, baseline.step)
  return state, progress
