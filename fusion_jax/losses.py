"""Label-smoothed cross-entropy as sums and counts, chunk by chunk.

Axis letters: B rows, T target length, D model width, V vocabulary, C chunks.
The logits of a batch are the largest array of a training step. Here only one
chunk of rows has logits at a time, and its gradient is taken while they are
there: three matrix products a chunk, none of them twice.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fusion_jax.models.transformer import OutputLayer, output_logits


class LossSums(NamedTuple):
  """Sums over target tokens; divide by `tokens` last.

  loss: of the label-smoothed cross-entropy, in nats; the one to minimise.
  negative_log_likelihood: without smoothing, in nats.
  correct: int32 tokens whose logit is the largest.
  tokens: int32 tokens counted.
  """

  loss: Float[Array, '']
  negative_log_likelihood: Float[Array, '']
  correct: Int[Array, '']
  tokens: Int[Array, '']


def zero_sums() -> LossSums:
  """Sums over no tokens."""
  return LossSums(*(jnp.zeros((), t) for t in ('f4', 'f4', 'i4', 'i4')))


class _Gradients(NamedTuple):
  features: Float[Array, 'R D']
  table: Float[Array, 'V D']
  bias: Float[Array, ' V'] | None


def _chunk_losses(
  logits: Float[Array, 'R V'],
  targets: Int[Array, ' R'],
  keep: Bool[Array, ' R'],
  smoothing: float,
) -> tuple[LossSums, Float[Array, 'R 1']]:
  """The sums of one chunk, and logsumexp of each row."""
  largest = logits.max(-1, keepdims=True)
  log_sum = largest + jnp.log(jnp.exp(logits - largest).sum(-1, keepdims=True))
  chosen = jnp.take_along_axis(logits, targets[:, None], axis=-1)
  negative = (log_sum - chosen)[:, 0]
  uniform = (log_sum - logits.mean(-1, keepdims=True))[:, 0]
  loss = (1 - smoothing) * negative + smoothing * uniform
  sums = LossSums(
    jnp.where(keep, loss, 0).sum(),
    jnp.where(keep, negative, 0).sum(),
    (keep & (chosen >= largest)[:, 0]).sum(dtype=jnp.int32),
    keep.sum(dtype=jnp.int32),
  )
  return sums, log_sum


def _chunk_gradients(
  logits: Float[Array, 'R V'],
  log_sum: Float[Array, 'R 1'],
  features: Float[Array, 'R D'],
  output: OutputLayer,
  targets: Int[Array, ' R'],
  keep: Bool[Array, ' R'],
  smoothing: float,
) -> _Gradients:
  """d loss / d logits = p - (1 - e) onehot - e / V, and what follows."""
  size = logits.shape[-1]
  hit = jnp.arange(size) == targets[:, None]
  smoothed = jnp.where(hit, 1 - smoothing, 0) + smoothing / size
  by_logits = jnp.where(keep[:, None], jnp.exp(logits - log_sum) - smoothed, 0)
  by_logits = by_logits.astype(features.dtype)
  product = functools.partial(
    jax.lax.dot_general, preferred_element_type=jnp.float32
  )
  table = output.table.astype(features.dtype)
  return _Gradients(
    product(by_logits, table, (((1,), (0,)), ((), ()))),
    product(by_logits, features, (((0,), (0,)), ((), ()))),
    None if output.bias is None else by_logits.sum(0, dtype=jnp.float32),
  )


def _chunk_count(rows: int, row_tokens: int, chunk_tokens: int) -> int:
  """The most chunks of at least `chunk_tokens` into which rows divide.

  Every chunk keeps a multiple of the mesh's devices, so that chunks are cut
  inside the devices and nothing is moved between them.
  """
  if chunk_tokens == 0:
    return 1
  devices = math.prod(jax.sharding.get_abstract_mesh().shape.values())
  return max(
    count
    for count in range(1, rows + 1)
    if count == 1
    or (
      rows % (count * devices) == 0
      and rows // count * row_tokens >= chunk_tokens
    )
  )


def _to_chunks(x: Array, count: int) -> Array:
  """[B, T, ...] -> [C, B / C * T, ...]; chunk c has the rows c, c + C, ..."""
  by_chunk = jnp.moveaxis(
    x.reshape(x.shape[0] // count, count, *x.shape[1:]), 1, 0
  )
  return by_chunk.reshape(count, -1, *x.shape[2:])


def _from_chunks(x: Array, rows: int) -> Array:
  """The inverse of `_to_chunks`."""
  count = x.shape[0]
  by_chunk = x.reshape(count, rows // count, -1, *x.shape[2:])
  return jnp.moveaxis(by_chunk, 0, 1).reshape(rows, -1, *x.shape[2:])


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _cross_entropy(
  features: Float[Array, 'B T D'],
  output: OutputLayer,
  targets: Int[Array, 'B T'],
  keep: Bool[Array, 'B T'],
  smoothing: float,
  chunk_tokens: int,
) -> LossSums:
  count = _chunk_count(*targets.shape, chunk_tokens)

  def add_chunk(sums, chunk):
    chunk_features, chunk_targets, chunk_keep = chunk
    logits = output_logits(chunk_features, output)
    chunk_sums, _ = _chunk_losses(logits, chunk_targets, chunk_keep, smoothing)
    return jax.tree.map(jnp.add, sums, chunk_sums), None

  chunks = tuple(_to_chunks(x, count) for x in (features, targets, keep))
  return jax.lax.scan(add_chunk, zero_sums(), chunks)[0]


def _cross_entropy_forward(
  features, output, targets, keep, smoothing, chunk_tokens
):
  count = _chunk_count(*targets.shape, chunk_tokens)

  def add_chunk(carry, chunk):
    sums, by_table, by_bias = carry
    chunk_features, chunk_targets, chunk_keep = chunk
    logits = output_logits(chunk_features, output)
    chunk_sums, log_sum = _chunk_losses(
      logits, chunk_targets, chunk_keep, smoothing
    )
    gradients = _chunk_gradients(
      logits,
      log_sum,
      chunk_features,
      output,
      chunk_targets,
      chunk_keep,
      smoothing,
    )
    sums = jax.tree.map(jnp.add, sums, chunk_sums)
    by_table = by_table + gradients.table
    if by_bias is not None:
      by_bias = by_bias + gradients.bias
    return (sums, by_table, by_bias), gradients.features.astype(features.dtype)

  zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), output)
  chunks = tuple(_to_chunks(x, count) for x in (features, targets, keep))
  (sums, by_table, by_bias), by_features = jax.lax.scan(
    add_chunk, (zero_sums(), zeros.table, zeros.bias), chunks
  )
  by_features = _from_chunks(by_features, targets.shape[0])
  return sums, (by_features, OutputLayer(by_table, by_bias))


def _cross_entropy_backward(smoothing, chunk_tokens, gradients, cotangent):
  del smoothing, chunk_tokens
  by_features, by_output = jax.tree.map(
    lambda g: (g * cotangent.loss).astype(g.dtype), gradients
  )
  return by_features, by_output, None, None


_cross_entropy.defvjp(_cross_entropy_forward, _cross_entropy_backward)


def cross_entropy(
  features: Float[Array, 'B T D'],
  output: OutputLayer,
  targets: Int[Array, 'B T'],
  target_lengths: Int[Array, ' B'],
  label_smoothing: float = 0.0,
  chunk_tokens: int = 0,
) -> LossSums:
  """Label-smoothed cross-entropy of the output layer.

  -(1 - e) log p(y) - e / V sum_v log p(v), Szegedy et al. (2016), section 7,
  with p = softmax(features table^T + bias) in float32.

  Only `loss` has a gradient.

  Args:
    features: decoder features, float32 or bfloat16.
    output: table [V, D] and bias [V] or None, float32.
    targets: int32 token ids.
    target_lengths: int32 tokens in each row; the rest does not count.
    label_smoothing: e, in [0, 1).
    chunk_tokens: the fewest tokens, padding included, whose logits are held
      at a time; 0: all.

  Returns:
    Sums over the tokens of all rows.
  """
  keep = jnp.arange(targets.shape[1]) < target_lengths[:, None]
  return _cross_entropy(
    features, output, targets, keep, label_smoothing, chunk_tokens
  )
