"""Random batches for the tests of losses, and the formula on all logits."""

import jax
import jax.numpy as jnp

from fusion_jax.models.transformer import OutputLayer


def make_case(seed, rows=4, length=6, width=5, vocabulary=9, bias=True):
  keys = jax.random.split(jax.random.key(seed), 5)
  output = OutputLayer(
    jax.random.normal(keys[0], (vocabulary, width)),
    jax.random.normal(keys[1], (vocabulary,)) if bias else None,
  )
  return (
    jax.random.normal(keys[2], (rows, length, width)),
    output,
    jax.random.randint(keys[3], (rows, length), 0, vocabulary),
    jax.random.randint(keys[4], (rows,), 0, length + 1),
  )


def plain_loss(features, output, targets, lengths, smoothing):
  """The formula on all logits at once."""
  logits = features @ output.table.T
  if output.bias is not None:
    logits = logits + output.bias
  log_p = jax.nn.log_softmax(logits.astype(jnp.float32))
  chosen = jnp.take_along_axis(log_p, targets[..., None], -1)[..., 0]
  loss = -(1 - smoothing) * chosen - smoothing * log_p.mean(-1)
  keep = jnp.arange(targets.shape[1]) < lengths[:, None]
  return jnp.where(keep, loss, 0).sum()
