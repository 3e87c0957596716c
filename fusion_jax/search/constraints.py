"""What a hypothesis must begin with and must not contain.

The probabilities stay the model's: a token that is not allowed is left out of
the search, and those that remain are not scaled up to sum to 1. A hypothesis
then has the score that `score` gives it.

Axis letters: B batch, K beam, T positions, V vocabulary, P prefix, N length of
the n-grams, W windows of T.
"""

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int32


@dataclasses.dataclass(frozen=True)
class TokenRules:
  """What holds for all sentences, and is compiled into the search.

  Attributes:
    forbidden: tokens that are never extended by.
    no_repeat_ngram: no n-gram of this size stands twice in a hypothesis
      (Paulus et al. 2018, section 2.5); 0: any may.
  """

  forbidden: tuple[int, ...] = ()
  no_repeat_ngram: int = 0


class Requirements(NamedTuple):
  """What holds for each sentence.

  min_lengths: the fewest tokens, the end symbol included.
  prefixes: the first tokens, as far as prefix_lengths; they may be forbidden
    ones and may repeat n-grams. None: no sentence has any.
  prefix_lengths: how many.
  """

  min_lengths: Int32[Array | np.ndarray, ' B']
  prefixes: Int32[Array | np.ndarray, 'B P'] | None = None
  prefix_lengths: Int32[Array | np.ndarray, ' B'] | None = None


def clipped_limits(
  max_lengths: Int32[Array, ' B'],
  requirements: Requirements | None,
  max_length: int,
) -> Int32[Array, ' B']:
  """The most tokens of each sentence, the end symbol included.

  Args:
    max_lengths: as asked for.
    requirements: a sentence has room for its prefix and an end symbol.
    max_length: the room there is.

  Returns:
    From 1 to max_length.
  """
  if requirements is not None and requirements.prefix_lengths is not None:
    max_lengths = jnp.maximum(max_lengths, requirements.prefix_lengths + 1)
  return jnp.clip(max_lengths, 1, max_length)


def allowed_tokens(
  rules: TokenRules,
  requirements: Requirements | None,
  tokens: Int32[Array, 'B K T'],
  position: Int32[Array, ''],
  end_id: int,
  vocabulary: int,
) -> Bool[Array, '#B #K V'] | None:
  """Which tokens may come next.

  Args:
    rules: for all sentences.
    requirements: for each sentence; None: there are none.
    tokens: of the live hypotheses, `position` of them each.
    position: where the next token stands, from 0.
    end_id: the token that ends a hypothesis.
    vocabulary: V.

  Returns:
    True where it may; None where all may, always.
  """
  allowed = None
  if rules.forbidden:
    forbidden = jnp.array(rules.forbidden)
    allowed = jnp.ones((1, 1, vocabulary), bool).at[..., forbidden].set(False)
  if rules.no_repeat_ngram:
    fresh = ~repeated(tokens, position, rules.no_repeat_ngram, vocabulary)
    allowed = fresh if allowed is None else allowed & fresh
  if requirements is None:
    return allowed
  if allowed is None:
    allowed = jnp.ones((1, 1, vocabulary), bool)
  every = jnp.arange(vocabulary)
  early = position + 1 < requirements.min_lengths[:, None, None]
  allowed &= ~(early & (every == end_id))
  if requirements.prefixes is None:
    return allowed
  last = max(requirements.prefixes.shape[1] - 1, 0)
  forced = position < requirements.prefix_lengths
  here = jnp.take(requirements.prefixes, jnp.minimum(position, last), axis=1)
  only = every == here[:, None, None]
  return jnp.where(forced[:, None, None], only, allowed)


def repeated(
  tokens: Int32[Array, 'B K T'],
  position: Int32[Array, ''],
  size: int,
  vocabulary: int,
) -> Bool[Array, 'B K V']:
  """Which tokens would complete an n-gram that has been there.

  Args:
    tokens: of the hypotheses, `position` of them each.
    position: where the next token stands, from 0.
    size: N.
    vocabulary: V.

  Returns:
    True where the token would.
  """
  batch, beam, room = tokens.shape
  count = room - size + 1
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
