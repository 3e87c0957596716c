"""The loss of a batch, and its gradient over microbatches and devices.

Each device sums the gradients of its own rows over all microbatches. Then the
sums of all devices are added, once an update. Parameters that are sharded over
the axis fsdp are gathered once before, and their gradients are sharded again
where they are added.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int, Key

from fusion_jax.config import TrainingConfig
from fusion_jax.data.batching import Batch
from fusion_jax.fusion.diversity import layer_diversity
from fusion_jax.models.losses import LossSums, cross_entropy
from fusion_jax.models.transformer import ModelOutput, Parameters, Transformer
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


# Source and target tokens of a batch over all devices and microbatches.
Counts = tuple[Int[Array, ''], Int[Array, '']]


def count_tokens(batch: Batch) -> Counts:
  """Count the tokens of both sides."""
  return jnp.sum(batch.source_lengths), jnp.sum(batch.target_lengths)


def batch_diversity(
  output: ModelOutput, batch: Batch, counts: Counts
) -> Float[Array, '']:
  """Return the layer diversity of both stacks; Dou et al. (2018), Eq. 9-10."""
  sides = (
    (output.encoder_layers, batch.source, batch.source_lengths),
    (output.decoder_layers, batch.target, batch.target_lengths),
  )
  rewards = (
    layer_diversity(
      layers[1:],
      jnp.arange(tokens.shape[1]) < lengths[:, None],
      jnp.maximum(count, 1),
    )
    for (layers, tokens, lengths), count in zip(sides, counts, strict=True)
  )
  return functools.reduce(jnp.add, rewards)


def training_loss(
  model: Transformer,
  config: TrainingConfig,
  parameters: Parameters,
  batch: Batch,
  key: Key[Array, ''],
  counts: Counts,
) -> tuple[Float[Array, ''], tuple[LossSums, Float[Array, '']]]:
  """Return the summed loss of some rows, their sums, and their reward."""
  sums, output = batch_loss(
    model, parameters, batch, config.label_smoothing, config.loss_chunk, key
  )
  if not config.diversity:
    return sums.loss, (sums, jnp.zeros((), jnp.float32))
  reward = batch_diversity(output, batch, counts)
  return sums.loss - config.diversity * counts[1] * reward, (sums, reward)


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

  def whole(x: Array, spec: PartitionSpec) -> Array:
    for dimension, axis in enumerate(spec):
      if axis in ROW_AXES:
        x = jax.lax.all_gather(x, axis, axis=dimension, tiled=True)
    return x

  return jax.shard_map(
    lambda shards: jax.tree.map(whole, shards, specs),
    in_specs=(specs,),
    out_specs=jax.tree.map(_without_rows, specs),
    check_vma=False,
  )(parameters)


def _add(
  gradients: Parameters, specs: Any, axes: tuple[str, ...]
) -> Parameters:
  """Return the sum of the devices' gradients, sharded like the parameters."""

  def added(x: Array, spec: PartitionSpec) -> Array:
    x = x[0]
    for dimension, axis in enumerate(spec):
      if axis in ROW_AXES:
        x = jax.lax.psum_scatter(
          x, axis, scatter_dimension=dimension, tiled=True
        )
    left = tuple(axis for axis in axes if axis not in spec)
    return jax.lax.psum(x, left) if left else x

  stacked = jax.tree.map(
    lambda spec: PartitionSpec(axes, *_without_rows(spec)), specs
  )
  return jax.shard_map(
    lambda shards: jax.tree.map(added, shards, specs),
    in_specs=(stacked,),
    out_specs=specs,
    check_vma=False,
  )(gradients)


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

  # [R, ...] -> [parts, R / parts, ...], each part on all devices.
  split = jax.tree.map(
    lambda x: jnp.moveaxis(x.reshape(-1, parts, *x.shape[1:]), 1, 0), batch
  )
  first = jax.tree.map(lambda x: x[0], split)
  shapes = jax.eval_shape(gradient, parameters, first, key, others)
  zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
  return jax.lax.scan(add_part, zeros, (jnp.arange(parts), split))[0]
