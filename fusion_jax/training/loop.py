"""The training loop, read from top to bottom: check, build, update, save."""

import collections
import contextlib
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.experimental import multihost_utils

from fusion_jax.config import ExperimentConfig
from fusion_jax.data.batching import Shape
from fusion_jax.data.prepare import prepare
from fusion_jax.data.prepared import PreparedCorpus
from fusion_jax.parallel.heartbeat import Heartbeat, name_start
from fusion_jax.parallel.mesh import make_mesh, put_like
from fusion_jax.parallel.processes import first_then_others, is_first, on_all
from fusion_jax.runs.checkpoint import TrainState
from fusion_jax.runs.directory import (
  check_workdir,
  create_run,
  locked,
  write_corpus,
  write_version,
)
from fusion_jax.runs.integrity import open_checkpoints
from fusion_jax.runs.loading import TrainedModel
from fusion_jax.training.build import (
  Parts,
  Plan,
  build,
  check_experiment,
  plan_training,
)
from fusion_jax.training.logs import MetricsLog, Position, Reports
from fusion_jax.training.step import StepPrograms
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
  on_all(lambda: check_workdir(workdir, config))
  check_experiment(config, jax.devices())
  # Before anything that takes long, so that a process that is lost later leaves
  # no other waiting here.
  start = name_start()
  mesh = make_mesh(config.parallel)
  corpus = first_then_others(lambda: prepare(config.data))
  check_experiment(config, jax.devices(), corpus)
  with jax.set_mesh(mesh), contextlib.ExitStack() as opened:
    # Nothing is written until all of this was accepted.
    plan = plan_training(config, workdir, corpus, mesh)
    baseline = _baseline(plan) if config.training.init_from else None
    # Process 0 keeps other trainings out of the run directory.
    on_all(lambda: is_first() and opened.enter_context(locked(workdir)))
    first_then_others(lambda: _open_directory(config, workdir, corpus))
    # Closed last: the others take this process for lost once it is closed.
    heartbeat = Heartbeat(workdir, config.parallel, start)
    opened.callback(heartbeat.close)
    with heartbeat.telling():
      parts = build(plan, heartbeat, opened)
      position = _restore_or_start(parts, baseline)
      del baseline  # Its parameters are on a device.
      log = MetricsLog(config, workdir, position.step)
      opened.callback(log.close)
      profiler = Profiler(workdir, profile)
      opened.callback(profiler.close)
      with stop_on_signals(parts.programs) as stop:
        reports = Reports(parts, log)
        return EXIT_CODES[train(parts, position, reports, profiler, stop)]


class Profiler:
  """Profile of a range of steps in DIR/profile, for TensorBoard or Perfetto."""

  def __init__(self, workdir: Path, steps: tuple[int, int] | None):
    """Prepare to profile."""
    self._folder = workdir / 'profile'
    self._first, self._last = steps or (0, 0)
    self._is_on = False

  def step(self, number: int) -> contextlib.AbstractContextManager:
    """Return the context of a step; its profile begins or ends before it."""
    if number == self._first:
      jax.profiler.start_trace(str(self._folder))
      self._is_on = True
    if number == self._last + 1:
      self.close()
    return jax.profiler.StepTraceAnnotation('train', step_num=number)

  def close(self) -> None:
    """End the profile and write it."""
    if self._is_on:
      self._is_on = False
      jax.profiler.stop_trace()
      logger.info('profile written to %s', self._folder)


@contextlib.contextmanager
def stop_on_signals(programs: StepPrograms) -> Iterator[Callable[[int], int]]:
  """Yield a function that returns the signal that asks for a stop, or 0.

  Those are SIGTERM and SIGINT; a second one acts as it would outside the block.
  Among several processes SIGTERM to one of them stops all at the same step;
  SIGINT is not handled. Only the main thread can handle signals; in another one
  nothing asks.
  """
  if jax.process_count() > 1:
    reached = multihost_utils.reached_preemption_sync_point
    yield lambda step: signal.SIGTERM if reached(step) else 0
    return
  signalled = 0
  numbers = signal.SIGTERM, signal.SIGINT
  before = {number: signal.getsignal(number) for number in numbers}
  if threading.current_thread() is not threading.main_thread():
    before = {}

  def ask(number, frame):
    del frame
    nonlocal signalled
    signalled = number
    signal.signal(number, before[number])
    waits_for = programs.compiling
    logger.info(
      '%s: saving, then stopping%s; a second one stops at once',
      signal.Signals(number).name,
      f', once {waits_for} is compiled' if waits_for else '',
    )

  for number in before:
    signal.signal(number, ask)
  try:
    yield lambda step: signalled
  finally:
    for number, handler in before.items():
      signal.signal(number, handler)


def train(
  parts: Parts,
  position: Position,
  reports: Reports,
  profiler: Profiler,
  stop: Callable[[int], int],
) -> int:
  """Update until the last step, a stop, or the end of patience."""
  training, stopped = parts.plan.config.training, 0
  in_flight: collections.deque[jax.Array] = collections.deque()
  while (
    position.step < training.steps
    and not stopped
    and _has_patience(parts, position)
  ):
    parts.heartbeat.begin_step(position.step)
    with profiler.step(position.step + 1):
      batch = next(parts.iterator)
      parts.heartbeat.record_batch()
      rows, source = batch.source.shape
      parts.programs.wait_for(Shape(rows, source, batch.target.shape[1]))
      with jax.transfer_guard_host_to_device('disallow'):
        position.state, position.totals = parts.step(
          position.state, position.totals, batch
        )
    position.step += 1
    in_flight.append(jnp.copy(position.state.step))
    if len(in_flight) > _STEPS_IN_FLIGHT:
      in_flight.popleft().block_until_ready()

    last = position.step == training.steps
    if last or position.step % training.log_every == 0:
      reports.progress(position)
    if parts.plan.validator and (
      last or position.step % training.validate_every == 0
    ):
      _save(parts, position, reports, validate=True)
    elif position.step % training.save_every == 0:
      _save(parts, position, reports, validate=False)
    stopped = stop(position.step)
  if parts.checkpoints.latest_step() != position.step:
    validate = parts.plan.validator is not None and not stopped
    _save(parts, position, reports, validate, last=True)
  parts.checkpoints.wait()
  if position.step == training.steps or not _has_patience(parts, position):
    stopped = 0
  _log_end(parts, position, stopped)
  return stopped


def _has_patience(parts: Parts, position: Position) -> bool:
  patience = parts.plan.config.training.patience
  return not patience or position.progress.stale < patience


def _save(
  parts: Parts,
  position: Position,
  reports: Reports,
  validate: bool,
  last: bool = False,
) -> None:
  """Save a checkpoint, after a validation if asked for.

  While updates are skipped only the last state is saved, and it is not
  validated: it may be the state that makes them bad.
  """
  totals = jax.device_get(position.totals)
  reports.check_skips(totals)
  if totals.in_a_row > 0 and not last:
    logger.warning(
      'no checkpoint at step %d: its update was skipped', position.step
    )
    return
  quality = None
  with position.paused():
    if validate and totals.in_a_row == 0:
      quality = reports.validation(position)
    progress = position.timed_progress().with_skipped(int(totals.skipped))
    parts.checkpoints.save(position.state, parts.iterator, progress, quality)


def _log_end(parts: Parts, position: Position, stopped: int) -> None:
  metric, progress = parts.plan.config.training.metric, position.progress
  if not _has_patience(parts, position):
    logger.info('no better %s in %d validations', metric, progress.stale)
  if progress.best is not None:
    best, step = progress.best, progress.best_step
    logger.info('best validation %s: %.4g at step %d', metric, best, step)
  logger.info('in all, %s', parts.compilations.total())
  end = f'{"stopped" if stopped else "finished"} after step {position.step}'
  logger.info('%s; run directory: %s', end, parts.plan.workdir)


def _open_directory(
  config: ExperimentConfig, workdir: Path, corpus: PreparedCorpus
) -> None:
  # Checked again: another training may have ended in it in the meantime.
  check_workdir(workdir, config)
  if not (workdir / 'config.json').exists():
    write_version(workdir)
  create_run(workdir, config, corpus.source_tokenizer, corpus.target_tokenizer)
  directions = (
    corpus.split('valid').directions if corpus.has_split('valid') else ()
  )
  texts = {name: corpus.split('valid', name).texts() for name in directions}
  write_corpus(workdir, corpus.report, texts)


def _baseline(plan: Plan) -> TrainedModel | None:
  """Read the run to start from, unless there is something to resume from."""
  corpus, folder = plan.corpus, plan.workdir / 'checkpoints'
  if folder.is_dir():
    with open_checkpoints(folder) as reader:
      if reader.all_steps():
        return None
  return read_baseline(
    plan.state.abstract.parameters,
    plan.model,
    (corpus.source_tokenizer, corpus.target_tokenizer),
    Path(plan.config.training.init_from),
  )


def _restore_or_start(parts: Parts, baseline: TrainedModel | None) -> Position:
  """Return the position of the last checkpoint, or the start.

  The next step is compiled, or read from the cache, at the same time.
  """
  last = parts.checkpoints.latest_step() or 0
  unfinished = last < parts.plan.config.training.steps
  _, shape, _ = parts.plan.batches.plan.batch(last)
  if unfinished:
    parts.programs.begin(shape)
  state, progress = parts.checkpoints.restore(
    parts.plan.state.abstract, parts.iterator
  )
  # Damaged checkpoints are none.
  if step := parts.checkpoints.latest_step():
    logger.info('resuming from step %d', step)
  else:
    state = _first_state(parts.plan, baseline)
  if unfinished:
    parts.programs.wait_for(shape)
  return Position(int(state.step), state, parts.zero_totals(), progress)


def _first_state(plan: Plan, baseline: TrainedModel | None) -> TrainState:
  state = plan.state.make()
  if not baseline:
    return state
  started = with_baseline(state.parameters, plan.model, baseline)
  workdir = plan.config.training.init_from
  logger.info('started from %s, step %d', workdir, baseline.step)
  return state.started_at(put_like(started, state.parameters))
