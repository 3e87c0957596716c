"""The training step before its arguments are there."""

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding

from fusion_jax.config import ExperimentConfig
from fusion_jax.data.batching import Batch, Shape
from fusion_jax.parallel.mesh import by_rows, replicated
from fusion_jax.training.checkpoint import abstract_like
from fusion_jax.training.fresh import StatePlan
from fusion_jax.training.state import TrainState
from fusion_jax.training.step import Totals, zero_totals


class StepArguments(NamedTuple):
  """What a step is called with: `jax.ShapeDtypeStruct` with its sharding."""

  state: TrainState
  totals: Totals
  batch: Batch


def abstract_ids(
  shape: tuple[int, ...], place: NamedSharding
) -> jax.ShapeDtypeStruct:
  """An int32 array that is not there."""
  return jax.ShapeDtypeStruct(shape, jnp.int32, sharding=place)


def abstract_arguments(
  plan: StatePlan, config: ExperimentConfig, mesh: Mesh, shape: Shape
) -> StepArguments:
  """The arguments of the step for a batch of a shape.

  Args:
    plan: of the state.
    config: whether batches are packed, and the depth of the encoder.
    mesh: that the step runs on.
    shape: of the whole batch.

  Returns:
    Arrays that are not there.
  """
  totals = jax.eval_shape(lambda: zero_totals(config.model.encoder_layers))
  rows, source, target = shape
  place = by_rows(mesh)
  ids = [abstract_ids((rows, size), place) for size in (source, target)]
  lengths = [abstract_ids((rows,), place)] * 2
  batch = Batch(*ids, *lengths, *(ids if config.data.batch.packing else ()))
  return StepArguments(
    plan.abstract, abstract_like(totals, replicated(mesh)), batch
  )


@contextlib.contextmanager
def traced_beside(
  step: Callable[..., Any], arguments: StepArguments, mesh: Mesh
) -> Iterator[None]:
  """Traces a step in another thread, while other things are done.

  A call with such arguments finds the trace.

  Args:
    step: jitted.
    arguments: what it will be called with.
    mesh: that it runs on.
  """

  def trace() -> None:
    with jax.set_mesh(mesh):
      step.trace(*arguments)

  with ThreadPoolExecutor(1) as pool:
    traced = pool.submit(trace)
    yield
    traced.result()
