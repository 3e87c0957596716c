"""Samples of translations, the same for a sentence in any batch.

Axis letters: B batch, K samples of a sentence, T positions, V vocabulary.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float32, Int32

from fusion_jax.search.constraints import (
  Requirements,
  TokenRules,
  allowed_tokens,
  clipped_limits,
)
from fusion_jax.search.hypotheses import (
  CoverageScore,
  Hypotheses,
  LengthPenalty,
  Step,
  best_first,
  written,
)

_NO_RULES = TokenRules()


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
  """Samples so far; what has ended draws on and keeps nothing of it."""

  position: Int32[Array, '']
  newest: Int32[Array, 'B K']
  alive: Bool[Array, 'B K']
  tokens: Int32[Array, 'B K T']
  token_log_probs: Float32[Array, 'B K T']
  added: Float32[Array, 'B K']
  cache: Any


@dataclasses.dataclass(frozen=True)
class _Draws:
  """What stays the same in all steps; see the arguments of `sample`."""

  step: Step
  keys: Array
  end_id: int
  coverage_score: CoverageScore | None
  max_lengths: Int32[Array, ' B']
  sampling: Sampling
  normalised: bool
  rules: TokenRules
  requirements: Requirements | None


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
  coverage_score: CoverageScore | None = None,
  normalised: bool = False,
  rules: TokenRules = _NO_RULES,
  requirements: Requirements | None = None,
) -> Hypotheses:
  """Draws hypotheses of every sentence, token by token.

  Args:
    step: the model, as for `beam_search`.
    cache: of the step, with K rows a sentence.
    samples: of a sentence, K.
    max_length: room for the longest hypothesis, T.
    max_lengths: int32 limit of each sentence; there the end symbol follows.
    numbers: int32 number of each sentence; with the seed it decides the draw,
      and nothing else of the batch does.
    start_id: the token before the first.
    end_id: the token that ends a hypothesis.
    penalty: the length penalty of the scores.
    sampling: what is drawn from.
    coverage_score: is added to the scores; None: nothing is.
    normalised: the step's logits are log-probabilities already.
    rules: what hypotheses must not contain.
    requirements: shortest lengths and prefixes.

  Returns:
    K hypotheses with the model's own log-probabilities, best first.
  """
  draws = _Draws(
    step,
    _keys(sampling.seed, numbers, samples),
    end_id,
    coverage_score,
    clipped_limits(max_lengths, requirements, max_length),
    sampling,
    normalised,
    rules,
    requirements,
  )
  shape = len(numbers), samples, max_length
  state = _State(
    jnp.int32(0),
    jnp.full(shape[:2], start_id, jnp.int32),
    jnp.ones(shape[:2], bool),
    jnp.zeros(shape, jnp.int32),
    jnp.zeros(shape, jnp.float32),
    jnp.zeros(shape[:2], jnp.float32),
    cache,
  )
  final = jax.lax.while_loop(
    lambda state: state.alive.any(), functools.partial(_advance, draws), state
  )
  return _ranked(final, jnp.asarray(penalty.divisors(max_length)), end_id)


def _advance(draws: _Draws, state: _State) -> _State:
  """One more token of every sample."""
  position = state.position
  # A sample goes on with itself: its positions stand in its own row.
  own = jnp.arange(state.tokens.shape[1], dtype=jnp.int32)[:, None]
  rows = jnp.broadcast_to(own, state.tokens.shape)
  logits, cache = draws.step(state.newest, position, rows, state.cache)
  log_p = logits if draws.normalised else jax.nn.log_softmax(logits)
  open_logits = restrict(_open(draws, log_p, state), draws.sampling)
  at_limit = position + 1 >= draws.max_lengths[:, None]
  token = jnp.where(
    at_limit, draws.end_id, _draw(draws.keys, position, open_logits)
  )
  gain = jnp.take_along_axis(log_p, token[..., None], axis=-1)[..., 0]
  added = state.added
  if draws.coverage_score is not None:
    added = jnp.where(
      state.alive, draws.coverage_score(rows, position, cache), added
    )
  return _State(
    position + 1,
    token,
    state.alive & (token != draws.end_id),
    written(state.tokens, position, jnp.where(state.alive, token, 0)),
    written(state.token_log_probs, position, jnp.where(state.alive, gain, 0)),
    added,
    cache,
  )


def _ranked(
  final: _State, divisors: Float32[Array, ' lengths'], end_id: int
) -> Hypotheses:
  """The samples, best first; each has one end symbol, its last token."""
  lengths = jnp.argmax(final.tokens == end_id, axis=-1).astype(jnp.int32) + 1
  total = final.token_log_probs.sum(-1)
  found = Hypotheses(
    final.tokens,
    lengths,
    total / divisors[lengths] + final.added,
    total,
    final.token_log_probs,
  )
  return best_first(found, lengths.shape[1])


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
  draws: _Draws, log_p: Float32[Array, 'B K V'], state: _State
) -> Float32[Array, 'B K V']:
  """-inf where a token is not allowed."""
  allowed = allowed_tokens(
    draws.rules,
    draws.requirements,
    state.tokens,
    state.position,
    draws.end_id,
    log_p.shape[-1],
  )
  return log_p if allowed is None else jnp.where(allowed, log_p, -jnp.inf)
