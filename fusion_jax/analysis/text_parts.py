"""Parts of a text: all of it, first positions, and frequency bins.

Means are taken over all positions, over each of the first positions of the
sentences, and over the positions that read subwords of a frequency bin.

Axis letters: B batch, T positions, P parts.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Num

from fusion_jax.analysis.frequency import BINS, frequency_bins, subword_counts
from fusion_jax.analysis.passes import token_masks
from fusion_jax.analysis.run_with_text import RunWithText
from fusion_jax.analysis.view import nullable
from fusion_jax.config import Side
from fusion_jax.data.batching import Batch
from fusion_jax.models.transformer import shift_right

# Number of first positions of a sentence that are parts of their own.
POSITIONS = 20
# Parts of a text; part 0 is all of it.
_PARTS = {
  'position': slice(1, 1 + POSITIONS),
  'frequency': slice(1 + POSITIONS, 1 + POSITIONS + BINS),
}
# What the numbers of the parts are, for the axis of a figure.
LABELS: Mapping[str, str] = {
  'position': 'position in the sentence',
  'frequency': 'tenth of the text, 1: rarest subwords',
}

# The parts that each position of a batch belongs to, by side.
Members = Mapping[Side, Float[Array, 'B T P']]


def parts(
  tokens: Bool[Array, 'B T'], bins: Int[Array, 'B T']
) -> Float[Array, 'B T P']:
  """Mark the parts of the text that a position belongs to with 1."""
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

  Subwords are binned by the text's own counts, without start and end. A
  position of the decoder reads the subword before the one that it predicts.
  """
  run = analysed.run
  sources = (pair.source for pair in analysed.pairs)
  targets = (pair.target for pair in analysed.pairs)
  counts: dict[Side, Int[np.ndarray, ' V']] = {
    'encoder': subword_counts(sources, run.source_tokenizer),
    'decoder': subword_counts(targets, run.target_tokenizer),
  }
  bins = {
    side: jnp.asarray(frequency_bins(own)) for side, own in counts.items()
  }

  def members(batch: Batch) -> Members:
    masks = token_masks(batch)
    read: dict[Side, Int[Array, 'B T']] = {
      'encoder': jnp.asarray(batch.source),
      'decoder': shift_right(jnp.asarray(batch.target), run.model.start_id),
    }
    return {side: parts(masks[side], bins[side][read[side]]) for side in bins}

  return members


def moments(
  sums: Float[np.ndarray, 'P *rest 2'], counts: Float[np.ndarray, ' P']
) -> Mapping[str, Float[np.ndarray, 'P *rest']]:
  """Return the mean and the deviation of every part; NaN where it is empty."""
  filled = np.where(counts > 0, counts, np.nan)
  filled = filled.reshape(-1, *(1,) * (sums.ndim - 2))
  mean, square = np.moveaxis(sums.astype(np.float64), -1, 0) / filled
  deviation = np.sqrt(np.maximum(square - mean**2, 0))
  return {'mean': mean, 'deviation': deviation}


def by_part(values: Num[np.ndarray, 'P *rest'], whole: str) -> dict[str, Any]:
  """Return JSON numbers of the whole text, by position and by frequency."""
  finite = nullable(values)
  return {whole: finite[0]} | {
    part: finite[own] for part, own in _PARTS.items()
  }


def positions_by_part(counts: Float[np.ndarray, ' P']) -> dict[str, Any]:
  """Return the number of positions, in total and of each part."""
  return by_part(counts.astype(int), 'all')
