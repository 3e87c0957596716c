"""The state of a training: its plan, its start, and where the training is.

Tracing a deep model takes seconds, so the shapes, the layout and the values of
the first state come from one trace.
"""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from jax.sharding import Mesh

from fusion_jax.config import ExperimentConfig, TrainingConfig
from fusion_jax.models.transformer import Transformer, boxed_parameters
from fusion_jax.parallel.mesh import partition_specs, shardings
from fusion_jax.runs.checkpoint import Progress, TrainState, copied
from fusion_jax.training.optimizer import trained_part
from fusion_jax.training.step import Totals


class StatePlan(NamedTuple):
  """Plan of a training state that does not exist yet."""

  specs: TrainState  # A PartitionSpec in place of each array.
  abstract: TrainState  # A ShapeDtypeStruct with its sharding.
  make: Callable[[], TrainState]


def plan_state(
  model: Transformer,
  optimizer: optax.GradientTransformation,
  config: ExperimentConfig,
  mesh: Mesh,
) -> StatePlan:
  """Plan how a training state is sharded over a mesh and how it is made.

  Moments are sharded like the parameters they belong to.
  """

  def fresh_state() -> TrainState:
    return _boxed_state(model, optimizer, config.training)

  # JAX caches the trace of a function, so that `make` does not trace again.
  shapes = jax.eval_shape(fresh_state)
  specs = partition_specs(shapes, config.parallel.rules, mesh)
  placed = shardings(specs, mesh)
  make = jax.jit(fresh_state, out_shardings=_like(shapes, placed))
  abstract = jax.tree.map(
    lambda x, sharding: jax.ShapeDtypeStruct(
      x.shape, x.dtype, sharding=sharding
    ),
    nn.unbox(shapes),
    placed,
  )
  return StatePlan(specs, abstract, lambda: nn.unbox(make()))


def initial_state(
  model: Transformer, optimizer: optax.GradientTransformation, seed: int
) -> TrainState:
  """Return fresh parameters and optimizer state at step 0."""
  return nn.unbox(_boxed_state(model, optimizer, TrainingConfig(seed=seed)))


def _boxed_state(
  model: Transformer,
  optimizer: optax.GradientTransformation,
  config: TrainingConfig,
) -> TrainState:
  parameters = boxed_parameters(model, config.seed)
  return TrainState(
    jnp.zeros((), jnp.int32),
    parameters,
    optimizer.init(trained_part(parameters, config.freeze)),
    copied(parameters) if config.ema > 0 else None,
  )


def _like(boxed: TrainState, leaves: TrainState) -> TrainState:
  """Put the leaves of one tree into the boxes of another."""
  structure = jax.tree.structure(boxed)
  return jax.tree.unflatten(structure, jax.tree.leaves(leaves))


class Clock:
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
  def paused(self) -> Iterator[None]:
    """Leave out the time that is spent in the block."""
    begin = time.monotonic()
    yield
    self._pause += time.monotonic() - begin


@dataclasses.dataclass
class Position:
  """Where a training is between two steps; progress is that at this start."""

  step: int
  state: TrainState
  totals: Totals
  progress: Progress
  clock: Clock

  def timed_progress(self) -> Progress:
    """Return the progress with the time of this start added."""
    seconds = self.progress.seconds + self.clock.total()
    return dataclasses.replace(self.progress, seconds=seconds)
