"""The training step: a pure function of state and batch.

It is jitted once a batch shape, donates what it replaces, and draws its
dropout from (seed, step), so that a resumed run draws the same.
"""

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

  A step whose loss or gradient is not finite is counted and not summed.

  sums: of the losses.
  diversity: sum over the steps of the layer-diversity reward, float32.
  gradient_norm: sum over the steps of the global norm, before clipping.
  encoder_gradient_norms: the same for each encoder layer, [L].
  steps: int32 steps summed.
  skipped: int32 steps not summed.
  first_bad_step: int32, the first of them; 0: none.
  in_a_row: int32, how many of them are the last steps until now; not only
    those since the sums were read.
  longest: int32, the largest `in_a_row` there was.
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
  """Totals of no steps; every leaf an array of its own, to be donated."""
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
  """Loss sums of one batch; with dropout when a key is given."""
  output = model.apply(
    {'params': parameters},
    batch.source,
    batch.source_lengths,
    batch.target,
    dropout_key is None,
    rngs=None if dropout_key is None else {'dropout': dropout_key},
    source_segments=batch.source_segments,
    target_segments=batch.target_segments,
  )
  sums = cross_entropy(
    output.features,
    output.output,
    batch.target,
    batch.target_lengths,
    label_smoothing,
    chunk_tokens,
    output.log_weights,
    model.config.decoder.gtrans.combine,
  )
  return sums, output


class BatchCounts(NamedTuple):
  """int32 tokens of a whole batch, on all devices and in all parts."""

  source: Int[Array, '']
  target: Int[Array, '']


def count_tokens(batch: Batch) -> BatchCounts:
  """The tokens of both sides."""
  return BatchCounts(batch.source_lengths.sum(), batch.target_lengths.sum())


class Whole(NamedTuple):
  """What the loss of some rows of a batch has to know of the whole.

  counts: tokens of the batch.
  diversity: float32, weight of the diversity reward at this update.
  """

  counts: BatchCounts
  diversity: Float[Array, '']


def diversity_weight(
  config: TrainingConfig, step: Int[Array, '']
) -> Float[Array, '']:
  """Return the weight of the diversity reward after `step` updates.

  Args:
    config: diversity, diversity_start, diversity_rise.
    step: int32, finished updates.

  Returns:
    float32: 0 before the start, then linear to `diversity` over the rise.
  """
  risen = jnp.float32(step - config.diversity_start + 1)
  share = risen / max(config.diversity_rise, 1)
  return config.diversity * jnp.clip(share, 0, 1)


def batch_diversity(
  output: ModelOutput,
  batch: Batch,
  config: TrainingConfig,
  counts: BatchCounts,
) -> Float[Array, '']:
  """The layer diversity of both stacks; Dou et al. (2018), Eq. 9-10.

  Args:
    output: of the model.
    batch: some rows of a batch; gives the lengths.
    config: the reward of a pair of layers, and the sum or mean of two sides.
    counts: of the whole batch. What the parts of a batch give adds up to the
      diversity of the batch.

  Returns:
    float32, in [0, 2] or [0, 1] for the paper's reward.
  """
  total = sum(
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
  return total if config.diversity_sides == 'sum' else total / 2


def make_train_step(
  model: Transformer,
  optimizer: optax.GradientTransformationExtraArgs,
  config: ExperimentConfig,
  mesh: Mesh | None = None,
  specs: TrainState | None = None,
) -> Callable[[TrainState, Totals, Batch], tuple[TrainState, Totals]]:
  """The jitted update.

  The gradient is that of the mean loss per target token of the whole batch,
  whatever the padding, the devices and the parts it is accumulated over. If
  it is not finite the step changes nothing but its number.

  Args:
    model: the Transformer.
    optimizer: of `make_optimizer`.
    config: seed, label smoothing, chunk of the loss, accumulation, average,
      what is frozen.
    mesh: that the step runs on; it must be the present one. None: one device.
    specs: of `plan_state` for that mesh; None without one.

  Returns:
    A function (state, totals, batch) -> (state, totals) that donates its
    first two arguments.
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
  """The totals after one more step, summed or skipped."""
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
  """The norm of each layer's gradient in one stack; Yang et al., Fig. 11."""
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
  """The jitted validation step: adds the sums of a batch, unsmoothed.

  Args:
    model: the Transformer.
    chunk_tokens: as in `batch_loss`.

  Returns:
    A function (parameters, sums, batch) -> sums that donates the sums. They
    have one element for each shard of the rows, so that nothing is exchanged.
  """

  def own_sums(parameters, batch):
    return batch_loss(model, parameters, batch, 0.0, chunk_tokens)[0]

  def eval_step(parameters, sums, batch):
    new = on_each_shard(own_sums)(parameters, batch)
    return jax.tree.map(jnp.add, sums, new)

  return jax.jit(eval_step, donate_argnums=1)
