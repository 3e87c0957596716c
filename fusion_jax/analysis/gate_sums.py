"""Moments of the gates of lexical shortcuts over parts of a text.

The parts are all positions, each of the first positions of a sentence, and each
frequency bin of subwords.

Axis letters: B batch, T positions, D model width, L layers, K gates (of keys
and of values), M moments, P parts, V vocabulary.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from fusion_jax.analysis.frequency import BINS, frequency_bins, subword_counts
from fusion_jax.analysis.passes import over_text, watched
from fusion_jax.analysis.run_with_text import RunWithText
from fusion_jax.analysis.token_means import token_masks, zeros_like
from fusion_jax.config import ModelConfig, Side
from fusion_jax.models.transformer import shift_right

# Number of first positions of a sentence that are parts of their own.
POSITIONS = 20
KINDS = 'key_gate', 'value_gate'


class Place(NamedTuple):
  """An attention of a model that has gates.

  Attributes:
    side: Side of the stack.
    attention: 'self_attention' or 'cross_attention'.
    text: Side of the positions that the gates belong to.
  """

  side: Side
  attention: str
  text: Side

  @property
  def name(self) -> str:
    """The name to display: 'decoder cross-attention'."""
    return f'{self.side} {self.attention.replace("_", "-")}'


class PlaceMoments(NamedTuple):
  """Moments of one place; parts without positions have NaN.

  Attributes:
    mean: Mean over the positions of a part and all features.
    deviation: Standard deviation over the same.
    counts: Number of positions of every part.
  """

  mean: Float[np.ndarray, 'P L 2']
  deviation: Float[np.ndarray, 'P L 2']
  counts: Int[np.ndarray, ' P']


def gate_places(config: ModelConfig) -> list[Place]:
  """Return the attentions of a model that have gates."""
  encoder, decoder = config.encoder.shortcut, config.decoder.shortcut
  places = []
  if encoder.source != 'none':
    places.append(Place('encoder', 'self_attention', 'encoder'))
  if decoder.source != 'none' and decoder.where != 'cross':
    places.append(Place('decoder', 'self_attention', 'decoder'))
  if decoder.source != 'none' and decoder.where != 'self':
    places.append(Place('decoder', 'cross_attention', 'encoder'))
  return places


def gate_moments(subject: RunWithText) -> Mapping[Place, PlaceMoments]:
  """Measure mean and deviation of the gates of every place by part of a text.

  Args:
    subject: Run and text to measure.

  Returns:
    Moments with the parts in this order: all, the first positions, the
    frequency bins. End symbols count in the first two. The subword that is
    binned is the one that the position reads, in the decoder the previous one.
  """
  run, places = subject.run, gate_places(subject.run.config.model)
  bins = _bins(subject)

  def sums(parameters, batch):
    _, kept = watched(run.model, parameters, batch, 'views')
    masks = token_masks(batch)
    read = {
      'encoder': batch.source,
      'decoder': shift_right(batch.target, run.model.start_id),
    }
    return [
      _sums(
        _gates(kept['views'][place.side], place.attention),
        parts(masks[place.text], bins[place.text][read[place.text]]),
      )
      for place in places
    ]

  def step(parameters, total, batch):
    return jax.tree.map(jnp.add, total, sums(parameters, batch))

  totals = over_text(subject, step, zeros_like(subject, sums))
  return {
    place: _moments(*total) for place, total in zip(places, totals, strict=True)
  }


def _bins(subject: RunWithText) -> Mapping[Side, Int[Array, ' V']]:
  """Bin the subwords by the text's own counts, without start and end."""
  run = subject.run
  sources = (pair.source for pair in subject.pairs)
  targets = (pair.target for pair in subject.pairs)
  counts: dict[Side, Int[np.ndarray, ' V']] = {
    'encoder': subword_counts(sources, run.source_tokenizer),
    'decoder': subword_counts(targets, run.target_tokenizer),
  }
  return {
    side: jnp.asarray(frequency_bins(own)) for side, own in counts.items()
  }


def _gates(
  shown: Mapping[str, Any], attention: str
) -> list[Float[Array, 'L B T D']]:
  """Return the gates of keys and of values."""
  if 'layers' in shown:
    return [shown['layers'][attention][kind] for kind in KINDS]
  names = [name for name in shown if name.startswith('layer_')]
  layers = [
    shown[name][attention]
    for name in sorted(names, key=lambda name: int(name[len('layer_') :]))
    if attention in shown[name]
  ]
  return [jnp.stack([layer[kind] for layer in layers]) for kind in KINDS]


def parts(
  tokens: Bool[Array, 'B T'], bins: Int[Array, 'B T']
) -> Float[Array, 'B T P']:
  """Mark the parts of the text that a position belongs to with 1.

  Args:
    tokens: True at positions that count.
    bins: Bin of the subword that every position reads; -1 for none.
  """
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


def _sums(
  gates: list[Float[Array, 'L B T D']], member: Float[Array, 'B T P']
) -> tuple[Float[Array, 'P L 2 2'], Float[Array, ' P']]:
  """Sum the means and mean squares over features; count the positions."""
  both = jnp.stack(gates)
  features = jnp.stack([both.mean(-1), jnp.square(both).mean(-1)])
  sums = jnp.einsum('BTP,MKLBT->PLKM', member, features)
  return sums, member.sum((0, 1))


def _moments(
  sums: Float[np.ndarray, 'P L 2 2'], counts: Float[np.ndarray, ' P']
) -> PlaceMoments:
  filled = np.where(counts > 0, counts, np.nan)[:, None, None]
  mean, square = np.moveaxis(np.asarray(sums, np.float64), -1, 0) / filled
  deviation = np.sqrt(np.maximum(square - mean**2, 0))
  return PlaceMoments(mean, deviation, counts.astype(np.int64))
