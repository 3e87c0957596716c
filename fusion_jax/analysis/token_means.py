"""Means of sown values over the tokens of a text.

The sums are computed on the device, batch by batch, so that the values of a
long text are never held at once.

Axis letters: B batch, T positions.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from fusion_jax.analysis.passes import (
  over_text,
  text_batches,
  text_shapes,
  watched,
)
from fusion_jax.analysis.run_with_text import RunWithText
from fusion_jax.config import Side
from fusion_jax.data.batching import Batch

# Named arrays with a value at every position, [B, T, ...].
Shown = Mapping[str, Float[Array, 'B T *rest']]


class TokenMeans(NamedTuple):
  """Means of one side.

  Attributes:
    means: Mean of every array, without the axes of batch and positions.
    positions: Number of positions of the means.
  """

  means: Mapping[str, Float[np.ndarray, '...']]
  positions: int


def token_masks(batch: Batch) -> Mapping[Side, Bool[Array, 'B T']]:
  """Return masks of the tokens of each side, including the end symbols."""
  return {
    'encoder': jnp.arange(batch.source.shape[1])
    < batch.source_lengths[:, None],
    'decoder': jnp.arange(batch.target.shape[1])
    < batch.target_lengths[:, None],
  }


def token_sum(
  values: Float[Array, 'B T *rest'], tokens: Bool[Array, 'B T']
) -> Float[Array, '*rest']:
  """Sum values in float32 over the positions that are tokens."""
  keep = tokens.reshape(*tokens.shape, *(1,) * (values.ndim - 2))
  return jnp.where(keep, values.astype(jnp.float32), 0).sum((0, 1))


def zeros_like(
  subject: RunWithText, measure: Callable[[Any, Batch], Any]
) -> Any:
  """Return the zeros from which a sum over the batches of a text starts.

  Args:
    subject: Run and text.
    measure: Function of parameters and a batch that returns arrays whose shapes
      do not depend on the batch's.
  """
  pairs = subject.pairs[:1]
  batch = next(text_batches(pairs, text_shapes(pairs))).batch
  shapes = jax.eval_shape(measure, subject.run.parameters, batch)
  return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)


def token_means(
  subject: RunWithText,
  sides: tuple[Side, ...],
  measure: Callable[[Mapping[str, Any], Side], Shown],
) -> Mapping[Side, TokenMeans]:
  """Average values over all tokens of the text, including end symbols.

  Args:
    subject: Run and text to measure.
    sides: Sides to look at.
    measure: Function from what the modules of a side sowed to named arrays.

  Returns:
    The means of each side.
  """
  model = subject.run.model

  def sums(parameters, batch):
    _, kept = watched(model, parameters, batch, 'views')
    masks = token_masks(batch)
    return {
      side: (
        {
          name: token_sum(values, masks[side])
          for name, values in measure(kept['views'][side], side).items()
        },
        masks[side].sum(),
      )
      for side in sides
    }

  def step(parameters, total, batch):
    return jax.tree.map(jnp.add, total, sums(parameters, batch))

  totals = over_text(subject, step, zeros_like(subject, sums))
  return {
    side: TokenMeans(
      {name: total / count for name, total in totals[side][0].items()},
      int(count),
    )
    for side, (_, count) in totals.items()
  }
