"""Tracing the step before its arguments are there."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fusion_jax.config import PRESETS, ExperimentConfig
from fusion_jax.data.batching import Shape
from fusion_jax.models.transformer import Transformer
from fusion_jax.parallel.mesh import make_mesh
from fusion_jax.parallel_options import ParallelConfig
from fusion_jax.presets import changed
from fusion_jax.training.ahead import (
  StepArguments,
  abstract_arguments,
  traced_beside,
)
from fusion_jax.training.fresh import plan_state

_SHAPE = Shape(8, 5, 6)


@pytest.fixture
def mesh():
  return make_mesh(ParallelConfig(data=2, fsdp=2, tensor=2))


def _arguments(mesh, packing: bool = False) -> StepArguments:
  model = dataclasses.replace(
    PRESETS['tiny'], encoder_layers=1, decoder_layers=1
  )
  config = changed(
    ExperimentConfig(model=model), {'data.batch.packing': packing}
  )
  transformer = Transformer(model, 16, 16, 2)
  optimizer = optax.with_extra_args_support(optax.sgd(1.0))
  plan = plan_state(transformer, optimizer, config, mesh)
  return abstract_arguments(plan, config, mesh, _SHAPE)


def _there(arguments):
  return jax.tree.map(
    lambda x: jax.device_put(np.zeros(x.shape, x.dtype), x.sharding), arguments
  )


@pytest.mark.parametrize('packing', [False, True])
def test_a_call_finds_the_trace(mesh, packing):
  traces = []

  @jax.jit
  def step(state, totals, batch):
    traces.append(batch.source.shape)
    return totals.steps + batch.source_lengths.sum() + state.step

  arguments = _arguments(mesh, packing)
  with jax.set_mesh(mesh), traced_beside(step, arguments, mesh):
    there = _there(arguments)
  assert traces == [(8, 5)]
  with jax.set_mesh(mesh):
    step(*there)
    assert traces == [(8, 5)]
    step(*_there(arguments._replace(batch=_wider(arguments.batch))))
  assert traces == [(8, 5), (8, 7)]


def _wider(batch):
  source = batch.source
  wider = jax.ShapeDtypeStruct((8, 7), source.dtype, sharding=source.sharding)
  return batch._replace(source=wider)


def test_an_error_of_the_trace_is_raised(mesh):
  @jax.jit
  def step(state, totals, batch):
    return jnp.ones(2) + jnp.ones(3)

  beside = traced_beside(step, _arguments(mesh), mesh)
  with jax.set_mesh(mesh), pytest.raises(TypeError, match='shapes'), beside:
    pass
