"""The training loop, read from top to bottom: build, restore, update, save."""

import collections
import contextlib
import dataclasses
import functools
import logging
import math
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from fusion_jax.config import ExperimentConfig
from fusion_jax.data.pipeline import abstract_batch, training_iterator
from fusion_jax.data.prepare import prepare
from fusion_jax.data.prepared import PreparedCorpus
from fusion_jax.models.transformer import Parameters, Transformer
from fusion_jax.parallel.distributed import first_then_others, is_first, on_all
from fusion_jax.parallel.heartbeat import Heartbeat, name_start
from fusion_jax.parallel.mesh import by_rows, make_mesh, put_like, replicated
from fusion_jax.runs import lock, run_directory
from fusion_jax.runs.checkpoint import Checkpoints, Progress, abstract_like
from fusion_jax.runs.kept_corpus import write_corpus
from fusion_jax.runs.loading import make_model
from fusion_jax.runs.state import TrainState
from fusion_jax.runs.stored import identity_of
from fusion_jax.training.batches import make_batches
from fusion_jax.training.checks import (
  check_freeze,
  check_rows,
  check_same_everywhere,
)
from fusion_jax.training.compilations import Compilations
from fusion_jax.training.evaluate import Validator, token_means
from fusion_jax.training.fusion_rate import fusion_rates
from fusion_jax.training.initial_state import plan_state
from fusion_jax.training.logs import MetricsLog
from fusion_jax.training.optimizer import last_rate, make_optimizer
from fusion_jax.training.signals import stop_on_signals
from fusion_jax.training.skips import check_skips, log_skips, with_skips
from fusion_jax.training.step import Totals, make_train_step, zero_totals
from fusion_jax.training.warm_start import with_baseline
from fusion_jax.training.watch import (
  WATCH_EVERY,
  Watch,
  encoder_trouble,
  has_router,
  router_troubles,
)

logger = logging.getLogger(__name__)

# Number of steps that may wait on the device: enough to keep it busy, and few
# enough to answer a signal soon.
_STEPS_IN_FLIGHT = 2


def run(config: ExperimentConfig, workdir: Path) -> None:
  """Train an experiment, or resume its training.

  Args:
    config: Experiment.
    workdir: Run directory; it is made if it does not exist.

  Raises:
    InputError: The data are bad, the directory belongs to another run, another
      process trains in it, the disk is full, or the loss stays not finite.
  """
  on_all(lambda: run_directory.check(workdir, config))
  check_same_everywhere(config)
  # Before anything that takes long, so that a process that is lost later leaves
  # no other waiting here.
  start = name_start()
  mesh = make_mesh(config.parallel)
  check_rows(config, mesh)
  corpus = first_then_others(lambda: prepare(config.data))
  check_freeze(config, corpus)
  with _held(workdir):
    _train(config, workdir, corpus, mesh, start)


@contextlib.contextmanager
def _held(workdir: Path) -> Iterator[None]:
  """Keep other trainings out of the run directory; process 0 holds the lock."""
  with contextlib.ExitStack() as stack:

    def hold() -> None:
      if is_first():
        stack.enter_context(lock.held(workdir))

    on_all(hold)
    yield


def _train(
  config: ExperimentConfig,
  workdir: Path,
  corpus: PreparedCorpus,
  mesh: Mesh,
  start: str,
) -> None:
  tokenizers = corpus.source_tokenizer, corpus.target_tokenizer

  def open_directory() -> None:
    # Checked again: another training may have ended in it in the meantime.
    run_directory.check(workdir, config)
    run_directory.create(workdir, config, *tokenizers)
    write_corpus(workdir, corpus)

  first_then_others(open_directory)
  with (
    jax.set_mesh(mesh),
    contextlib.closing(
      _Training(config, workdir, corpus, mesh, start)
    ) as training,
  ):
    training.restore()
    with stop_on_signals() as stop:
      training.run(stop)


class _Training:
  """Parts of a training run, and the state between its steps."""

  def __init__(
    self,
    config: ExperimentConfig,
    workdir: Path,
    corpus: PreparedCorpus,
    mesh: Mesh,
    start: str,
  ):
    self._config = config
    self._workdir = workdir
    self._mesh = mesh
    self._start = start
    self._compilations = Compilations()
    self._opened = contextlib.ExitStack()
    self._batches = make_batches(config, corpus, mesh)
    self._iterator = training_iterator(self._batches, by_rows(mesh))
    source, target = corpus.source_tokenizer, corpus.target_tokenizer
    self._tokenizers = source, target
    self._model = model = make_model(config, source, target)
    recipe = config.optimizer, config.model.width, config.training.steps
    rates = fusion_rates(model, config.optimizer)
    optimizer = make_optimizer(*recipe, config.training.freeze, rates)
    self._plan = plan_state(model, optimizer, config, mesh)
    self._step = make_train_step(
      model, optimizer, config, mesh, self._plan.specs
    )
    on_mesh = functools.partial(jax.jit, out_shardings=replicated(mesh))
    self._zero_totals = on_mesh(
      functools.partial(zero_totals, config.model.encoder_layers)
    )
    self._gathered = on_mesh(lambda parameters: parameters)
    self._last_rate = on_mesh(functools.partial(last_rate, *recipe))
    self._watch, self._looked, self._telemetry = Watch(), -WATCH_EVERY, {}
    self._progress = Progress()
    self._validate = (
      Validator(config, model, corpus, mesh, workdir)
      if corpus.has_split('valid')
      else None
    )
    self._checkpoints = Checkpoints(
      workdir, config.training, identity_of(config, source, target)
    )
    _log_model(model, self._plan.abstract, mesh)

  def restore(self) -> None:
    """Restore the last checkpoint, if there is one.

    The next step is compiled, or read from the cache, at the same time.
    """
    # Opened before work that takes some processes longer than others, and
    # closed last: the others take this process for lost once it is closed.
    heartbeat = Heartbeat(self._workdir, self._config.parallel, self._start)
    self._heartbeat = self._opened.enter_context(contextlib.closing(heartbeat))
    last = self._checkpoints.latest_step() or 0
    with heartbeat.telling(), futures.ThreadPoolExecutor(1) as ahead:
      compiled = ahead.submit(self._compile_step_after, last)
      step = self._restore_or_start()
      compiled.result()
    log = MetricsLog(self._workdir, step)
    self._log = self._opened.enter_context(contextlib.closing(log))

  def _restore_or_start(self) -> int:
    """Set the state to resume or start from, and return its step."""
    self._state, self._progress = self._checkpoints.restore(
      self._plan.abstract, self._iterator
    )
    step = self._checkpoints.latest_step() or 0
    if step:
      logger.info('going on from step %d', step)
      return step
    self._state = self._plan.make()
    if self._config.training.init_from:
      self._start_from_baseline()
    return step

  def _compile_step_after(self, step: int) -> None:
    """Compile the step as the first update will ask for it; run nothing."""
    if step >= self._config.training.steps:
      return
    _, shape, _ = self._batches.plan.batch(step)
    packing = self._config.data.batch.packing
    batch = abstract_batch(shape, packing, by_rows(self._mesh))
    totals = abstract_like(
      jax.eval_shape(self._zero_totals), replicated(self._mesh)
    )
    with jax.set_mesh(self._mesh):
      self._step.lower(self._plan.abstract, totals, batch).compile()

  def _start_from_baseline(self) -> None:
    fresh = self._state.parameters
    started = with_baseline(
      fresh,
      self._model,
      self._tokenizers,
      Path(self._config.training.init_from),
    )
    self._state = self._state.started_at(put_like(started, fresh))

  def close(self) -> None:
    """Stop the reading threads and close the files."""
    self._compilations.close()
    self._iterator.close()
    self._checkpoints.close()
    self._opened.close()

  def run(self, stop: Callable[[int], bool]) -> None:
    """Update until the last step, a stop, or the end of patience."""
    with self._heartbeat.telling():
      self._run(stop)

  def _run(self, stop: Callable[[int], bool]) -> None:
    training = self._config.training
    self._totals, self._clock = self._zero_totals(), _Clock()
    in_flight = collections.deque()
    step, stopped = int(self._state.step), False
    while step < training.steps and not self._out_of_patience():
      self._heartbeat.at(step)
      self._update(in_flight)
      step += 1
      if step % training.log_every == 0:
        self._report(step)
      if self._validate and self._is_validated(step):
        self._save(step, validate=True)
      elif step % training.save_every == 0:
        self._save(step, validate=False)
      stopped = stop(step)
      if stopped:
        break
    self._finish(step, stopped)

  def _update(self, in_flight: collections.deque) -> None:
    batch = next(self._iterator)
    self._heartbeat.has_batch()
    self._state, self._totals = self._step(self._state, self._totals, batch)
    in_flight.append(jnp.copy(self._state.step))
    if len(in_flight) > _STEPS_IN_FLIGHT:
      in_flight.popleft().block_until_ready()

  def _out_of_patience(self) -> bool:
    patience = self._config.training.patience
    return 0 < patience <= self._progress.stale

  def _is_validated(self, step: int) -> bool:
    training = self._config.training
    return step % training.validate_every == 0 or step == training.steps

  def _finish(self, step: int, stopped: bool) -> None:
    if self._checkpoints.latest_step() != step:
      validate = self._validate is not None and not stopped
      self._save(step, validate, last=True)
    self._checkpoints.wait()
    if self._out_of_patience():
      logger.info(
        'no better %s in %d validations',
        self._config.training.metric,
        self._progress.stale,
      )
    if self._progress.best is not None:
      logger.info(
        'best validation %s: %.4g at step %d',
        self._config.training.metric,
        self._progress.best,
        self._progress.best_step,
      )
    logger.info('in all, %s', self._compilations.total)
    logger.info(
      '%s after step %d; run directory: %s',
      'stopped' if stopped else 'finished',
      step,
      self._workdir,
    )

  def _report(self, step: int) -> None:
    """Log the means since the last report and start new sums."""
    totals = jax.device_get(self._totals)
    self._check_skips(totals)
    self._progress = with_skips(self._progress, totals)
    log_skips(totals, step, self._progress.skipped)
    in_a_row = self._totals.in_a_row
    self._totals = self._zero_totals()._replace(in_a_row=in_a_row)
    seconds = self._clock.lap()
    if totals.steps > 0:
      self._log_means(step, totals, seconds)
    compiled = self._compilations.news()
    if compiled.programs:
      logger.info('%s', compiled)

  def _log_means(self, step: int, totals: Totals, seconds: float) -> None:
    steps = int(totals.steps)
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
      'learning_rate': float(self._last_rate(self._state.optimizer)),
      'epoch': step / self._batches.plan.batches_per_epoch,
      'seconds': self._timed_progress().seconds,
      'skipped': self._progress.skipped,
    }
    if self._config.training.diversity:
      values['diversity'] = float(totals.diversity) / steps
    self._log.write(step, 'train', values)
    self._warn(step, encoder_norms, values['gradient_norm'])
    each = seconds / (steps + int(totals.skipped))
    left = (self._config.training.steps - step) * each
    logger.info(
      'step %d of %d, epoch %.2f, loss %.4f, perplexity %.2f, '
      '%.0f target tokens/s, rate %.2e, %s left',
      step,
      self._config.training.steps,
      values['epoch'],
      values['loss'],
      values['perplexity'],
      values['tokens_per_second'],
      values['learning_rate'],
      _duration(left),
    )

  def _warn(
    self, step: int, encoder_norms: list[float], gradient_norm: float
  ) -> None:
    """Warn of a fusion or an encoder that has not learned for a long time."""
    troubles = encoder_trouble(encoder_norms, gradient_norm, self._config)
    if has_router(self._config.model) and self._validate:
      if step - self._looked >= WATCH_EVERY:
        self._telemetry = self._told_by_fusions(step)
      troubles |= router_troubles(self._telemetry, self._config.model)
    for line in self._watch(step, troubles):
      logger.warning('%s', line)

  def _told_by_fusions(
    self, step: int, parameters: Parameters | None = None
  ) -> dict[str, float]:
    """Log the telemetry of the fusions and return it."""
    self._looked = step
    if parameters is None:
      parameters = self._gathered(self._state.evaluated)
    telemetry = self._validate.telemetry(parameters)
    if telemetry:
      self._log.write(step, 'fusion', telemetry)
    return telemetry

  def _check_skips(self, totals: Totals) -> None:
    most = self._config.training.max_skipped
    last_good = self._checkpoints.latest_step()
    check_skips(totals, most, self._batch_of, last_good)

  def _batch_of(self, step: int) -> str:
    epoch, shape, slots = self._batches.plan.batch(step - 1)
    indices = self._batches.examples(epoch, slots[slots >= 0])
    return (
      f'batch {step - 1}, epoch {epoch}, shape {tuple(shape)}, first pairs '
      f'{indices[:3].tolist()}'
    )

  def _save(self, step: int, validate: bool, last: bool = False) -> None:
    """Save a checkpoint, after a validation if asked for.

    While updates are skipped only the last state is saved, and it is not
    validated: it may be the state that makes them bad.
    """
    totals = jax.device_get(self._totals)
    self._check_skips(totals)
    if totals.in_a_row > 0 and not last:
      logger.warning('no checkpoint at step %d: its update was skipped', step)
      return
    quality = None
    with self._clock.paused():
      if validate and totals.in_a_row == 0:
        quality = self._validated(step)
      progress = with_skips(self._timed_progress(), totals)
      self._checkpoints.save(self._state, self._iterator, progress, quality)

  def _timed_progress(self) -> Progress:
    seconds = self._progress.seconds + self._clock.total()
    return dataclasses.replace(self._progress, seconds=seconds)

  def _validated(self, step: int) -> float:
    parameters = self._gathered(self._state.evaluated)
    values = self._validate(parameters, step)
    self._log.write(step, 'valid', values)
    if self._looked != step:
      self._telemetry = self._told_by_fusions(step, parameters)
    metric = self._config.training.metric
    lower = metric == 'loss'
    self._progress = self._progress.updated(values[metric], step, lower)
    return -values[metric] if lower else values[metric]


class _Clock:
  """Clock of the training time since the last lap, without pauses."""

  def __init__(self):
    self._begin = self._start = time.monotonic()
    self._pause = 0.0

  def total(self) -> float:
    """Return the seconds since the clock was made, pauses included."""
    return time.monotonic() - self._begin

  def lap(self) -> float:
    """Return the seconds since the last lap, and start the next."""
    now = time.monotonic()
    seconds = now - self._start - self._pause
    self._start, self._pause = now, 0.0
    return max(seconds, 1e-9)

  @contextlib.contextmanager
  def paused(self):
    """Leave out the time that is spent in the block."""
    begin = time.monotonic()
    yield
    self._pause += time.monotonic() - begin


def _duration(seconds: float) -> str:
  minutes = math.ceil(seconds / 60)
  return f'{minutes // 60} h {minutes % 60:02d} min'


def _log_model(model: Transformer, state: TrainState, mesh: Mesh) -> None:
  parameters = sum(x.size for x in jax.tree.leaves(state.parameters))
  logger.info(
    '%s parameters, vocabularies %d and %d, %d %s device(s): %s',
    f'{parameters:,}',
    model.source_vocabulary,
    model.target_vocabulary,
    mesh.size,
    jax.devices()[0].platform,
    ' x '.join(f'{axis} {size}' for axis, size in mesh.shape.items()),
  )
