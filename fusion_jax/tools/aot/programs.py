"""The training step and the search of a config, traced for given devices."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from fusion_jax.config import DecodingConfig, ExperimentConfig
from fusion_jax.data.batching import Shape
from fusion_jax.data.mixing import training_mixture
from fusion_jax.data.pipeline import abstract_batch, training_shapes
from fusion_jax.data.prepared import PreparedCorpus
from fusion_jax.decoding.batches import decode_shapes
from fusion_jax.decoding.model_step import (
  SearchRows,
  SearchSettings,
  Source,
  search_batch,
)
from fusion_jax.errors import require
from fusion_jax.models.transformer import Transformer, initial_parameters
from fusion_jax.parallel.mesh import by_rows, data_mesh, make_mesh, replicated
from fusion_jax.runs.checkpoint import abstract_like
from fusion_jax.search.constraints import TokenRules
from fusion_jax.search.hypotheses import LengthPenalty
from fusion_jax.training.build import check_experiment, plan_state
from fusion_jax.training.optimizer import optimizer_for
from fusion_jax.training.step import make_train_step, zero_totals

# The ids that start and end a line do not change the programs.
_START, _END = 1, 2


@dataclasses.dataclass(frozen=True)
class ProgramRequest:
  """Request for a program, in addition to the config.

  Attributes:
    source_length, target_length: Positions of a batch; None for those of the
      other side, if they are given, or else the most that the config allows.
    prepared: Prepared folder that gives shapes and vocabularies; '' for none.
  """

  step: Literal['train', 'decode'] = 'train'
  source_length: int | None = None
  target_length: int | None = None
  prepared: str = ''


class Problem(NamedTuple):
  """Vocabulary sizes of source and target, and shape of a batch."""

  vocabularies: tuple[int, int]
  shape: Shape


@dataclasses.dataclass(frozen=True)
class Program:
  """A program that is ready to be compiled.

  Attributes:
    weights: Shapes of the model's parameters, and their sharding.
    trips: Number of iterations of a loop whose count is unknown: the most steps
      of a search.
  """

  traced: jax.stages.Traced
  mesh: Mesh
  shape: Shape
  weights: Any
  trips: int = 1

  @property
  def parameters(self) -> int:
    """The number of the model's parameters."""
    return sum(math.prod(x.shape) for x in jax.tree.leaves(self.weights))


def program_for(
  config: ExperimentConfig, request: ProgramRequest, devices: Sequence[Any]
) -> Program:
  """Trace the requested program."""
  if request.step == 'decode':
    problem = decoding_problem(config, request)
    return decoding_program(config, problem, devices)
  return training_program(config, training_problem(config, request), devices)


def training_problem(
  config: ExperimentConfig, request: ProgramRequest
) -> Problem:
  """Return vocabularies and shape of the largest batch of a training run."""
  data, longest = config.data, config.data.filter.max_length
  source, target = request.source_length, request.target_length
  given = source is not None or target is not None
  known = np.array([[longest, longest]], np.int32)
  if given:
    known = np.array([[source or target, target or source]], np.int32)
  elif request.prepared:
    split = PreparedCorpus(request.prepared).split('train')
    known = training_mixture(
      data, split.directions, split.lengths, config.training.seed
    ).lengths
  limit = None if given else longest
  parts = config.optimizer.accumulation
  shape = training_shapes(known, data.batch, parts, limit)[-1]
  return Problem(_vocabularies(config, request), shape)


def _vocabularies(
  config: ExperimentConfig, request: ProgramRequest
) -> tuple[int, int]:
  if not request.prepared:
    size = config.data.tokenizer.vocabulary_size
    return size, size
  corpus = PreparedCorpus(request.prepared)
  return (
    corpus.source_tokenizer.vocabulary.size,
    corpus.target_tokenizer.vocabulary.size,
  )


def training_program(
  config: ExperimentConfig, problem: Problem, devices: Sequence[Any]
) -> Program:
  """Trace the training step on the mesh of the config."""
  check_experiment(config, devices)
  mesh = make_mesh(config.parallel, devices)
  model = _model(config, problem)
  optimizer = optimizer_for(config, model)
  plan = plan_state(model, optimizer, config, mesh)
  totals = abstract_like(
    jax.eval_shape(lambda: zero_totals(config.model.encoder_layers)),
    replicated(mesh),
  )
  packing = config.data.batch.packing
  batch = abstract_batch(problem.shape, packing, by_rows(mesh))
  with jax.set_mesh(mesh):
    step = make_train_step(model, optimizer, config, mesh, plan.specs)
    traced = step.trace(plan.abstract, totals, batch)
  return Program(traced, mesh, problem.shape, plan.abstract.parameters)


def decoding_problem(
  config: ExperimentConfig, request: ProgramRequest
) -> Problem:
  """Return vocabularies and shape of the search with most target positions."""
  model, options = config.model, config.decoding
  limit = model.max_positions if model.positions == 'learned' else None
  shapes = decode_shapes(options, limit)
  source_length = request.source_length
  if source_length is not None:
    require(
      source_length <= options.max_source_length,
      'decoding.max_source_length',
      f'must be at least --source_length={source_length}, '
      f'got {options.max_source_length}',
    )
    source = min(x.source for x in shapes if x.source >= source_length)
    shapes = tuple(x for x in shapes if x.source == source)
  largest = max(shapes, key=lambda x: (x.rows * x.target, x.target))
  return Problem(_vocabularies(config, request), Shape(*largest))


def decoding_program(
  config: ExperimentConfig, problem: Problem, devices: Sequence[Any]
) -> Program:
  """Trace the beam search of all processes, where each device has its rows."""
  options = config.decoding
  require(
    options.search == 'beam',
    'decoding.search',
    "must be 'beam': sampling is not compiled ahead of time",
  )
  mesh = data_mesh(devices)
  model = _model(config, problem)
  parameters = abstract_like(
    jax.eval_shape(lambda: initial_parameters(model, 0)), replicated(mesh)
  )
  process_rows, source, target = problem.shape
  processes = len({device.process_index for device in devices})
  # Rows are added as `placed` fills up the devices of a process.
  rows = math.ceil(process_rows / (mesh.size // processes)) * mesh.size
  numbers = _ids((rows,), by_rows(mesh))
  batch = SearchRows(
    (Source(_ids((rows, source), by_rows(mesh)), numbers),), numbers, numbers
  )
  with jax.set_mesh(mesh):
    traced = search_batch.trace(
      (parameters,),
      batch,
      models=(model,),
      settings=_settings(options),
      max_length=target,
    )
  shape = Shape(rows, source, target)
  return Program(traced, mesh, shape, parameters, target)


def _settings(options: DecodingConfig) -> SearchSettings:
  """Return settings as `search_settings` does, without tokenizer."""
  return SearchSettings(
    beam=options.beam_size,
    keep=1,
    end_id=_END,
    penalty=LengthPenalty(options.length_penalty, options.alpha),
    coverage=options.coverage,
    patience=options.patience,
    rules=TokenRules((), options.no_repeat_ngram),
    compacts=True,
  )


def _model(config: ExperimentConfig, problem: Problem) -> Transformer:
  return Transformer(config.model, *problem.vocabularies, _START)


def _ids(shape: tuple[int, ...], place: NamedSharding) -> Any:
  """Return a `jax.ShapeDtypeStruct` in the place of an array of ids."""
  return jax.ShapeDtypeStruct(shape, jnp.int32, sharding=place)
