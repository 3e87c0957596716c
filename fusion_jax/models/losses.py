"""Label-smoothed cross-entropy as sums and counts, computed chunk by chunk.

Axis letters: B rows, T target length, D model width, V vocabulary, G groups, C
chunks, R tokens of a chunk.

The logits of a batch are the largest array of a training step. Here only one
chunk of rows has logits at a time, and its gradient is computed while they are
in memory: this takes three matrix products a chunk, none of them twice. Where
several groups of layers predict, the logits of one group after the other are
computed; one prediction is one group.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fusion_jax.fusion.mixture import Combine, at_positions, token_mixture
from fusion_jax.models.transformer import OutputLayer, output_logits
from fusion_jax.parallel.mesh import shards_of_rows


class LossSums(NamedTuple):
  """Sums over target tokens; divide by `tokens` last.

  Attributes:
    loss: Label-smoothed cross-entropy in nats, the sum to minimise.
    negative_log_likelihood: Cross-entropy without smoothing, in nats.
    correct: Number of target tokens that are the most probable token, int32.
    tokens: Number of tokens counted, int32.
  """

  loss: Float[Array, '']
  negative_log_likelihood: Float[Array, '']
  correct: Int[Array, '']
  tokens: Int[Array, '']


def zero_sums() -> LossSums:
  """Return sums over no tokens."""
  return LossSums(*(jnp.zeros((), t) for t in ('f4', 'f4', 'i4', 'i4')))


class _Rows(NamedTuple):
  """Values of every row of logits, before they are summed."""

  loss: Float[Array, ' R']
  negative_log_likelihood: Float[Array, ' R']
  correct: Bool[Array, ' R']


class _Gradients(NamedTuple):
  features: Float[Array, 'R D']
  output: OutputLayer


class _Output(NamedTuple):
  """What all chunks read of the output layer.

  Attributes:
    layer: Output layer with the table in the dtype of the features.
    mean: Mean over the vocabulary of table and bias.
  """

  layer: OutputLayer
  mean: tuple[Float[Array, ' D'], Float[Array, ''] | float]

  def mean_logits(self, features: Float[Array, 'R D']) -> Float[Array, ' R']:
    """Return the mean of each row of logits, without reading them."""
    row, bias = self.mean
    return (features.astype(jnp.float32) * row).sum(-1) + bias


def _output(layer: OutputLayer, features: Array) -> _Output:
  table = layer.table.astype(features.dtype)
  bias = 0.0 if layer.bias is None else layer.bias.mean()
  mean = table.mean(0, dtype=jnp.float32), bias
  return _Output(layer._replace(table=table), mean)


def _row_losses(
  logits: Float[Array, 'R V'],
  mean: Float[Array, ' R'],
  targets: Int[Array, ' R'],
  smoothing: float,
) -> tuple[_Rows, Float[Array, 'R 1']]:
  """Return the losses of one chunk, and the logsumexp of each row."""
  largest = logits.max(-1, keepdims=True)
  log_sum = largest + jnp.log(jnp.exp(logits - largest).sum(-1, keepdims=True))
  chosen = jnp.take_along_axis(logits, targets[:, None], axis=-1)
  negative = (log_sum - chosen)[:, 0]
  uniform = log_sum[:, 0] - mean
  loss = (1 - smoothing) * negative + smoothing * uniform
  return _Rows(loss, negative, (chosen >= largest)[:, 0]), log_sum


def _chunk_sums(rows: _Rows, keep: Bool[Array, ' R']) -> LossSums:
  return LossSums(
    jnp.where(keep, rows.loss, 0).sum(),
    jnp.where(keep, rows.negative_log_likelihood, 0).sum(),
    (keep & rows.correct).sum(dtype=jnp.int32),
    keep.sum(dtype=jnp.int32),
  )


def _chunk_gradients(
  logits: Float[Array, 'R V'],
  log_sum: Float[Array, 'R 1'],
  features: Float[Array, 'R D'],
  output: OutputLayer,
  targets: Int[Array, ' R'],
  keep: Bool[Array, ' R'],
  smoothing: float,
  weight: Float[Array, 'R 1'] | float = 1.0,
) -> _Gradients:
  """Return the gradients of one chunk by the features and the output layer.

  The gradient by the logits is weight (p - (1 - e) onehot - e / V).
  """
  size = logits.shape[-1]
  hit = jnp.arange(size) == targets[:, None]
  smoothed = jnp.where(hit, 1 - smoothing, 0) + smoothing / size
  by_logits = weight * (jnp.exp(logits - log_sum) - smoothed)
  by_logits = jnp.where(keep[:, None], by_logits, 0).astype(features.dtype)
  product = functools.partial(
    jax.lax.dot_general, preferred_element_type=jnp.float32
  )
  return _Gradients(
    product(by_logits, output.table, (((1,), (0,)), ((), ()))),
    OutputLayer(
      product(by_logits, features, (((0,), (0,)), ((), ()))),
      None if output.bias is None else by_logits.sum(0, dtype=jnp.float32),
    ),
  )


def _chunk_count(rows: int, row_tokens: int, chunk_tokens: int) -> int:
  """Return the largest number of chunks of at least `chunk_tokens` tokens.

  Every chunk keeps a multiple of the shards of the rows, so that each device
  divides its own rows and nothing is moved between devices.
  """
  if chunk_tokens == 0:
    return 1
  devices = shards_of_rows()
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
  """Reshape [B, T, ...] to [C, B / C * T, ...].

  Chunk c has the rows c, c + C, ...
  """
  by_chunk = jnp.moveaxis(
    x.reshape(x.shape[0] // count, count, *x.shape[1:]), 1, 0
  )
  return by_chunk.reshape(count, -1, *x.shape[2:])


def _from_chunks(x: Array, rows: int) -> Array:
  """Invert `_to_chunks`."""
  count = x.shape[0]
  by_chunk = x.reshape(count, rows // count, -1, *x.shape[2:])
  return jnp.moveaxis(by_chunk, 0, 1).reshape(rows, -1, *x.shape[2:])


def _zeros(output: OutputLayer) -> OutputLayer:
  return jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), output)


class _Settings(NamedTuple):
  smoothing: float
  chunk_tokens: int
  combine: Combine


class _LossGradients(NamedTuple):
  features: Float[Array, 'G B T D']
  log_weights: Float[Array, 'G B T']
  output: OutputLayer


class _Chunk(NamedTuple):
  """Results of one chunk.

  Attributes:
    losses: Loss of every group and token, psi_k CE_k, which is also
      d loss / d log psi_k.
    by_features: Gradient by the features of the chunk, if differentiated.
    by_output: Gradient by the output layer so far, if differentiated.
  """

  losses: Float[Array, 'G R']
  sums: LossSums
  by_features: Float[Array, 'G R D'] | None
  by_output: OutputLayer | None


def _chunk(
  features: Float[Array, 'G R D'],
  log_weights: Float[Array, 'G R'],
  output: _Output,
  targets: Int[Array, ' R'],
  keep: Bool[Array, ' R'],
  settings: _Settings,
  by_output: OutputLayer | None,
) -> _Chunk:
  """Compute one chunk group by group; add to `by_output` unless it is None."""
  alone = len(features) == 1

  def add_group(carry, group):
    mixture, by_output = carry
    group_features, log_weight = group[0], group[1][:, None]
    weight, by_features = jnp.exp(log_weight), None
    logits = output_logits(group_features, output.layer)
    mean = output.mean_logits(group_features)
    rows, log_sum = _row_losses(logits, mean, targets, settings.smoothing)
    if not alone and settings.combine == 'arithmetic':
      mixture += jnp.exp(log_weight + logits - log_sum)
    elif not alone:
      mixture += weight * (logits - log_sum)
    if by_output is not None:
      gradients = _chunk_gradients(
        logits,
        log_sum,
        group_features,
        output.layer,
        targets,
        keep,
        settings.smoothing,
        1.0 if alone else weight,
      )
      by_output = jax.tree.map(jnp.add, by_output, gradients.output)
      by_features = gradients.features.astype(features.dtype)
    return (mixture, by_output), (rows, by_features)

  shape = targets.size, output.layer.table.shape[0]
  nothing = None if alone else jnp.zeros(shape, jnp.float32)
  (mixture, by_output), (rows, by_features) = jax.lax.scan(
    add_group, (nothing, by_output), (features, log_weights)
  )
  losses = rows.loss * jnp.exp(log_weights)
  if mixture is None:
    whole = jax.tree.map(lambda x: x[0], rows)
  else:
    log_p = -rows.negative_log_likelihood
    mixed = token_mixture(log_p, log_weights, settings.combine)
    whole = _Rows(losses.sum(0), -mixed, _is_largest(targets, mixture))
  losses = jnp.where(keep, losses, 0)
  return _Chunk(losses, _chunk_sums(whole, keep), by_features, by_output)


def _is_largest(
  targets: Int[Array, ' R'], scores: Float[Array, 'R V']
) -> Bool[Array, ' R']:
  chosen = jnp.take_along_axis(scores, targets[:, None], axis=-1)
  return chosen[:, 0] >= scores.max(-1)


def _all_chunks(
  features: Float[Array, 'G B T D'],
  log_weights: Float[Array, 'G B T'],
  output: OutputLayer,
  targets: Int[Array, 'B T'],
  keep: Bool[Array, 'B T'],
  settings: _Settings,
  differentiate: bool,
) -> tuple[LossSums, _LossGradients | None]:
  """Return the sums of all chunks, and their gradients if asked for.

  Features and their gradient are read and written in place, chunk c as [:, :,
  c] of [G, B / C, C, T, D], because copies of the G groups would be the largest
  arrays here.
  """
  shape = features.shape
  groups, rows, *rest = shape
  count = _chunk_count(rows, targets.shape[1], settings.chunk_tokens)
  read = _output(output, features)
  features = features.reshape(groups, rows // count, count, *rest)

  def add_chunk(carry, chunk):
    sums, by_features, by_output = carry
    index, chunk_weights, chunk_targets, chunk_keep = chunk
    chunk_features = jax.lax.dynamic_index_in_dim(features, index, 2)
    new = _chunk(
      chunk_features.reshape(groups, -1, features.shape[-1]),
      chunk_weights,
      read,
      chunk_targets,
      chunk_keep,
      settings,
      by_output,
    )
    if differentiate:
      assert new.by_features is not None
      by_features = jax.lax.dynamic_update_index_in_dim(
        by_features, new.by_features.reshape(chunk_features.shape), index, 2
      )
    sums = jax.tree.map(jnp.add, sums, new.sums)
    return (sums, by_features, new.by_output), new.losses

  chunks = (
    jnp.arange(count),
    jax.vmap(_to_chunks, (0, None), 1)(log_weights, count),
    _to_chunks(targets, count),
    _to_chunks(keep, count),
  )
  start: Any = (zero_sums(), None, None)
  if differentiate:
    start = (zero_sums(), jnp.zeros_like(features), _zeros(output))
  (sums, by_features, by_output), losses = jax.lax.scan(
    add_chunk, start, chunks
  )
  if not differentiate:
    return sums, None
  by_log_weights = jax.vmap(_from_chunks, (1, None))(losses, rows)
  gradients = _LossGradients(
    by_features.reshape(shape), by_log_weights, by_output
  )
  return sums, gradients


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def _cross_entropy(
  features: Float[Array, 'G B T D'],
  log_weights: Float[Array, 'G B T'],
  output: OutputLayer,
  targets: Int[Array, 'B T'],
  keep: Bool[Array, 'B T'],
  settings: _Settings,
) -> LossSums:
  return _all_chunks(
    features, log_weights, output, targets, keep, settings, False
  )[0]


def _forward(features, log_weights, output, targets, keep, settings):
  return _all_chunks(
    features, log_weights, output, targets, keep, settings, True
  )


def _backward(settings, gradients, cotangent):
  del settings
  scaled = jax.tree.map(
    lambda g: (g * cotangent.loss).astype(g.dtype), gradients
  )
  return *scaled, None, None


_cross_entropy.defvjp(_forward, _backward)


@jax.named_scope('loss')
def cross_entropy(
  features: Float[Array, '*G B T D'],
  output: OutputLayer,
  targets: Int[Array, 'B T'],
  target_lengths: Int[Array, ' B'],
  label_smoothing: float = 0.0,
  chunk_tokens: int = 0,
  log_weights: Float[Array, '*G'] | Float[Array, '*G B T'] | None = None,
  combine: Combine = 'arithmetic',
) -> LossSums:
  """Return the label-smoothed cross-entropy of the output layer.

  It is -(1 - e) log p(y) - e / V sum_v log p(v), Szegedy et al. (2016), section
  7, with p = softmax(features table^T + bias) in float32.

  With groups it is the sum over k of psi_k times that of group k, Yang et al.
  (2022), Eq. 7, which is at least the cross-entropy of the mixture. The other
  sums are those of the mixture: sum_k psi_k p_k, or exp(sum_k psi_k log p_k).

  Only `loss` has a gradient.

  Args:
    features: Decoder features, float32 or bfloat16; [B, T, D], or those of
      every group.
    targets: Token ids, int32.
    target_lengths: Number of tokens in each row, int32; the rest does not
      count.
    chunk_tokens: Least number of tokens, padding included, whose logits are
      held at a time; 0: all.
    log_weights: Log weights log psi of the groups, float32, where psi sums to
      1, the same everywhere or of every token; None without groups.

  Returns:
    Sums over the tokens of all rows.
  """
  keep = jnp.arange(targets.shape[1]) < target_lengths[:, None]
  settings = _Settings(label_smoothing, chunk_tokens, combine)
  if log_weights is None:
    features, log_weights = features[None], jnp.zeros(1)
  weights = at_positions(log_weights, targets.shape)
  return _cross_entropy(features, weights, output, targets, keep, settings)
