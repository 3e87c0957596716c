"""What XLA plans for a training step and for its loss; nothing is run."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
from jaxtyping import Array, Float

from benchmarks.common import table
from benchmarks.fusion_jax_step import experiment, make_model, random_batches
from benchmarks.schemes import POST_NORM
from benchmarks.sizes import Size
from fusion_jax.config import ExperimentConfig
from fusion_jax.config.fusion import GtransOptions
from fusion_jax.config.presets import Row, both_sides, changed
from fusion_jax.data.batching import Batch
from fusion_jax.models.losses import cross_entropy
from fusion_jax.models.transformer import OutputLayer
from fusion_jax.parallel.mesh import data_mesh
from fusion_jax.training.initial_state import initial_state
from fusion_jax.training.optimizer import make_optimizer
from fusion_jax.training.step import batch_loss, make_train_step, zero_totals

# Decoder features, output layer and log weights of groups.
_Learned = tuple[
  Float[Array, '*G B T D'], OutputLayer, Float[Array, ' G'] | None
]


def planned(size: Size, row: Row) -> dict[str, dict[str, float]]:
  """MB of a training step, and of the loss with its gradients alone.

  Args:
    size: the problem.
    row: what the model changes in it.

  Returns:
    For each 'temporary', and 'peak' with arguments and results.
  """
  config = changed(experiment(size), row)
  model = make_model(size, config)
  optimizer = make_optimizer(config.optimizer, size.width)
  state, totals, batch = jax.eval_shape(
    lambda: (
      initial_state(model, optimizer, 0),
      zero_totals(config.model.encoder_layers),
      next(random_batches(size)),
    )
  )
  output = jax.eval_shape(
    lambda p, b: batch_loss(model, p, b, 0.0, 0)[1], state.parameters, batch
  )
  learned = output.features, output.output, output.log_weights
  with jax.set_mesh(data_mesh()):
    step = make_train_step(model, optimizer, config)
    return {
      'training step': _planned(step, state, totals, batch),
      'loss': _planned(jax.jit(_gradient(config)), learned, batch),
    }


def plan(size: Size) -> dict[str, Any]:
  """The baseline and GTRANS with a group for each decoder layer."""
  groups = both_sides('gtrans', gtrans=GtransOptions(group_size=1))
  return {
    'size': dataclasses.asdict(size),
    'baseline': planned(size, POST_NORM),
    'gtrans': planned(size, POST_NORM | groups),
  }


def report(results: dict[str, Any]) -> str:
  """The table, and what there is to say about it."""
  baseline, gtrans = results['baseline'], results['gtrans']
  rows = [
    (
      f'{part}, {kind}',
      f'{own:,.0f}',
      f'{gtrans[part][kind]:,.0f}',
      f'{gtrans[part][kind] / own:.2f}',
    )
    for part, kinds in baseline.items()
    for kind, own in kinds.items()
  ]
  size = results['size']
  return '\n'.join(
    [
      f'{size["rows"]} sentences of {size["length"]}+{size["length"]}, '
      f'vocabulary {size["vocabulary"]:,}, {size["layers"]} groups',
      table(('MB', 'baseline', 'GTRANS', 'ratio'), rows),
    ]
  )


def _gradient(config: ExperimentConfig) -> Callable[..., Any]:
  """Of the loss by features, output layer and log weights of groups."""

  def loss(learned: _Learned, batch: Batch) -> Float[Array, '']:
    features, output, log_weights = learned
    return cross_entropy(
      features,
      output,
      batch.target,
      batch.target_lengths,
      config.training.label_smoothing,
      config.training.loss_chunk,
      log_weights,
      config.model.decoder.gtrans.combine,
    ).loss

  return jax.grad(loss)


def _planned(function: Any, *arguments: Any) -> dict[str, float]:
  memory = function.lower(*arguments).compile().memory_analysis()
  temporary = memory.temp_size_in_bytes
  kept = memory.argument_size_in_bytes + memory.output_size_in_bytes
  peak = temporary + kept - memory.alias_size_in_bytes
  return {'temporary': temporary / 2**20, 'peak': peak / 2**20}
