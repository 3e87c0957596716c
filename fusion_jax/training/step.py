"""The training step: a pure function of state and batch.

It is compiled once for each batch shape and donates what it replaces. Its
dropout depends on (seed, step) alone, so that a resumed run draws the same.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int, Key

from fusion_jax.config import ExperimentConfig, TrainingConfig
from fusion_jax.data.batching import Batch
from fusion_jax.fusion.diversity import layer_diversity
from fusion_jax.models.losses import LossSums, cross_entropy, zero_sums
from fusion_jax.models.parameter_kinds import bfloat16_copies
from fusion_jax.models.transformer import ModelOutput, Parameters, Transformer
from fusion_jax.parallel.mesh import replicated, shardings
from fusion_jax.parallel.shards import on_each_shard
from fusion_jax.runs.state import TrainState
from fusion_jax.training.gradients import summed_gradients
from fusion_jax.training.update import Applied, apply_update, where


class Totals(NamedTuple):
  """Sums since they were last read, kept on the device.

  A step whose loss or gradient is not finite is counted but not summed.

  Attributes:
    sums: Sums of the losses.
    diversity: Sum over the steps of the layer-diversity reward, float32.
    gradient_norm: Sum over the steps of the global norm, before clipping.
    encoder_gradient_norms: The same sum for each encoder layer, [L].
    steps: Number of steps summed, int32.
    skipped: Number of steps not summed, int32.
    first_bad_step: First step not summed, int32; 0: none.
    in_a_row: Number of the most recent steps in a row that were not summed,
      int32; it also counts steps before the sums were last read.
    longest: Largest value of `in_a_row`, int32.
  """

  sums: LossSums
  diversity: Float[Array, '']
  gradient_norm: Float[Array, '']
  encoder_gradient_norms: Float[Array, ' L']
  steps: Int[Array, '']
  skipped: Int[Array, '']
  first_bad_step: Int[Array, '']
  in_a_row: Int[Array, '']
  longest: Int[Array, '']


def zero_totals(encoder_layers: int) -> Totals:
  """Return totals of no steps; each leaf is its own array, to be donated."""
  return Totals(
    zero_sums(),
    diversity=jnp.zeros((), jnp.float32),
    gradient_norm=jnp.zeros((), jnp.float32),
    encoder_gradient_norms=jnp.zeros((encoder_layers,), jnp.float32),
    steps=jnp.zeros((), jnp.int32),
    skipped=jnp.zeros((), jnp.int32),
    first_bad_step=jnp.zeros((), jnp.int32),
    in_a_row=jnp.zeros((), jnp.int32),
    longest=jnp.zeros((), jnp.int32),
  )


def batch_loss(
  model: Transformer,
  parameters: Parameters,
  batch: Batch,
  label_smoothing: float,
  chunk_tokens: int,
  dropout_key: Key[Array, ''] | None = None,
) -> tuple[LossSums, ModelOutput]:
  """Return the loss sums of one batch; a key turns dropout on."""
  output: ModelOutput
  output, _ = model.apply(
    {'params': parameters},
    batch.source,
    batch.source_lengths,
    batch.target,
    dropout_key is None,
    rngs=None if dropout_key is None else {'dropout': dropout_key},
    source_segments=batch.source_segments,
    target_segments=batch.target_segments,
    mutable=[],
  )
  sums = cross_entropy(
    output.features,
    output.output,
    jnp.asarray(batch.target),
    jnp.asarray(batch.target_lengths),
    label_smoothing,
    chunk_tokens,
    output.log_weights,
    model.config.decoder.combine,
  )
  return sums, output


class BatchCounts(NamedTuple):
  """Token counts of a batch over all devices and microbatches, int32."""

  source: Int[Array, '']
  target: Int[Array, '']


def count_tokens(batch: Batch) -> BatchCounts:
  """Count the tokens of both sides."""
  return BatchCounts(batch.source_lengths.sum(), batch.target_lengths.sum())


class Whole(NamedTuple):
  """Values of the whole batch that the loss of some of its rows needs.

  Attributes:
    counts: Token counts of the batch.
    diversity: Weight of the diversity reward at this update, float32.
  """

  counts: BatchCounts
  diversity: Float[Array, '']


def diversity_weight(
  config: TrainingConfig, step: Int[Array, '']
) -> Float[Array, '']:
  """Return the weight of the diversity reward after `step` updates."""
  risen = jnp.float32(step - config.diversity_start + 1)
  share = risen / max(config.diversity_rise, 1)
  return config.diversity * jnp.clip(share, 0, 1)


def batch_diversity(
  output: ModelOutput,
  batch: Batch,
  config: TrainingConfig,
  counts: BatchCounts,
) -> Float[Array, '']:
  """Return the layer diversity of both stacks; Dou et al. (2018), Eq. 9-10."""
  each = (
    layer_diversity(
      layers[1:],
      jnp.arange(size) < lengths[:, None],
      jnp.maximum(count, 1),
      config.diversity_reward,
    )
    for layers, size, lengths, count in (
      (
        output.encoder_layers,
        batch.source.shape[1],
        batch.source_lengths,
        counts.source,
      ),
      (
        output.decoder_layers,
        batch.target.shape[1],
        batch.target_lengths,
        counts.target,
      ),
    )
  )
  total = functools.reduce(jnp.add, each)
  return total if config.diversity_sides == 'sum' else total / 2


def make_train_step(
  model: Transformer,
  optimizer: optax.GradientTransformationExtraArgs,
  config: ExperimentConfig,
  mesh: Mesh | None = None,
  specs: TrainState | None = None,
) -> jax.stages.Wrapped:
  """Return the jitted update.

  The gradient is that of the mean loss per target token of the whole batch. It
  does not depend on the padding, the devices or the number of microbatches. If
  it is not finite, the step changes nothing but the step number.
  """
  training = config.training

  def loss(parameters, batch, key, whole):
    if training.cast_weights == 'once':
      parameters = bfloat16_copies(parameters)
    sums, output = batch_loss(
      model,
      parameters,
      batch,
      training.label_smoothing,
      training.loss_chunk,
      key,
    )
    if not training.diversity:
      return sums.loss, (sums, jnp.zeros((), jnp.float32))
    reward = batch_diversity(output, batch, training, whole.counts)
    weighted = whole.diversity * whole.counts.target * reward
    return sums.loss - weighted, (sums, reward)

  def train_step(state, totals, batch):
    key = jax.random.fold_in(jax.random.key(training.seed), state.step)
    gradients, (sums, reward) = summed_gradients(
      loss,
      state.parameters,
      batch,
      key,
      Whole(count_tokens(batch), diversity_weight(training, state.step)),
      config.optimizer.accumulation,
      specs and specs.parameters,
    )
    new, applied = apply_update(state, gradients, sums, optimizer, training)
    return new, _counted(totals, sums, reward, applied, new.step)

  placed = mesh and (shardings(specs, mesh), replicated(mesh))
  return jax.jit(train_step, donate_argnums=(0, 1), out_shardings=placed)


def _counted(
  totals: Totals,
  sums: LossSums,
  reward: Float[Array, ''],
  applied: Applied,
  step: Int[Array, ''],
) -> Totals:
  """Return the totals after one more step, summed or skipped."""
  bad = ~applied.finite
  first, in_a_row = totals.first_bad_step, (totals.in_a_row + 1) * bad
  summed = _added(totals, sums, reward, applied)
  return where(applied.finite, summed, totals)._replace(
    skipped=totals.skipped + bad,
    first_bad_step=jnp.where((first == 0) & bad, step, first),
    in_a_row=in_a_row,
    longest=jnp.maximum(totals.longest, in_a_row),
  )


def _added(
  totals: Totals,
  sums: LossSums,
  reward: Float[Array, ''],
  applied: Applied,
) -> Totals:
  layers = layer_norms(applied.gradients['encoder'])
  return totals._replace(
    sums=jax.tree.map(jnp.add, totals.sums, sums),
    diversity=totals.diversity + reward,
    gradient_norm=totals.gradient_norm + applied.norm,
    encoder_gradient_norms=totals.encoder_gradient_norms + layers,
    steps=totals.steps + 1,
  )


def layer_norms(gradients: Parameters) -> Float[Array, ' L']:
  """Return the norm of each layer's gradient; Yang et al., Fig. 11."""
  if 'layers' in gradients:
    return jax.vmap(optax.tree.norm)(gradients['layers'])
  count = sum(name.startswith('layer_') for name in gradients)
  norms = [
    optax.tree.norm(gradients[f'layer_{index}']) for index in range(count)
  ]
  return jnp.stack(norms)


def make_eval_step(
  model: Transformer, chunk_tokens: int
) -> Callable[[Parameters, LossSums, Batch], LossSums]:
  """Return the jitted validation step, which adds a batch without smoothing."""

  def own_sums(parameters, batch):
    return batch_loss(model, parameters, batch, 0.0, chunk_tokens)[0]

  def eval_step(parameters, sums, batch):
    new = on_each_shard(own_sums)(parameters, batch)
    return jax.tree.map(jnp.add, sums, new)

  return jax.jit(eval_step, donate_argnums=1)
