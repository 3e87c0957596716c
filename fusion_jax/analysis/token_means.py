"""Means over the tokens of a text of what modules show at every position.

The sums are made on the device, batch by batch: maps of a long text are never
held. Axis letters: B batch, T positions.
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

# A named array for every position, [B, T, ...].
Shown = Mapping[str, Float[Array, 'B T *rest']]


class TokenMeans(NamedTuple):
  """Of one side.

  means: of every array, without the axes of batch and positions.
  positions: that they are means of.
  """

  means: Mapping[str, Float[np.ndarray, '...']]
  positions: int


def token_masks(batch: Batch) -> Mapping[Side, Bool[Array, 'B T']]:
  """True at the tokens of each side, the end symbols among them."""
  return {
    'encoder': jnp.arange(batch.source.shape[1])
    < batch.source_lengths[:, None],
    'decoder': jnp.arange(batch.target.shape[1])
    < batch.target_lengths[:, None],
  }


def token_sum(
  values: Float[Array, 'B T *rest'], tokens: Bool[Array, 'B T']
) -> Float[Array, '*rest']:
  """The float32 sum over the positions that are tokens."""
  keep = tokens.reshape(*tokens.shape, *(1,) * (values.ndim - 2))
  return jnp.where(keep, values.astype(jnp.float32), 0).sum((0, 1))


def zeros_like(
  subject: RunWithText, measure: Callable[[Any, Batch], Any]
) -> Any:
  """What a sum over the batches of a text begins with.

  Args:
    subject: the run and its text.
    measure: parameters and a batch to arrays whose shapes do not depend on
      the batch's.
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
  """Means over all tokens of the text, the end symbols among them.

  Args:
    subject: the run and its text.
    sides: to look at.
    measure: what the modules of a side handed out to named arrays.

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
