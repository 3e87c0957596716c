"""Teacher-forced passes over a text, with sums by part of the text.

What a pass computes is large, so that a view keeps sums over the text. They are
over all positions that are tokens, over each of the first positions of the
sentences, and over the positions of subwords of similar frequency.

Axis letters: B batch, T positions, P parts, V vocabulary.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Num

from fusion_jax.analysis.run_with_text import RunWithText, TextPair
from fusion_jax.analysis.view import SIDES, nullable
from fusion_jax.config import BatchConfig, Side
from fusion_jax.data.batching import (
  Batch,
  Shape,
  assemble,
  assign_shapes,
  choose_shapes,
  plan_epoch,
)
from fusion_jax.data.tokenizer import Tokenizer
from fusion_jax.models.transformer import (
  ModelOutput,
  Parameters,
  Transformer,
  shift_right,
)

# Few shapes, because a view takes longer to compile than to run.
_SHAPES = 2
_TOKENS = 2_048
# Number of first positions of a sentence that are parts by themselves.
POSITIONS = 20
# Number of bins that Emelin et al. (2019) use for their probes.
BINS = 10
# Bin of subwords that are in no bin.
NONE = -1
# What the numbers of the parts are, for the axis of a figure.
LABELS: Mapping[str, str] = {
  'position': 'position in the sentence',
  'frequency': 'tenth of the text, 1: rarest subwords',
}

# The parts that each position of a batch belongs to, by side.
Members = Mapping[Side, Float[Array, 'B T P']]


class TextBatch(NamedTuple):
  """A batch, and for each row the index of its pair in the text."""

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


def _lengths(pairs: Sequence[TextPair]) -> Int[np.ndarray, 'N 2']:
  return np.array(
    [[len(pair.source), len(pair.target)] for pair in pairs], np.int32
  )


def watched(
  model: Transformer, parameters: Parameters, batch: Batch, *collections: str
) -> tuple[ModelOutput, Mapping[str, Any]]:
  """Run a pass without dropout, and return what its modules sowed."""
  output, sown = model.apply(
    {'params': parameters},
    batch.source,
    batch.source_lengths,
    batch.target,
    target_lengths=batch.target_lengths,
    mutable=list(collections),
  )
  return output, {name: sown.get(name, {}) for name in collections}


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
  shapes = text_shapes(analysed.pairs, tokens)
  for batch, _ in text_batches(analysed.pairs, shapes):
    if total is None:
      first = jax.eval_shape(measure, parameters, batch)
      total = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), first)
    total = step(parameters, total, batch)
  return jax.device_get(total)


def token_masks(batch: Batch) -> Mapping[Side, Bool[Array, 'B T']]:
  """Return masks of the tokens of each side, including the end symbols."""
  sides = (
    (batch.source, batch.source_lengths),
    (batch.target, batch.target_lengths),
  )
  return {
    side: jnp.arange(ids.shape[1]) < lengths[:, None]
    for side, (ids, lengths) in zip(SIDES, sides, strict=True)
  }


def token_sum(
  values: Float[Array, 'B T *rest'], tokens: Bool[Array, 'B T']
) -> Float[Array, '*rest']:
  """Sum values in float32 over the positions that are tokens."""
  keep = tokens.reshape(*tokens.shape, *(1,) * (values.ndim - 2))
  return jnp.where(keep, values.astype(jnp.float32), 0).sum((0, 1))


class TokenMeans(NamedTuple):
  """Tree of means over the positions of one side, and their number."""

  means: Any
  positions: int


def token_means(
  analysed: RunWithText,
  sides: Iterable[Side],
  measure: Callable[[Mapping[str, Any], Side], Any],
  collection: str = 'views',
) -> Mapping[Side, TokenMeans]:
  """Average over all tokens what is measured of what a side sows.

  It is a tree of arrays [B, T, ...]; of 'telemetry', of means of a batch.
  """
  sides = tuple(sides)

  def sums(parameters, batch):
    _, sown = watched(analysed.run.model, parameters, batch, collection)
    masks, totals = token_masks(batch), {}
    for side in sides:
      values = measure(sown[collection].get(side, {}), side)
      count = masks[side].sum()
      if collection == 'telemetry':
        total = functools.partial(jnp.multiply, count.astype(jnp.float32))
      else:
        total = functools.partial(token_sum, tokens=masks[side])
      totals[side] = jax.tree.map(total, values), count
    return totals

  totals = sum_over_text(analysed, sums) if sides else {}
  return {
    side: TokenMeans(jax.tree.map(lambda x, n=count: x / n, tree), int(count))
    for side, (tree, count) in totals.items()
  }


def frequency_bins(
  counts: Int[np.ndarray, ' V'], bins: int = BINS
) -> Int[np.ndarray, ' V']:
  """Return bins of equal mass of subwords, as Emelin et al. (2019) number them.

  From the most frequent, number n is floor(bins (mass above it + half its
  own)), and the bin is bins - 1 - n.
  """
  order = np.argsort(-counts, kind='stable')
  mass = counts[order].astype(np.float64)
  middle = (np.cumsum(mass) - mass / 2) / max(mass.sum(), 1)
  numbers = np.empty(len(counts), np.int32)
  numbers[order] = bins - 1 - np.minimum(np.int32(bins * middle), bins - 1)
  return np.where(counts > 0, numbers, np.int32(NONE))


def subword_counts(
  sentences: Iterable[Int[np.ndarray, ' T']], tokenizer: Tokenizer
) -> Int[np.ndarray, ' V']:
  """Count every subword of a text, except end symbols and tags."""
  vocabulary = tokenizer.vocabulary
  counts = np.zeros(vocabulary.size, np.int64)
  for ids in sentences:
    np.add.at(counts, ids, 1)
  counts[[vocabulary.end, *tokenizer.tags]] = 0
  return counts


def text_bins(analysed: RunWithText) -> Mapping[Side, Int[Array, ' V']]:
  """Return the bins of the subwords of each side by the text's own counts."""
  run, pairs = analysed.run, analysed.pairs
  counts: dict[Side, Int[np.ndarray, ' V']] = {
    'encoder': subword_counts((p.source for p in pairs), run.source_tokenizer),
    'decoder': subword_counts((p.target for p in pairs), run.target_tokenizer),
  }
  return {side: jnp.asarray(frequency_bins(n)) for side, n in counts.items()}


def parts(
  tokens: Bool[Array, 'B T'], bins: Int[Array, 'B T']
) -> Float[Array, 'B T P']:
  """Mark the parts of the text that a position belongs to; part 0 is all."""
  place = jnp.arange(tokens.shape[1])[:, None] == jnp.arange(POSITIONS)
  member = jnp.concatenate(
    [
      jnp.ones((*tokens.shape, 1)),
      jnp.broadcast_to(place, (*tokens.shape, POSITIONS)),
      jax.nn.one_hot(bins, BINS),
    ],
    axis=-1,
  )
  return member * tokens[..., None]


def members_of(analysed: RunWithText) -> Callable[[Batch], Members]:
  """Return the function that marks the parts of the positions of a batch.

  A position of the decoder reads the subword before the one that it predicts.
  """
  bins, start = text_bins(analysed), analysed.run.model.start_id

  def members(batch: Batch) -> Members:
    masks = token_masks(batch)
    read: dict[Side, Int[Array, 'B T']] = {
      'encoder': jnp.asarray(batch.source),
      'decoder': shift_right(jnp.asarray(batch.target), start),
    }
    return {side: parts(masks[side], bins[side][read[side]]) for side in bins}

  return members


def sums_by_part(
  analysed: RunWithText,
  measure: Callable[[Mapping[str, Any]], Mapping[str, tuple[Side, Any]]],
) -> Mapping[str, tuple[Any, Float[np.ndarray, ' P']]]:
  """Sum what is measured of the views over each part; count the positions.

  It is, by name, the side of the positions and a tree of arrays [B, T, ...].
  """
  members = members_of(analysed)

  def sums(parameters, batch):
    _, sown = watched(analysed.run.model, parameters, batch, 'views')
    member = members(batch)
    totals = {}
    for name, (side, values) in measure(sown['views']).items():
      total = functools.partial(jnp.einsum, 'BTP,BT...->P...', member[side])
      totals[name] = jax.tree.map(total, values), member[side].sum((0, 1))
    return totals

  return sum_over_text(analysed, sums)


def moments(
  sums: Float[np.ndarray, 'P *rest 2'], counts: Float[np.ndarray, ' P']
) -> Mapping[str, Float[np.ndarray, 'P *rest']]:
  """Return the mean and the deviation of every part; NaN where it is empty."""
  filled = np.where(counts > 0, counts, np.nan)
  filled = filled.reshape(-1, *(1,) * (sums.ndim - 2))
  mean, square = np.moveaxis(sums.astype(np.float64), -1, 0) / filled
  deviation = np.sqrt(np.maximum(square - mean**2, 0))
  return {'mean': mean, 'deviation': deviation}


def by_part(
  values: Num[np.ndarray, 'P *rest'], whole: str = 'all'
) -> dict[str, Any]:
  """Return JSON numbers of the whole text, by position and by frequency."""
  first, *others = nullable(values)
  return {
    whole: first,
    'position': others[:POSITIONS],
    'frequency': others[POSITIONS:],
  }
