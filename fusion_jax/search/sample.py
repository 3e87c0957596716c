"""Sampling of translations, the same for a sentence in any batch.

Axis letters: B batch, K samples of a sentence, T positions, V vocabulary.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float32, Int32

from fusion_jax.search.constraints import (
  NO_RULES,
  Constraints,
  Requirements,
  TokenRules,
)
from fusion_jax.search.hypotheses import (
  CoverageScore,
  Hypotheses,
  LengthPenalty,
  Step,
  best_first,
  written,
)


@dataclasses.dataclass(frozen=True)
class Sampling:
  """Distribution from which tokens are drawn.

  Attributes:
    temperature: Divisor of the logits.
    top_k: Number of most probable tokens to draw from (Fan et al. 2018); 0
      draws from all.
    top_p: Draw from the fewest tokens that together have this probability
      (Holtzman et al. 2020); 1 draws from all.
    seed: Seed that, with the number of the sentence, decides what is drawn.
  """

  temperature: float = 1.0
  top_k: int = 0
  top_p: float = 1.0
  seed: int = 0


class _State(NamedTuple):
  """Samples so far; draws after the end of a sample are discarded."""

  position: Int32[Array, '']
  newest: Int32[Array, 'B K']
  alive: Bool[Array, 'B K']
  tokens: Int32[Array, 'B K T']
  token_log_probs: Float32[Array, 'B K T']
  added: Float32[Array, 'B K']
  cache: Any


@dataclasses.dataclass(frozen=True)
class _Draws:
  """Constants of all steps; see the arguments of `sample`."""

  step: Step
  keys: Array
  coverage_score: CoverageScore | None
  sampling: Sampling
  normalised: bool
  constraints: Constraints


def restrict(
  logits: Float32[Array, '*R V'], sampling: Sampling
) -> Float32[Array, '*R V']:
  """Restrict logits to the tokens that may be drawn; others become -inf.

  Args:
    logits: Logits of the model; -inf where a token is not allowed.
    sampling: Distribution; top-k is applied first, top-p to what it leaves.

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
  rules: TokenRules = NO_RULES,
  requirements: Requirements | None = None,
) -> Hypotheses:
  """Draw hypotheses of every sentence, token by token.

  Args:
    cache: Cache of the step, with K rows for each sentence.
    samples: Number K of samples of a sentence.
    max_length: Room T for the longest hypothesis.
    max_lengths: Limit of each sentence, int32; the end symbol follows there.
    numbers: Number of each sentence, int32. It decides the draw together with
      the seed; nothing else in the batch influences the draw.
    start_id: Token before the first.
    end_id: Token that ends a hypothesis.
    normalised: Whether the step's logits are log-probabilities already.
    rules: Tokens and n-grams that hypotheses must not contain.

  Returns:
    K hypotheses with the model's own log-probabilities, best first.
  """
  draws = _Draws(
    step,
    _keys(sampling.seed, numbers, samples),
    coverage_score,
    sampling,
    normalised,
    Constraints(rules, requirements, end_id, max_lengths).within(max_length),
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
  """Append one token to every sample."""
  position = state.position
  # A sample only extends itself: its positions stand in its own row.
  own = jnp.arange(state.tokens.shape[1], dtype=jnp.int32)[:, None]
  rows = jnp.broadcast_to(own, state.tokens.shape)
  logits, cache = draws.step(state.newest, position, rows, state.cache)
  log_p = logits if draws.normalised else jax.nn.log_softmax(logits)
  constraints = draws.constraints
  allowed = constraints.restricted(log_p, state.tokens, position)
  open_logits = restrict(allowed, draws.sampling)
  at_limit = position + 1 >= constraints.max_lengths[:, None]
  drawn = _draw(draws.keys, position, open_logits)
  token = jnp.where(at_limit, constraints.end_id, drawn)
  gain = jnp.take_along_axis(log_p, token[..., None], axis=-1)[..., 0]
  added = state.added
  if draws.coverage_score is not None:
    added = jnp.where(
      state.alive, draws.coverage_score(rows, position, cache), added
    )
  return _State(
    position + 1,
    token,
    state.alive & (token != constraints.end_id),
    written(state.tokens, position, jnp.where(state.alive, token, 0)),
    written(state.token_log_probs, position, jnp.where(state.alive, gain, 0)),
    added,
    cache,
  )


def _ranked(
  final: _State, divisors: Float32[Array, ' lengths'], end_id: int
) -> Hypotheses:
  """Sort the samples, best first; each ends in its one end symbol."""
  lengths = jnp.argmax(final.tokens == end_id, axis=-1).astype(jnp.int32) + 1
  total = final.token_log_probs.sum(-1)
  hypotheses = Hypotheses(
    final.tokens,
    lengths,
    total / divisors[lengths] + final.added,
    total,
    final.token_log_probs,
  )
  return best_first(hypotheses, lengths.shape[1])


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
