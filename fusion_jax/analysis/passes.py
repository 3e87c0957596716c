"""Teacher-forced passes over a text, with sums by part of the text.

What a pass computes is large, so that a view keeps sums over the text. They are
over all positions that are tokens, over each of the first positions of the
sentences, and over the positions of subwords of similar frequency.

Axis letters: B batch, T positions, P parts, V vocabulary.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Num

from fusion_jax.analysis.run_with_text import (
  SIDES,
  RunWithText,
  TextPair,
  nullable,
)
from fusion_jax.config import BatchConfig, Side
from fusion_jax.data import batching
from fusion_jax.data.batching import Batch
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

# By which subword a position is in a part: what a side reads there, or what the
# decoder predicts.
Subwords = Literal['encoder', 'decoder', 'predicted']
# The parts that each position of a batch belongs to.
Members = Mapping[Subwords, Float[Array, 'B T P']]


def text_batches(
  pairs: Sequence[TextPair],
) -> Iterator[tuple[Batch, Int[np.ndarray, ' R']]]:
  """Yield batches with every pair once, and the index of the pair of each row.

  The batches have two shapes at most.
  """
  config = BatchConfig(tokens=_TOKENS, shapes=_SHAPES, row_multiple=1)
  lengths = np.array([[len(x.source), len(x.target)] for x in pairs], np.int32)
  shapes = batching.choose_shapes(lengths, config)
  order = np.arange(len(pairs), dtype=np.int32)
  plan = batching.plan_epoch(
    order, batching.assign_shapes(lengths, shapes), tuple(shapes)
  )
  for index in range(plan.batches):
    shape, rows = plan.batch(index)
    yield batching.assemble([pairs[row] for row in rows], shape), rows


class Pass(NamedTuple):
  """A teacher-forced pass over a batch, and what each side sowed in it."""

  batch: Batch
  output: ModelOutput
  views: Mapping[str, Any]
  telemetry: Mapping[str, Any]


def watched(model: Transformer, parameters: Parameters, batch: Batch) -> Pass:
  """Run a pass without dropout."""
  output, sown = model.apply(
    {'params': parameters},
    batch.source,
    batch.source_lengths,
    batch.target,
    target_lengths=batch.target_lengths,
    mutable=['views', 'telemetry'],
  )
  return Pass(batch, output, sown.get('views', {}), sown.get('telemetry', {}))


def sums_over_text(
  analysed: RunWithText,
  measure: Callable[[Parameters, Batch], Any],
  models: Iterable[Parameters],
) -> Iterator[Any]:
  """Yield for each model what a pure function gives for a batch, summed up."""

  @jax.jit
  def step(parameters, total, batch):
    return jax.tree.map(jnp.add, total, measure(parameters, batch))

  for parameters in models:
    total = None
    for batch, _ in text_batches(analysed.pairs):
      if total is None:
        first = jax.eval_shape(measure, parameters, batch)
        total = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), first)
      total = step(parameters, total, batch)
    yield jax.device_get(total)


def token_masks(batch: Batch) -> Mapping[Side, Bool[Array, 'B T']]:
  """Return masks of the tokens of each side, including the end symbols."""
  sides: dict[Side, Any] = {
    'encoder': (batch.source, batch.source_lengths),
    'decoder': (batch.target, batch.target_lengths),
  }
  return {
    side: jnp.arange(ids.shape[1]) < lengths[:, None]
    for side, (ids, lengths) in sides.items()
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


def parts(
  tokens: Bool[Array, 'B T'], bins: Int[Array, 'B T']
) -> Float[Array, 'B T P']:
  """Mark the parts of the text that a position belongs to; part 0 is all."""
  place = jnp.arange(tokens.shape[1])[:, None] == jnp.arange(POSITIONS)
  every = jnp.ones((*tokens.shape, 1))
  places = jnp.broadcast_to(place, (*tokens.shape, POSITIONS))
  member = jnp.concatenate([every, places, jax.nn.one_hot(bins, BINS)], -1)
  return member * tokens[..., None]


def members_of(analysed: RunWithText) -> Callable[[Batch], Members]:
  """Return the function that marks the parts of the positions of a batch.

  A position of the decoder reads the subword before the one that it predicts.
  """
  start, bins = analysed.run.model.start_id, {}
  for side in SIDES:
    sentences = (pair.ids(side) for pair in analysed.pairs)
    counts = subword_counts(sentences, analysed.tokenizer(side))
    bins[side] = jnp.asarray(frequency_bins(counts))

  def members(batch: Batch) -> Members:
    masks, target = token_masks(batch), jnp.asarray(batch.target)
    subwords: dict[Subwords, tuple[Side, Int[Array, 'B T']]] = {
      'encoder': ('encoder', jnp.asarray(batch.source)),
      'decoder': ('decoder', shift_right(target, start)),
      'predicted': ('decoder', target),
    }
    return {
      name: parts(masks[side], bins[side][ids])
      for name, (side, ids) in subwords.items()
    }

  return members


class Sums(NamedTuple):
  """Sums [P, ...] over the positions of each part, and their numbers [P]."""

  values: Any
  counts: Any

  @property
  def means(self) -> Any:
    """Means over the whole text."""
    return jax.tree.map(lambda x: x[0] / self.counts[0], self.values)


def sums_by_part(
  analysed: RunWithText,
  measure: Callable[[Pass], Mapping[str, tuple[Subwords, Any]]],
) -> Mapping[str, Sums]:
  """Sum what is measured of the passes over each part of the text.

  It is, by name, by which subword a position is in a part, and a tree of arrays
  [B, T, ...]; of axes of length 1, every position has the same.
  """
  members = members_of(analysed)

  def sums(parameters, batch):
    of_batch, found = members(batch), {}
    seen = watched(analysed.run.model, parameters, batch)
    for name, (subwords, values) in measure(seen).items():
      add = functools.partial(_by_member, of_batch[subwords])
      counts = of_batch[subwords].sum((0, 1))
      found[name] = Sums(jax.tree.map(add, values), counts)
    return found

  (totals,) = sums_over_text(analysed, sums, [analysed.run.parameters])
  return {
    name: Sums(values, counts.astype(np.float64))
    for name, (values, counts) in totals.items()
  }


def _by_member(
  member: Float[Array, 'B T P'], values: Num[Array, '...']
) -> Float[Array, '...']:
  values = jnp.broadcast_to(values, (*member.shape[:2], *values.shape[2:]))
  token = member[..., 0].reshape(*member.shape[:2], *(1,) * (values.ndim - 2))
  # A position that is no token may have NaN.
  values = jnp.where(token > 0, values.astype(jnp.float32), 0)
  return jnp.einsum('BTP,BT...->P...', member, values)


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
