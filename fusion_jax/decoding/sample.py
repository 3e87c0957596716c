"""Samples of translations, the same for a sentence in any batch.

Axis letters: B batch, K samples of a sentence, T positions, V vocabulary.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float32, Int32

from fusion_jax.decoding.constraints import (
  Requirements,
  TokenRules,
  allowed_tokens,
)
from fusion_jax.decoding.search import Hypotheses, LengthPenalty, Step


@dataclasses.dataclass(frozen=True)
class Sampling:
  """The distribution that is drawn from.

  Attributes:
    temperature: logits are divided by it.
    top_k: of the most probable tokens (Fan et al. 2018); 0: of all.
    top_p: of the fewest tokens that have this probability together (Holtzman
      et al. 2020); 1: of all.
    seed: with the number of the sentence it decides what is drawn.
  """

  temperature: float = 1.0
  top_k: int = 0
  top_p: float = 1.0
  seed: int = 0


class _State(NamedTuple):
  position: Int32[Array, '']
  tokens: Int32[Array, 'B K T']
  newest: Int32[Array, 'B K']
  lengths: Int32[Array, 'B K']
  log_probabilities: Float32[Array, 'B K']
  alive: Bool[Array, 'B K']
  cache: Any


def restrict(
  logits: Float32[Array, '*R V'], sampling: Sampling
) -> Float32[Array, '*R V']:
  """The logits that are drawn from; -inf where a token is left out.

  Args:
    logits: of the model; -inf where a token is not allowed.
    sampling: top-k is taken first, then top-p of what it leaves.

  Returns:
    The logits divided by the temperature.
  """
  logits = logits / sampling.temperature
  if 0 < sampling.top_k < logits.shape[-1]:
    least = jax.lax.top_k(logits, sampling.top_k)[0][..., -1:]
    logits = jnp.where(logits >= least, logits, -jnp.inf)
  if sampling.top_p < 1:
    falling = -jnp.sort(-logits, axis=-1)
    shares = jax.nn.softmax(falling, axis=-1)
    before = jnp.cumsum(shares, axis=-1) - shares
    kept = jnp.where(before < sampling.top_p, falling, jnp.inf)
    logits = jnp.where(logits >= kept.min(-1, keepdims=True), logits, -jnp.inf)
  return logits


def sample(
  step: Step,
  cache: Any,
  *,
  samples: int,
  max_length: int,
  max_lengths: Int32[Array, ' B'],
  numbers: Int32[Array, ' B'],
  start_id: int,
  end_id: int,
  penalty: LengthPenalty,
  sampling: Sampling,
  normalised: bool = False,
  rules: TokenRules | None = None,
  requirements: Requirements | None = None,
) -> Hypotheses:
  """Draws hypotheses of every sentence, token by token.

  Args:
    step: the model, as for `beam_search`.
    cache: of the step; every leaf [B, K, ...].
    samples: of a sentence, K.
    max_length: room for the longest hypothesis, T.
    max_lengths: int32 limit of each sentence; there the end symbol follows.
    numbers: int32 number of each sentence; with the seed it decides the draw,
      and nothing else of the batch does.
    start_id: the token before the first.
    end_id: the token that ends a hypothesis.
    penalty: the length penalty of the scores.
    sampling: what is drawn from.
    normalised: the step's logits are log-probabilities already.
    rules: what hypotheses must not contain.
    requirements: shortest lengths and prefixes.

  Returns:
    K hypotheses with the model's own log-probabilities, best first.
  """
  batch = len(numbers)
  if requirements is not None:
    max_lengths = requirements.limits(max_lengths)
  max_lengths = jnp.clip(max_lengths, 1, max_length)
  divisors = jnp.asarray(penalty.divisors(max_length))
  keys = _keys(sampling.seed, numbers, samples)

  def advance(state: _State) -> _State:
    logits, cache = step(state.newest, state.position, state.cache)
    log_p = logits if normalised else jax.nn.log_softmax(logits)
    open_logits = _open(log_p, state, rules, requirements, end_id)
    drawn = _draw(keys, state.position, restrict(open_logits, sampling))
    at_limit = state.position + 1 >= max_lengths[:, None]
    token = jnp.where(at_limit, end_id, drawn)
    gain = jnp.take_along_axis(log_p, token[..., None], axis=-1)[..., 0]
    here = jnp.arange(max_length) == state.position
    written = jnp.where(state.alive, token, 0)[..., None]
    return _State(
      state.position + 1,
      jnp.where(here, written, state.tokens),
      token,
      state.lengths + state.alive,
      state.log_probabilities + jnp.where(state.alive, gain, 0),
      state.alive & (token != end_id),
      cache,
    )

  final = jax.lax.while_loop(
    lambda state: state.alive.any(),
    advance,
    _State(
      jnp.int32(0),
      jnp.zeros((batch, samples, max_length), jnp.int32),
      jnp.full((batch, samples), start_id, jnp.int32),
      jnp.zeros((batch, samples), jnp.int32),
      jnp.zeros((batch, samples), jnp.float32),
      jnp.ones((batch, samples), bool),
      cache,
    ),
  )
  scores = final.log_probabilities / divisors[final.lengths]
  found = Hypotheses(
    final.tokens, final.lengths, scores, final.log_probabilities
  )
  order = jnp.argsort(-scores, axis=1)
  return jax.tree.map(
    lambda leaf: jax.vmap(lambda row, at: row[at])(leaf, order), found
  )


def _keys(seed: int, numbers: Int32[Array, ' B'], samples: int) -> Array:
  fold = jax.vmap(jax.random.fold_in, (None, 0))
  sentences = fold(jax.random.key(seed), numbers)
  return jax.vmap(fold, (0, None))(sentences, jnp.arange(samples))


def _draw(
  keys: Array, position: Int32[Array, ''], logits: Float32[Array, 'B K V']
) -> Int32[Array, 'B K']:
  def one(key, row):
    return jax.random.categorical(jax.random.fold_in(key, position), row)

  return jax.vmap(jax.vmap(one))(keys, logits).astype(jnp.int32)


def _open(
  log_p: Float32[Array, 'B K V'],
  state: _State,
  rules: TokenRules | None,
  requirements: Requirements | None,
  end_id: int,
) -> Float32[Array, 'B K V']:
  allowed = allowed_tokens(
    rules or TokenRules(),
    requirements,
    state.tokens,
    state.position,
    end_id,
    log_p.shape[-1],
  )
  return log_p if allowed is None else jnp.where(allowed, log_p, -jnp.inf)
