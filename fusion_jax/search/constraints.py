"""Constraints of a search: required prefixes and lengths, forbidden tokens.

The probabilities stay those of the model: a token that is not allowed is left
out of the search, and the remaining ones are not scaled up to sum to 1. A
hypothesis then has the score that `score` gives it.

Axis letters: B batch, K beam, T positions, V vocabulary, P prefix, N length of
the n-grams, W windows of T.
"""

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float32, Int32


@dataclasses.dataclass(frozen=True)
class TokenRules:
  """Rules for all sentences, compiled into the search."""

  forbidden: tuple[int, ...] = ()
  # Size of the n-grams that must not occur twice in a hypothesis (Paulus et al.
  # 2018, section 2.5); 0 allows repetition.
  no_repeat_ngram: int = 0


NO_RULES = TokenRules()


class Requirements(NamedTuple):
  """Requirements of each sentence; no prefixes are None."""

  min_lengths: Int32[Array | np.ndarray, ' B']  # The end symbol included.
  # First tokens, as far as prefix_lengths. They may be forbidden tokens and may
  # repeat n-grams.
  prefixes: Int32[Array | np.ndarray, 'B P'] | None = None
  prefix_lengths: Int32[Array | np.ndarray, ' B'] | None = None


@dataclasses.dataclass(frozen=True)
class Constraints:
  """All constraints of a batch of sentences."""

  rules: TokenRules
  requirements: Requirements | None
  end_id: int  # Token that ends a hypothesis.
  max_lengths: Int32[Array, ' B']  # The end symbol included.

  def within(self, max_length: int) -> 'Constraints':
    """Return these with limits within 1 and the room `max_length`.

    A sentence gets room for its prefix and an end symbol.
    """
    limits, required = self.max_lengths, self.requirements
    if required is not None and required.prefix_lengths is not None:
      limits = jnp.maximum(limits, required.prefix_lengths + 1)
    limits = jnp.clip(limits, 1, max_length)
    return dataclasses.replace(self, max_lengths=limits)

  def restricted(
    self,
    logits: Float32[Array, 'B K V'],
    tokens: Int32[Array, 'B K T'],
    position: Int32[Array, ''],
  ) -> Float32[Array, 'B K V']:
    """Set the logits of tokens that may not come next to -inf.

    The live hypotheses have `position` tokens each.
    """
    allowed = self._allowed(tokens, position, logits.shape[-1])
    return logits if allowed is None else jnp.where(allowed, logits, -jnp.inf)

  def _allowed(
    self,
    tokens: Int32[Array, 'B K T'],
    position: Int32[Array, ''],
    vocabulary: int,
  ) -> Bool[Array, '#B #K V'] | None:
    """Return True for each allowed token; None if all are always allowed."""
    allowed, rules, required = None, self.rules, self.requirements
    if rules.forbidden:
      forbidden = jnp.array(rules.forbidden)
      allowed = jnp.ones((1, 1, vocabulary), bool).at[..., forbidden].set(False)
    if rules.no_repeat_ngram:
      fresh = ~repeated(tokens, position, rules.no_repeat_ngram, vocabulary)
      allowed = fresh if allowed is None else allowed & fresh
    if required is None:
      return allowed
    if allowed is None:
      allowed = jnp.ones((1, 1, vocabulary), bool)
    every = jnp.arange(vocabulary)
    early = position + 1 < required.min_lengths[:, None, None]
    allowed &= ~(early & (every == self.end_id))
    if required.prefixes is None or required.prefix_lengths is None:
      return allowed
    last = max(required.prefixes.shape[1] - 1, 0)
    forced = position < required.prefix_lengths
    here = jnp.take(required.prefixes, jnp.minimum(position, last), axis=1)
    only = every == here[:, None, None]
    return jnp.where(forced[:, None, None], only, allowed)


def repeated(
  tokens: Int32[Array, 'B K T'],
  position: Int32[Array, ''],
  size: int,
  vocabulary: int,
) -> Bool[Array, 'B K V']:
  """Find the tokens that would complete an n-gram of the first `position`."""
  batch, beam, length = tokens.shape
  count = length - size + 1
  if count < 1:
    return jnp.zeros((batch, beam, vocabulary), bool)
  starts = jnp.arange(count)
  same = starts + size <= position
  for offset in range(size - 1):
    newest = jnp.take(tokens, position - size + 1 + offset, axis=-1)
    same = same & (tokens[..., offset : offset + count] == newest[..., None])
  same = jnp.broadcast_to(same, (batch, beam, count))
  rows = jnp.arange(batch)[:, None, None], jnp.arange(beam)[None, :, None]
  return (
    jnp.zeros((batch, beam, vocabulary), bool)
    .at[(*rows, tokens[..., size - 1 :])]
    .max(same)
  )
