"""The training step: a pure function of state and batch.

It is compiled once for each batch shape and donates what it replaces. Its
dropout depends on (seed, step) alone, so that a resumed run draws the same.
"""

import functools
import logging
import time
from collections.abc import Callable
from concurrent import futures
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from fusion_jax.config import ExperimentConfig
from fusion_jax.data.batching import Batch, Shape
from fusion_jax.models.losses import LossSums, zero_sums
from fusion_jax.models.transformer import Parameters, Transformer
from fusion_jax.parallel.mesh import on_each_shard, replicated, shardings
from fusion_jax.runs.checkpoint import TrainState
from fusion_jax.training.gradients import (
  batch_loss,
  count_tokens,
  summed_gradients,
  training_loss,
)
from fusion_jax.training.optimizer import Applied, apply_update

logger = logging.getLogger(__name__)


class Totals(NamedTuple):
  """Sums since they were last read, kept on the device.

  A step whose loss or gradient is not finite is skipped: counted, not summed.
  Norms are those before clipping. `first_bad_step` is 0 if none was skipped.
  `in_a_row` counts the most recent skipped steps, also those before the sums
  were last read; `longest` is its largest value.
  """

  sums: LossSums
  diversity: Float[Array, '']
  gradient_norm: Float[Array, '']
  encoder_gradient_norms: Float[Array, ' L']
  steps: Int[Array, '']
  skipped: Int[Array, '']
  first_bad_step: Int[Array, '']
  in_a_row: Int[Array, '']
  longest: Int[Array, '']


def zero_totals(encoder_layers: int) -> Totals:
  """Return totals of no steps; each leaf is its own array, to be donated."""
  return Totals(
    zero_sums(),
    diversity=jnp.zeros((), jnp.float32),
    gradient_norm=jnp.zeros((), jnp.float32),
    encoder_gradient_norms=jnp.zeros((encoder_layers,), jnp.float32),
    steps=jnp.zeros((), jnp.int32),
    skipped=jnp.zeros((), jnp.int32),
    first_bad_step=jnp.zeros((), jnp.int32),
    in_a_row=jnp.zeros((), jnp.int32),
    longest=jnp.zeros((), jnp.int32),
  )


def make_train_step(
  model: Transformer,
  optimizer: optax.GradientTransformationExtraArgs,
  config: ExperimentConfig,
  mesh: Mesh | None = None,
  specs: TrainState | None = None,
) -> jax.stages.Wrapped:
  """Return the jitted update.

  The gradient is that of the mean loss per target token of the whole batch. It
  does not depend on the padding, the devices or the number of microbatches. If
  it is not finite, the step changes nothing but the step number.
  """
  training = config.training
  loss = functools.partial(training_loss, model, training)

  def train_step(state, totals, batch):
    key = jax.random.fold_in(jax.random.key(training.seed), state.step)
    gradients, (sums, reward) = summed_gradients(
      loss,
      state.parameters,
      batch,
      key,
      count_tokens(batch),
      config.optimizer.accumulation,
      specs and specs.parameters,
    )
    new, applied = apply_update(state, gradients, sums, optimizer, training)
    return new, _counted(totals, sums, reward, applied, new.step)

  placed = mesh and (shardings(specs, mesh), replicated(mesh))
  return jax.jit(train_step, donate_argnums=(0, 1), out_shardings=placed)


def _counted(
  totals: Totals,
  sums: LossSums,
  reward: Float[Array, ''],
  applied: Applied,
  step: Int[Array, ''],
) -> Totals:
  """Return the totals after one more step, summed or skipped."""
  layers = layer_norms(applied.gradients['encoder'])
  summed = totals._replace(
    sums=jax.tree.map(jnp.add, totals.sums, sums),
    diversity=totals.diversity + reward,
    gradient_norm=totals.gradient_norm + applied.norm,
    encoder_gradient_norms=totals.encoder_gradient_norms + layers,
    steps=totals.steps + 1,
  )
  bad = ~applied.finite
  first, in_a_row = totals.first_bad_step, (totals.in_a_row + 1) * bad
  return optax.tree.where(applied.finite, summed, totals)._replace(
    skipped=totals.skipped + bad,
    first_bad_step=jnp.where((first == 0) & bad, step, first),
    in_a_row=in_a_row,
    longest=jnp.maximum(totals.longest, in_a_row),
  )


def layer_norms(gradients: Parameters) -> Float[Array, ' L']:
  """Return the norm of each layer's gradient; Yang et al., Fig. 11."""
  if 'layers' in gradients:
    return jax.vmap(optax.tree.norm)(gradients['layers'])
  count = sum(name.startswith('layer_') for name in gradients)
  layers = [gradients[f'layer_{index}'] for index in range(count)]
  return jnp.stack(list(map(optax.tree.norm, layers)))


def make_eval_step(
  model: Transformer, chunk_tokens: int
) -> Callable[[Parameters, LossSums, Batch], LossSums]:
  """Return the jitted validation step, which adds a batch without smoothing."""

  @on_each_shard
  def sums_of(parameters, batch):
    return batch_loss(model, parameters, batch, 0.0, chunk_tokens)[0]

  def eval_step(parameters, sums, batch):
    return jax.tree.map(jnp.add, sums, sums_of(parameters, batch))

  return jax.jit(eval_step, donate_argnums=1)


class StepPrograms:
  """Compiler of the update, told in the log; `compiling` names a shape."""

  def __init__(self, compile_update: Callable[[Shape], None], shapes: int):
    """Compile nothing yet."""
    self._compile_update, self._shapes = compile_update, shapes
    self._thread = futures.ThreadPoolExecutor(1)
    self._made: dict[Shape, futures.Future[None]] = {}
    self.compiling, self._tells = '', True

  def close(self) -> None:
    """Tell no more of what is still compiled; it cannot be stopped."""
    self._tells = False

  def begin(self, shape: Shape) -> None:
    """Compile the update for a shape in the background, if it is new."""
    if shape not in self._made:
      number = len(self._made) + 1
      self._made[shape] = self._thread.submit(self._compile, shape, number)

  def wait_for(self, shape: Shape) -> None:
    """Wait until the update is compiled for a shape, or raise its error."""
    self.begin(shape)
    self._made[shape].result()

  def _compile(self, shape: Shape, number: int) -> None:
    name = f'shape {number} of {self._shapes}'
    logger.info(
      f'compiling {name} ({shape.rows} rows of {shape.source} source and '
      f'{shape.target} target subwords) ...'
    )
    start, self.compiling = time.monotonic(), name
    try:
      self._compile_update(shape)
    finally:
      self.compiling = ''
    if self._tells:
      logger.info('compiled %s in %.1f s', name, time.monotonic() - start)


# Events of JAX: a program was made ready to run, by the compiler or from the
# cache on disk; and a program was found in that cache.
_MADE = '/jax/core/compile/backend_compile_duration'
_FOUND = '/jax/compilation_cache/cache_hits'


class Compilations:
  """Record of what JAX compiles in this process, until `close`."""

  def __init__(self):
    # Of each program, without tracing; some are compiled at the same time.
    self._seconds: list[float] = []
    self._hits: list[str] = []
    self._told = 0, 0
    jax.monitoring.register_event_duration_secs_listener(self._made)
    jax.monitoring.register_event_listener(self._found)

  def total(self) -> str:
    """Describe all of it in one line."""
    return self._since(0, 0)

  def news(self) -> str:
    """Describe what was compiled since the last call; '' if nothing was."""
    line = self._since(*self._told)
    self._told = len(self._seconds), len(self._hits)
    return '' if line.startswith('0 ') else line

  def close(self) -> None:
    """Stop listening."""
    jax.monitoring.unregister_event_duration_listener(self._made)
    jax.monitoring.unregister_event_listener(self._found)

  def _since(self, programs: int, hits: int) -> str:
    seconds, hits = self._seconds[programs:], len(self._hits) - hits
    cached = f', {hits} of them from the cache' if hits else ''
    return f'{len(seconds)} programs compiled in {sum(seconds):.1f} s{cached}'

  def _made(self, event: str, duration_secs: float, **_: Any) -> None:
    if event == _MADE:
      self._seconds.append(duration_secs)

  def _found(self, event: str, **_: Any) -> None:
    if event == _FOUND:
      self._hits.append(event)
