"""The state that a run starts from: its shapes, its layout and its values.

Tracing a deep model takes seconds, so all three come from one trace.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from jax.sharding import Mesh

from fusion_jax.config import ExperimentConfig
from fusion_jax.models.transformer import Transformer, boxed_parameters
from fusion_jax.parallel.mesh import partition_specs, shardings
from fusion_jax.runs.state import TrainState, copied


class StatePlan(NamedTuple):
  """Plan of a training state that does not exist yet.

  Attributes:
    specs: State with a `PartitionSpec` in place of each array.
    abstract: State with a `jax.ShapeDtypeStruct` and its sharding in place of
      each array.
    make: Function that returns the state at step 0, on the mesh.
  """

  specs: TrainState
  abstract: TrainState
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
  training = config.training

  def fresh_state() -> TrainState:
    return _boxed_state(model, optimizer, training.seed, training.ema > 0)

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
  model: Transformer,
  optimizer: optax.GradientTransformation,
  seed: int,
  averaged: bool = False,
) -> TrainState:
  """Return fresh parameters and optimizer state at step 0."""
  return nn.unbox(_boxed_state(model, optimizer, seed, averaged))


def _boxed_state(
  model: Transformer,
  optimizer: optax.GradientTransformation,
  seed: int,
  averaged: bool,
) -> TrainState:
  parameters = boxed_parameters(model, seed)
  return TrainState(
    jnp.zeros((), jnp.int32),
    parameters,
    optimizer.init(parameters),
    copied(parameters) if averaged else None,
  )


def _like(boxed: TrainState, leaves: TrainState) -> TrainState:
  """Put the leaves of one tree into the boxes of another."""
  structure = jax.tree.structure(boxed)
  return jax.tree.unflatten(structure, jax.tree.leaves(leaves))
