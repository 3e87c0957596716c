"""The parts of a training, built once before its first step."""

import contextlib
import dataclasses
import functools
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import grain
import jax
import optax
from jax.sharding import Mesh

from fusion_jax.config import ExperimentConfig, OptimizerConfig
from fusion_jax.data.batching import Shape
from fusion_jax.data.pipeline import (
  TrainingBatches,
  abstract_batch,
  training_iterator,
)
from fusion_jax.data.prepared import PreparedCorpus
from fusion_jax.models.transformer import Parameters, Transformer
from fusion_jax.parallel.heartbeat import Heartbeat
from fusion_jax.parallel.mesh import by_rows, replicated
from fusion_jax.runs.checkpoint import Checkpoints, abstract_like
from fusion_jax.runs.checkpoint_reading import identity_of
from fusion_jax.runs.loading import make_model
from fusion_jax.training.batches import make_batches
from fusion_jax.training.compilations import Compilations
from fusion_jax.training.evaluate import Validator
from fusion_jax.training.fusion_rate import fusion_rates
from fusion_jax.training.initial_state import StatePlan, plan_state
from fusion_jax.training.optimizer import last_rate, make_optimizer
from fusion_jax.training.step import Totals, make_train_step, zero_totals
from fusion_jax.training.step_programs import StepPrograms

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Parts:
  """What a training consists of; none of it changes from step to step.

  Attributes:
    config: Experiment.
    workdir: Run directory.
    mesh: Device mesh.
    model: Model to train.
    batches: Training batches, a function of the step.
    iterator: Iterator over the batches on the devices; its position is saved.
    plan: Shapes, shardings and makers of the state.
    step: The compiled update: (state, totals, batch) -> state, totals.
    programs: Programs of the update for all shapes of batches.
    zero_totals: Function that returns totals of no update.
    gathered: Function that replicates parameters over the mesh.
    last_rate: Function from the optimizer's state to the rate of its update.
    validator: Validation; None without a validation text.
    checkpoints: Checkpoints of the run.
    compilations: Counts of compiled programs.
    heartbeat: Heartbeat of this process.
  """

  config: ExperimentConfig
  workdir: Path
  mesh: Mesh
  model: Transformer
  batches: TrainingBatches
  iterator: grain.DatasetIterator
  plan: StatePlan
  step: jax.stages.Wrapped
  programs: StepPrograms
  zero_totals: Callable[[], Totals]
  gathered: Callable[[Parameters], Parameters]
  last_rate: Callable[[Any], jax.Array]
  validator: Validator | None
  checkpoints: Checkpoints
  compilations: Compilations
  heartbeat: Heartbeat


class PlannedParts(NamedTuple):
  """The parts that are made, and refused, before anything is written."""

  model: Transformer
  optimizer: optax.GradientTransformation
  plan: StatePlan
  batches: TrainingBatches
  validator: Validator | None


def plan_parts(
  config: ExperimentConfig, workdir: Path, corpus: PreparedCorpus, mesh: Mesh
) -> PlannedParts:
  """Make the parts of a training that do not open its run directory."""
  source, target = corpus.source_tokenizer, corpus.target_tokenizer
  model = make_model(config, source, target)
  rates = fusion_rates(model, config.optimizer)
  optimizer = make_optimizer(*_recipe(config), config.training.freeze, rates)
  plan = plan_state(model, optimizer, config, mesh)
  batches = make_batches(config, corpus, mesh)
  validator = None
  if corpus.has_split('valid'):
    validator = Validator(config, model, corpus, mesh, workdir)
  return PlannedParts(model, optimizer, plan, batches, validator)


def _recipe(config: ExperimentConfig) -> tuple[OptimizerConfig, int, int]:
  return config.optimizer, config.model.width, config.training.steps


def open_parts(
  planned: PlannedParts,
  config: ExperimentConfig,
  workdir: Path,
  corpus: PreparedCorpus,
  mesh: Mesh,
  heartbeat: Heartbeat,
  opened: contextlib.ExitStack,
) -> Parts:
  """Make the other parts of a training."""
  model, optimizer, plan, batches, validator = planned
  tokenizers = corpus.source_tokenizer, corpus.target_tokenizer
  on_mesh = functools.partial(jax.jit, out_shardings=replicated(mesh))
  layers = config.model.encoder_layers
  checkpoints = Checkpoints(
    workdir, config.training, identity_of(config, *tokenizers)
  )
  opened.callback(checkpoints.close)
  iterator = training_iterator(batches, by_rows(mesh))
  opened.callback(iterator.close)
  compilations = Compilations()
  opened.callback(compilations.close)
  step = make_train_step(model, optimizer, config, mesh, plan.specs)
  no_totals = on_mesh(functools.partial(zero_totals, layers))
  compile_update = functools.partial(
    _compile_update, step, plan, no_totals, config.data.batch.packing, mesh
  )
  programs = StepPrograms(compile_update, len(batches.plan.shapes))
  opened.callback(programs.close)
  parts = Parts(
    config=config,
    workdir=workdir,
    mesh=mesh,
    model=model,
    batches=batches,
    iterator=iterator,
    plan=plan,
    step=step,
    programs=programs,
    zero_totals=no_totals,
    gathered=on_mesh(lambda parameters: parameters),
    last_rate=on_mesh(functools.partial(last_rate, *_recipe(config))),
    validator=validator,
    checkpoints=checkpoints,
    compilations=compilations,
    heartbeat=heartbeat,
  )
  _log_model(parts)
  return parts


def _compile_update(
  step: jax.stages.Wrapped,
  plan: StatePlan,
  no_totals: Callable[[], Totals],
  packing: bool,
  mesh: Mesh,
  shape: Shape,
) -> None:
  """Compile the update as the loop will ask for it; run nothing."""
  batch = abstract_batch(shape, packing, by_rows(mesh))
  totals = abstract_like(jax.eval_shape(no_totals), replicated(mesh))
  with jax.set_mesh(mesh):
    step.lower(plan.abstract, totals, batch).compile()


def _log_model(parts: Parts) -> None:
  model, mesh = parts.model, parts.mesh
  leaves = jax.tree.leaves(parts.plan.abstract.parameters)
  logger.info(
    '%s parameters, vocabularies %d and %d, %d %s device(s): %s',
    f'{sum(x.size for x in leaves):,}',
    model.source_vocabulary,
    model.target_vocabulary,
    mesh.size,
    jax.devices()[0].platform,
    ' x '.join(f'{axis} {size}' for axis, size in mesh.shape.items()),
  )
