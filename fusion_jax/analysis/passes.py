"""Teacher-forced passes over a text, batch by batch, reduced on the device.

The values computed inside a pass are large, so a view keeps sums over the text
instead. Modules sow their values into the collection 'views'.

Axis letters: B batch, T positions.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from fusion_jax.analysis.run_with_text import RunWithText, TextPair
from fusion_jax.config import BatchConfig, Side
from fusion_jax.data.batching import (
  Batch,
  Shape,
  assemble,
  assign_shapes,
  choose_shapes,
  plan_epoch,
)
from fusion_jax.models.transformer import ModelOutput, Parameters, Transformer

# Few shapes, because a view takes longer to compile than to run.
_SHAPES = 2
_TOKENS = 2_048

# Named arrays with a value at every position, [B, T, ...].
Shown = Mapping[str, Float[Array, 'B T *rest']]


class TextBatch(NamedTuple):
  """A batch, and the places of its rows in the text.

  Attributes:
    batch: Batch of sentences.
    rows: Index among the pairs, for each row with a sentence.
  """

  batch: Batch
  rows: Int[np.ndarray, ' R']


def text_shapes(
  pairs: Sequence[TextPair], tokens: int = _TOKENS
) -> tuple[Shape, ...]:
  """Choose the shapes of the batches of a text, at most two."""
  config = BatchConfig(tokens=tokens, shapes=_SHAPES, row_multiple=1)
  return choose_shapes(_lengths(pairs), config)


def text_batches(
  pairs: Sequence[TextPair], shapes: Sequence[Shape]
) -> Iterator[TextBatch]:
  """Yield batches with every pair of a text once."""
  order = np.arange(len(pairs), dtype=np.int32)
  assignment = assign_shapes(_lengths(pairs), shapes)
  plan = plan_epoch(order, assignment, tuple(shapes))
  for index in range(plan.batches):
    shape, rows = plan.batch(index)
    yield TextBatch(assemble([pairs[row] for row in rows], shape), rows)


def watched(
  model: Transformer, parameters: Parameters, batch: Batch, *collections: str
) -> tuple[ModelOutput, Mapping[str, Any]]:
  """Run a pass without dropout, and return what its modules sowed."""
  output, kept = model.apply(
    {'params': parameters},
    batch.source,
    batch.source_lengths,
    batch.target,
    target_lengths=batch.target_lengths,
    mutable=list(collections),
  )
  return output, {name: kept.get(name, {}) for name in collections}


def sum_over_text(
  analysed: RunWithText,
  measure: Callable[[Parameters, Batch], Any],
  tokens: int = _TOKENS,
) -> Any:
  """Add up what a pure function gives for the batches of the text."""

  @jax.jit
  def step(parameters, total, batch):
    return jax.tree.map(jnp.add, total, measure(parameters, batch))

  parameters, total = analysed.run.parameters, None
  for batch, _ in text_batches(
    analysed.pairs, text_shapes(analysed.pairs, tokens)
  ):
    if total is None:
      shapes = jax.eval_shape(measure, parameters, batch)
      total = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    total = step(parameters, total, batch)
  return jax.device_get(total)


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


def token_means(
  analysed: RunWithText,
  sides: tuple[Side, ...],
  measure: Callable[[Mapping[str, Any], Side], Shown],
) -> Mapping[Side, TokenMeans]:
  """Average values over all tokens of the text, including end symbols."""
  model = analysed.run.model

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

  totals = sum_over_text(analysed, sums)
  return {
    side: TokenMeans(
      {name: total / count for name, total in totals[side][0].items()},
      int(count),
    )
    for side, (_, count) in totals.items()
  }


def _lengths(pairs: Sequence[TextPair]) -> Int[np.ndarray, 'N 2']:
  return np.array(
    [[len(pair.source), len(pair.target)] for pair in pairs], np.int32
  )
