"""What a training consists of: checked, planned, then built.

A plan is made, and refused, before anything is written. Its parts that open the
run directory follow.
"""

import contextlib
import dataclasses
import functools
import json
import logging
import math
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import grain
import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from jax.sharding import Mesh

from fusion_jax.config import ExperimentConfig, TrainingConfig, serialization
from fusion_jax.data.batching import Shape
from fusion_jax.data.mixing import mixture_table, training_mixture
from fusion_jax.data.pipeline import (
  TrainingBatches,
  abstract_batch,
  training_iterator,
  training_shapes,
)
from fusion_jax.data.prepared import PreparedCorpus
from fusion_jax.errors import InputError, require
from fusion_jax.models.transformer import (
  Parameters,
  Transformer,
  boxed_parameters,
  initial_parameters,
)
from fusion_jax.parallel.heartbeat import Heartbeat
from fusion_jax.parallel.mesh import (
  by_rows,
  own_rows,
  partition_specs,
  replicated,
  shardings,
)
from fusion_jax.parallel.processes import gather
from fusion_jax.runs.checkpoint import (
  Checkpoints,
  TrainState,
  abstract_like,
  copied,
)
from fusion_jax.runs.integrity import identity_of
from fusion_jax.runs.loading import make_model
from fusion_jax.training.evaluate import Validator
from fusion_jax.training.optimizer import (
  check_freeze,
  last_rate,
  optimizer_for,
  trained_part,
)
from fusion_jax.training.step import (
  Compilations,
  StepPrograms,
  Totals,
  make_train_step,
  zero_totals,
)

logger = logging.getLogger(__name__)


def check_experiment(
  config: ExperimentConfig,
  devices: Sequence[Any],
  corpus: PreparedCorpus | None = None,
) -> None:
  """Refuse what cannot train; without a corpus, what can be known so far."""
  _check_same_everywhere(config)
  require(
    not config.training.wandb or find_spec('wandb') is not None,
    'training.wandb',
    'the package wandb is missing: pip install wandb',
  )
  _check_rows(config, len(devices))
  _check_attention(config, {device.platform for device in devices})
  if corpus and config.training.freeze:
    model = make_model(config, corpus.source_tokenizer, corpus.target_tokenizer)
    shapes = jax.eval_shape(lambda: initial_parameters(model, 0))
    check_freeze(shapes, config.training.freeze)


def _check_same_everywhere(config: ExperimentConfig) -> None:
  """Refuse processes that were started with different configs."""
  values = serialization.flatten(config)
  first, *others = map(
    json.loads, gather(json.dumps(values, sort_keys=True).encode())
  )
  for process, other in enumerate(others, 1):
    for name, value in first.items():
      if other[name] != value:
        raise InputError(
          f'config.{name}: {value!r} on process 0, {other[name]!r} on process '
          f'{process}; start all processes with the same config'
        )


def _check_rows(config: ExperimentConfig, devices: int) -> None:
  """Refuse batches whose rows cannot be divided over the mesh.

  The batches are the same on every mesh, so that a run may resume on another
  one.
  """
  parts, rows = config.optimizer.accumulation, config.data.batch.row_multiple
  data, fsdp, _ = config.parallel.shape(devices)
  pieces = data * fsdp * parts
  require(
    math.lcm(rows, parts) % pieces == 0,
    'data.batch.row_multiple',
    f'must be a multiple of {pieces}, the {data * fsdp} devices of the '
    f'mesh that rows are cut over times optimizer.accumulation={parts}, '
    f'got {rows}',
  )


def _check_attention(config: ExperimentConfig, platforms: set[str]) -> None:
  """Refuse cuDNN's attention where it cannot run."""
  if config.model.attention_implementation != 'cudnn':
    return
  require(
    platforms == {'gpu'},
    'model.attention_implementation',
    f"'cudnn' needs NVIDIA GPUs, the devices are "
    f"{', '.join(platforms - {'gpu'})}; choose 'plain'",
  )
  multiple = config.data.batch.length_multiple
  require(
    multiple % 2 == 0,
    'data.batch.length_multiple',
    "must be even for model.attention_implementation='cudnn', which takes "
    f'lengths that are, got {multiple}; 8 suits it',
  )


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
  boxed = jax.tree.unflatten(
    jax.tree.structure(shapes), jax.tree.leaves(placed)
  )
  make = jax.jit(fresh_state, out_shardings=boxed)
  abstract = jax.tree.map(
    lambda x, sharding: x.update(sharding=sharding), nn.unbox(shapes), placed
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


@dataclasses.dataclass(frozen=True)
class Plan:
  """What a training consists of before its run directory is opened."""

  config: ExperimentConfig
  workdir: Path
  corpus: PreparedCorpus
  mesh: Mesh
  model: Transformer
  optimizer: optax.GradientTransformationExtraArgs
  state: StatePlan
  batches: TrainingBatches
  validator: Validator | None


def plan_training(
  config: ExperimentConfig, workdir: Path, corpus: PreparedCorpus, mesh: Mesh
) -> Plan:
  """Make the parts of a training that do not open its run directory."""
  model = make_model(config, corpus.source_tokenizer, corpus.target_tokenizer)
  optimizer = optimizer_for(config, model)
  state = plan_state(model, optimizer, config, mesh)
  batches = make_batches(config, corpus, mesh)
  validates = corpus.has_split('valid')
  validator = (
    Validator(config, model, corpus, mesh, workdir) if validates else None
  )
  return Plan(
    config, workdir, corpus, mesh, model, optimizer, state, batches, validator
  )


def make_batches(
  config: ExperimentConfig, corpus: PreparedCorpus, mesh: Mesh
) -> TrainingBatches:
  """Choose the batch shapes for the corpus, and log them."""
  split = corpus.split('train')
  data, training = config.data, config.training
  mixture = training_mixture(
    data, split.directions, split.lengths, training.seed
  )
  shapes = training_shapes(
    mixture.lengths,
    data.batch,
    config.optimizer.accumulation,
    data.filter.max_length,
  )
  batches = TrainingBatches(
    split,
    shapes,
    training.seed,
    *own_rows(mesh),
    data.sampling.enabled,
    mixture,
    data.batch.packing,
  )
  logger.info('%d training shapes:\n%s', len(shapes), batches.table())
  if len(split.directions) > 1:
    logger.info('mixture:\n%s', mixture_table(split.directions, mixture))
  per_epoch = batches.plan.batches_per_epoch
  logger.info(
    f'{len(split):,} pairs, {per_epoch:,} batches an epoch; '
    f'{training.steps:,} steps are {training.steps / per_epoch:.1f} epochs'
  )
  return batches


@dataclasses.dataclass(frozen=True)
class Parts:
  """What a training consists of; none of it changes from step to step."""

  plan: Plan
  iterator: grain.DatasetIterator  # Over batches on the devices; it is saved.
  step: jax.stages.Wrapped  # (state, totals, batch) -> state, totals.
  programs: StepPrograms
  zero_totals: Callable[[], Totals]
  gathered: Callable[[Parameters], Parameters]  # Replicates over the mesh.
  last_rate: Callable[[Any], jax.Array]  # Of the optimizer's state.
  checkpoints: Checkpoints
  compilations: Compilations
  heartbeat: Heartbeat


def build(
  plan: Plan, heartbeat: Heartbeat, opened: contextlib.ExitStack
) -> Parts:
  """Open the run directory and make the other parts of a training."""
  config, corpus, mesh = plan.config, plan.corpus, plan.mesh

  def close_later(part: Any) -> Any:
    opened.callback(part.close)
    return part

  on_mesh = functools.partial(jax.jit, out_shardings=replicated(mesh))
  identity = identity_of(
    config, corpus.source_tokenizer, corpus.target_tokenizer
  )
  step = make_train_step(
    plan.model, plan.optimizer, config, mesh, plan.state.specs
  )
  no_totals = on_mesh(
    functools.partial(zero_totals, config.model.encoder_layers)
  )
  recipe = config.optimizer, config.model.width, config.training.steps
  parts = Parts(
    plan,
    checkpoints=close_later(
      Checkpoints(plan.workdir, config.training, identity)
    ),
    iterator=close_later(training_iterator(plan.batches, by_rows(mesh))),
    compilations=close_later(Compilations()),
    step=step,
    programs=close_later(
      StepPrograms(
        functools.partial(_compile_update, plan, step, no_totals),
        len(plan.batches.plan.shapes),
      )
    ),
    zero_totals=no_totals,
    gathered=on_mesh(lambda parameters: parameters),
    last_rate=on_mesh(functools.partial(last_rate, *recipe)),
    heartbeat=heartbeat,
  )
  _log_model(plan)
  return parts


def _compile_update(
  plan: Plan,
  step: jax.stages.Wrapped,
  no_totals: Callable[[], Totals],
  shape: Shape,
) -> None:
  """Compile the update as the loop will ask for it; run nothing."""
  mesh, packing = plan.mesh, plan.config.data.batch.packing
  batch = abstract_batch(shape, packing, by_rows(mesh))
  totals = abstract_like(jax.eval_shape(no_totals), replicated(mesh))
  with jax.set_mesh(mesh):
    step.lower(plan.state.abstract, totals, batch).compile()


def _log_model(plan: Plan) -> None:
  model, mesh = plan.model, plan.mesh
  count = sum(x.size for x in jax.tree.leaves(plan.state.abstract.parameters))
  axes = ' x '.join(f'{axis} {size}' for axis, size in mesh.shape.items())
  logger.info(
    f'{count:,} parameters, vocabularies {model.source_vocabulary} and '
    f'{model.target_vocabulary}, {mesh.size} {jax.devices()[0].platform} '
    f'device(s): {axes}'
  )
