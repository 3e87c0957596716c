"""The loss of a batch, and its gradient over microbatches and devices.

Each device sums the gradients of its own rows over all microbatches. Then the
sums of all devices are added, once an update. Parameters that are sharded over
the axis fsdp are gathered once before, and their gradients are sharded again
where they are added.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int, Key

from fusion_jax.config import TrainingConfig
from fusion_jax.data.batching import Batch
from fusion_jax.fusion.diversity import layer_diversity
from fusion_jax.models.losses import LossSums, cross_entropy
from fusion_jax.models.transformer import (
  ModelOutput,
  Parameters,
  Transformer,
  bfloat16_copies,
)
from fusion_jax.parallel.mesh import ROW_AXES, on_each_shard, row_axes

# (parameters, batch, dropout key, other arguments) -> (summed loss, sums).
SummedLoss = Callable[
  [Parameters, Batch, Key[Array, ''], Any], tuple[Float[Array, ''], Any]
]


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
  """Values of the whole batch that the loss of some of its rows needs."""

  counts: BatchCounts
  diversity: Float[Array, '']  # Weight of the reward at this update.


def diversity_weight(
  config: TrainingConfig, step: Int[Array, '']
) -> Float[Array, '']:
  """Return the weight of the diversity reward after `step` updates."""
  risen = jnp.float32(step - config.diversity_start + 1)
  share = risen / max(config.diversity_rise, 1)
  return config.diversity * jnp.clip(share, 0, 1)


def batch_diversity(
  output: ModelOutput, batch: Batch, config: TrainingConfig, counts: BatchCounts
) -> Float[Array, '']:
  """Return the layer diversity of both stacks; Dou et al. (2018), Eq. 9-10."""
  sides = (
    (output.encoder_layers, batch.source, batch.source_lengths, counts.source),
    (output.decoder_layers, batch.target, batch.target_lengths, counts.target),
  )
  rewards = [
    layer_diversity(
      layers[1:],
      jnp.arange(tokens.shape[1]) < lengths[:, None],
      jnp.maximum(count, 1),
      config.diversity_reward,
    )
    for layers, tokens, lengths, count in sides
  ]
  total = rewards[0] + rewards[1]
  return total if config.diversity_sides == 'sum' else total / 2


def training_loss(
  model: Transformer,
  config: TrainingConfig,
  parameters: Parameters,
  batch: Batch,
  key: Key[Array, ''],
  whole: Whole,
) -> tuple[Float[Array, ''], tuple[LossSums, Float[Array, '']]]:
  """Return the summed loss of some rows, their sums, and their reward."""
  if config.cast_weights == 'once':
    parameters = bfloat16_copies(parameters)
  sums, output = batch_loss(
    model, parameters, batch, config.label_smoothing, config.loss_chunk, key
  )
  if not config.diversity:
    return sums.loss, (sums, jnp.zeros((), jnp.float32))
  reward = batch_diversity(output, batch, config, whole.counts)
  weighted = whole.diversity * whole.counts.target * reward
  return sums.loss - weighted, (sums, reward)


def summed_gradients(
  loss: SummedLoss,
  parameters: Parameters,
  batch: Batch,
  key: Key[Array, ''],
  others: Any,
  parts: int,
  specs: Any = None,
) -> tuple[Parameters, Any]:
  """Return the gradient of a summed loss, and the sums, over a whole batch."""
  of_rows = functools.partial(_over_parts, loss, parts)
  axes = row_axes()
  if not axes:
    return of_rows(parameters, batch, key, others)
  if specs is None:
    specs = jax.tree.map(lambda _: PartitionSpec(), parameters)
  gathered = _gather(parameters, specs)
  gradients, sums = on_each_shard(of_rows)(gathered, batch, key, others)
  return _add(gradients, specs, axes), jax.tree.map(lambda x: x.sum(0), sums)


def _gather(parameters: Parameters, specs: Any) -> Parameters:
  """Gather what is sharded over fsdp; shards over tensor stay."""
  return jax.shard_map(
    lambda shards: jax.tree.map(_gathered, shards, specs),
    in_specs=(specs,),
    out_specs=jax.tree.map(_without_rows, specs, is_leaf=_is_spec),
    check_vma=False,
  )(parameters)


def _gathered(shard: Array, spec: PartitionSpec) -> Array:
  for dimension, axis in enumerate(spec):
    if axis in ROW_AXES:
      shard = jax.lax.all_gather(shard, axis, axis=dimension, tiled=True)
  return shard


def _add(
  gradients: Parameters, specs: Any, axes: tuple[str, ...]
) -> Parameters:
  """Return the sum of the devices' gradients, sharded like the parameters."""

  def stacked(spec: PartitionSpec) -> PartitionSpec:
    return PartitionSpec(axes, *_without_rows(spec))

  return jax.shard_map(
    lambda shards: jax.tree.map(functools.partial(_added, axes), shards, specs),
    in_specs=(jax.tree.map(stacked, specs, is_leaf=_is_spec),),
    out_specs=specs,
    check_vma=False,
  )(gradients)


def _added(
  axes: tuple[str, ...], gradient: Array, spec: PartitionSpec
) -> Array:
  gradient = gradient[0]
  for dimension, axis in enumerate(spec):
    if axis in ROW_AXES:
      gradient = jax.lax.psum_scatter(
        gradient, axis, scatter_dimension=dimension, tiled=True
      )
  left = tuple(axis for axis in axes if axis not in spec)
  return jax.lax.psum(gradient, left) if left else gradient


def _is_spec(x: Any) -> bool:
  return isinstance(x, PartitionSpec)


def _without_rows(spec: PartitionSpec) -> PartitionSpec:
  return PartitionSpec(*(None if axis in ROW_AXES else axis for axis in spec))


def _over_parts(
  loss: SummedLoss,
  parts: int,
  parameters: Parameters,
  batch: Batch,
  key: Key[Array, ''],
  others: Any,
) -> tuple[Parameters, Any]:
  gradient = jax.grad(loss, has_aux=True)
  if parts == 1:
    return gradient(parameters, batch, key, others)

  def add_part(carry, part):
    index, rows = part
    part_key = jax.random.fold_in(key, index)
    new = gradient(parameters, rows, part_key, others)
    return jax.tree.map(jnp.add, carry, new), None

  split = _split_rows(batch, parts)
  first = jax.tree.map(lambda x: x[0], split)
  shapes = jax.eval_shape(gradient, parameters, first, key, others)
  zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
  return jax.lax.scan(add_part, zeros, (jnp.arange(parts), split))[0]


def _split_rows(batch: Batch, parts: int) -> Batch:
  """Split [R, ...] into [parts, R / parts, ...], each part on all devices."""
  return jax.tree.map(
    lambda x: jnp.moveaxis(
      x.reshape(x.shape[0] // parts, parts, *x.shape[1:]), 1, 0
    ),
    batch,
  )
