"""Short trainings inside one process: what they cost is next to nothing."""

import dataclasses
import math
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fusion_jax.config import ExperimentConfig
from fusion_jax.data.batching import Batch, choose_shapes
from fusion_jax.data.pipeline import evaluation_batches, training_iterator
from fusion_jax.data.prepared import PreparedCorpus
from fusion_jax.models.losses import zero_sums
from fusion_jax.models.transformer import Parameters, Transformer
from fusion_jax.parallel.mesh import by_rows, make_mesh
from fusion_jax.runs.loading import make_model
from fusion_jax.training.build import make_batches
from fusion_jax.training.optimizer import optimizer_for
from fusion_jax.training.state import initial_state
from fusion_jax.training.step import (
  Totals,
  make_eval_step,
  make_train_step,
  zero_totals,
)
from fusion_jax.training.telemetry import make_telemetry_step, telemetry_values
from fusion_jax.training.warm_start import merged_parameters

# Validation needs no more shapes than these.
_SHAPES = 2


class Trained(NamedTuple):
  """What a short training gives.

  parameters: at the end.
  start, end: validation NLL before and after it, nats per token.
  telemetry: of the fusions at the end.
  gradient: mean global norm of the gradient over the training.
  encoder: mean norm of the encoder layers' gradients, by layer, summed in
    squares.
  skipped: updates left out because something was not finite.
  seconds: compilation included.
  """

  parameters: Parameters
  start: float
  end: float
  telemetry: dict[str, float]
  gradient: float
  encoder: float
  skipped: int
  seconds: float

  @property
  def measured(self) -> dict[str, Any]:
    """The numbers, without the parameters."""
    return {k: v for k, v in self._asdict().items() if k != 'parameters'}


def train(
  config: ExperimentConfig,
  corpus: PreparedCorpus,
  trained: Parameters | None = None,
) -> Trained:
  """Train for `training.steps` updates and validate before and after."""
  begin = time.monotonic()
  model = make_model(config, corpus.source_tokenizer, corpus.target_tokenizer)
  optimizer = optimizer_for(config, model)
  mesh = make_mesh(
    dataclasses.replace(config.parallel, data=1), jax.devices()[:1]
  )
  with jax.set_mesh(mesh):
    state = jax.jit(initial_state, static_argnums=(0, 1, 2))(
      model, optimizer, config.training.seed
    )
    if trained is not None:
      merged = merged_parameters(state.parameters, trained, model)
      state = state.started_at(jax.tree.map(jnp.array, merged))
    validate = _Validation(config, corpus, model)
    start = validate.nll(state.parameters)
    step = make_train_step(model, optimizer, config)
    totals = zero_totals(config.model.encoder_layers)
    batches = make_batches(config, corpus, mesh)
    iterator = training_iterator(batches, by_rows(mesh))
    for _ in range(config.training.steps):
      state, totals = step(state, totals, next(iterator))
    iterator.close()
    parameters = state.parameters
    end = validate.nll(parameters)
    telemetry = validate.telemetry(parameters)
  seconds = time.monotonic() - begin
  return Trained(
    parameters, start, end, telemetry, *_gradients(totals), seconds
  )


def _gradients(totals: Totals) -> tuple[float, float, int]:
  steps = max(int(totals.steps), 1)
  layers = np.asarray(totals.encoder_gradient_norms, np.float64) / steps
  whole = float(totals.gradient_norm) / steps
  return whole, float(np.sqrt(np.square(layers).sum())), int(totals.skipped)


class _Validation:
  """The validation split, in batches of few shapes."""

  def __init__(
    self, config: ExperimentConfig, corpus: PreparedCorpus, model: Transformer
  ):
    self._split = corpus.split('valid')
    batch = dataclasses.replace(config.data.batch, shapes=_SHAPES)
    self._shapes = choose_shapes(
      self._split.lengths, batch, 1, config.data.filter.max_length
    )
    self._step = make_eval_step(model, config.training.loss_chunk)
    self._telemetry = make_telemetry_step(model)

  def _batches(self) -> Iterator[Batch]:
    for batch in evaluation_batches(self._split, self._shapes):
      yield jax.tree.map(jnp.asarray, batch)

  def nll(self, parameters: Parameters) -> float:
    """Return the negative log-likelihood, nats per token; inf if not finite."""
    sums = jax.tree.map(lambda x: jnp.stack([x]), zero_sums())
    for batch in self._batches():
      sums = self._step(parameters, sums, batch)
    value = float(sums.negative_log_likelihood[0] / sums.tokens[0])
    return value if math.isfinite(value) else math.inf

  def telemetry(self, parameters: Parameters) -> dict[str, float]:
    """Return what the fusions recorded on the first batch."""
    first = next(self._batches())
    return telemetry_values(self._telemetry(parameters, first))
