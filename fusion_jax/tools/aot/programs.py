"""The training step and the search of a config, traced for given devices.

They are the programs that train.py and decode.py run, with the shapes of the
arguments in the place of arrays.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from fusion_jax.config import DecodingConfig, ExperimentConfig
from fusion_jax.data.batching import Shape
from fusion_jax.data.mixing import training_mixture
from fusion_jax.data.pipeline import abstract_batch, training_shapes
from fusion_jax.data.prepared import PreparedCorpus
from fusion_jax.decoding.compiled import (
  SearchRows,
  SearchSettings,
  search_batch,
)
from fusion_jax.decoding.model_step import Source
from fusion_jax.decoding.shapes import decode_shapes
from fusion_jax.errors import require
from fusion_jax.models.transformer import Transformer, initial_parameters
from fusion_jax.parallel.mesh import by_rows, data_mesh, make_mesh, replicated
from fusion_jax.runs.checkpoint import abstract_like
from fusion_jax.search.constraints import TokenRules
from fusion_jax.search.hypotheses import LengthPenalty
from fusion_jax.training.checks import check_rows
from fusion_jax.training.fusion_rate import fusion_rates
from fusion_jax.training.initial_state import plan_state
from fusion_jax.training.optimizer import make_optimizer
from fusion_jax.training.step import make_train_step, zero_totals

# Which ids start and end a line changes no program.
_START, _END = 1, 2


@dataclasses.dataclass(frozen=True)
class Request:
  """What is asked for beside the config.

  Attributes:
    step: 'train' or 'decode'.
    source_length, target_length: positions of a batch; None: the most that
      the config allows, or as many as the other side.
    prepared: a prepared folder whose shapes and vocabularies are taken.
  """

  step: Literal['train', 'decode'] = 'train'
  source_length: int | None = None
  target_length: int | None = None
  prepared: str = ''


@dataclasses.dataclass(frozen=True)
class Problem:
  """What a program depends on beside the config.

  Attributes:
    vocabularies: pieces of source and target.
    shape: of a batch.
  """

  vocabularies: tuple[int, int]
  shape: Shape


@dataclasses.dataclass(frozen=True)
class Program:
  """A program that is ready to be compiled.

  Attributes:
    traced: by JAX.
    mesh: that it is for.
    shape: of its batch.
    weights: the shapes of the model's parameters, and how they are cut.
    trips: how often a loop runs whose count is not known: the most steps of
      a search.
  """

  traced: jax.stages.Traced
  mesh: Mesh
  shape: Shape
  weights: Any
  trips: int = 1

  @property
  def parameters(self) -> int:
    """How many numbers the model has."""
    return sum(math.prod(x.shape) for x in jax.tree.leaves(self.weights))


def program_for(
  config: ExperimentConfig, request: Request, devices: Sequence[Any]
) -> Program:
  """The program that is asked for.

  Args:
    config: of the experiment.
    request: which program, and its sizes.
    devices: that it is for.

  Returns:
    The program, traced.

  Raises:
    InputError: the mesh does not fit the devices, or the rows the mesh, or
      the lengths the config.
  """
  if request.step == 'decode':
    problem = decoding_problem(config, request)
    return decoding_program(config, problem, devices)
  return training_program(config, training_problem(config, request), devices)


def training_problem(config: ExperimentConfig, request: Request) -> Problem:
  """The largest batch of a training run.

  Args:
    config: gives slots and granularity of the batches, and where nothing else
      does their lengths, data.filter.max_length, and the vocabularies.
    request: lengths or a prepared folder. Of its shapes the longest is taken.

  Returns:
    The vocabularies and the shape.

  Raises:
    InputError: it is no prepared folder.
  """
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
  config: ExperimentConfig, request: Request
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
  """The training step.

  Args:
    config: of the experiment.
    problem: of `training_problem`.
    devices: that it is for.

  Returns:
    The program, on the mesh of the config.

  Raises:
    InputError: the mesh does not fit the devices, or the rows the mesh.
  """
  mesh = make_mesh(config.parallel, devices)
  check_rows(config, mesh)
  model = _model(config, problem)
  training = config.training
  recipe = config.optimizer, config.model.width, training.steps
  rates = fusion_rates(model, config.optimizer)
  optimizer = make_optimizer(*recipe, training.freeze, rates)
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


def decoding_problem(config: ExperimentConfig, request: Request) -> Problem:
  """The full batch of the search that has the most target positions.

  Args:
    config: gives the options of decoding.
    request: with a source length, the shape that holds such lines is taken.

  Returns:
    The vocabularies and the shape.

  Raises:
    InputError: no shape is so long.
  """
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
    shapes = [x for x in shapes if x.source == source]
  largest = max(shapes, key=lambda x: (x.rows * x.target, x.target))
  return Problem(_vocabularies(config, request), Shape(*largest))


def decoding_program(
  config: ExperimentConfig, problem: Problem, devices: Sequence[Any]
) -> Program:
  """The beam search of all processes, each device its rows.

  Args:
    config: of the experiment.
    problem: of `decoding_problem`; the rows of each process.
    devices: that it is for.

  Returns:
    The program; its parameters are whole on each device.

  Raises:
    InputError: the config samples.
  """
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
  own, source, target = problem.shape
  processes = len({device.process_index for device in devices})
  devices_each = mesh.size // processes
  # As `placed` fills the devices of a process up.
  rows = math.ceil(own / devices_each) * mesh.size
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
  """As `compiled.search_settings`, without a tokenizer."""
  return SearchSettings(
    beam=options.beam_size,
    keep=1,
    end_id=_END,
    penalty=LengthPenalty(options.length_penalty, options.alpha),
    coverage=options.coverage,
    patience=options.patience,
    rules=TokenRules((), options.no_repeat_ngram),
    narrows=True,
  )


def _model(config: ExperimentConfig, problem: Problem) -> Transformer:
  return Transformer(config.model, *problem.vocabularies, _START)


def _ids(shape: tuple[int, ...], place: NamedSharding) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct(shape, jnp.int32, sharding=place)
