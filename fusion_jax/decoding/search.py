"""Beam search that knows no model; a beam of one is greedy search.

The objective is that of Wu et al. (2016), section 7, Eq. 14: the translation Y
with the highest log P(Y) / penalty(|Y|). |Y| counts the end symbol.

Axis letters: B batch, K beam, C candidates, N hypotheses returned, T positions,
V vocabulary.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float32, Int32

from fusion_jax.decoding.constraints import (
  Requirements,
  TokenRules,
  allowed_tokens,
)

# (tokens [B, K], position, cache) -> (logits [B, K, V], cache). Every leaf of
# the cache is [B, K, ...].
Step = Callable[
  [Int32[Array, 'B K'], Int32[Array, ''], Any],
  tuple[Float32[Array, 'B K V'], Any],
]

_NO_RULES = TokenRules()

# No hypothesis. Infinite, so that nothing added to it makes it one.
_NONE = -jnp.inf

# Rows of scores are searched in chunks of so many for their largest elements;
# measured to be the fastest for 8,000 and for 32,000 columns on a CPU.
_CHUNK = 64


@dataclasses.dataclass(frozen=True)
class LengthPenalty:
  """What the log-probability of a hypothesis is divided by.

  Attributes:
    form: 'gnmt': ((5 + length) / 6)^alpha (Wu et al. 2016, Eq. 14).
      'length': length^alpha. 'none': 1.
    alpha: at least 0, so that the divisor does not fall as the length grows;
      the bound that ends the search rests on it.
  """

  form: Literal['gnmt', 'length', 'none'] = 'gnmt'
  alpha: float = 0.6

  def __post_init__(self):
    if self.alpha < 0:
      raise ValueError(f'alpha must be >= 0, got {self.alpha}')

  def divisors(self, max_length: int) -> Float32[np.ndarray, ' lengths']:
    """The divisors of lengths 0 to max_length.

    A table, because a power computed on the device may round differently in
    arrays of different sizes.
    """
    lengths = np.maximum(np.arange(max_length + 1), 1)
    bases = {
      'gnmt': (5 + lengths) / 6,
      'length': lengths.astype(np.float64),
      'none': np.ones(max_length + 1),
    }
    return (bases[self.form] ** self.alpha).astype(np.float32)


class Hypotheses(NamedTuple):
  """Finished hypotheses of each sentence, best first.

  tokens: end in the end symbol, followed by zeros; no start symbol.
  lengths: tokens, the end symbol included; 0 where a sentence has fewer
    hypotheses than there is room for.
  scores: log_probabilities divided by the length penalty; -inf where length
    is 0.
  log_probabilities: sums over the tokens, the end symbol included.
  """

  tokens: Int32[Array, 'B N T']
  lengths: Int32[Array, 'B N']
  scores: Float32[Array, 'B N']
  log_probabilities: Float32[Array, 'B N']


class _Candidates(NamedTuple):
  """The best one-token extensions of the live hypotheses, best first."""

  parents: Int32[Array, 'B C']
  tokens: Int32[Array, 'B C']
  log_probabilities: Float32[Array, 'B C']


class _State(NamedTuple):
  """What a step reads and replaces.

  Live hypotheses have `position` tokens each. A sentence without a live
  hypothesis (all log_probabilities -inf) is done.

  The leaves of the cache are [B * K, ...] here: for [B, K, ...] XLA chooses
  one layout between the steps and another inside them, and copies the cache
  three times a step (measured on a CPU: greedy search takes twice as long).
  """

  position: Int32[Array, '']
  tokens: Int32[Array, 'B K T']
  newest: Int32[Array, 'B K']
  log_probabilities: Float32[Array, 'B K']
  finished: Hypotheses
  cache: Any


def beam_search(
  step: Step,
  cache: Any,
  *,
  batch: int,
  beam: int,
  max_length: int,
  max_lengths: Int32[Array, ' B'],
  start_id: int,
  end_id: int,
  penalty: LengthPenalty,
  keep: int | None = None,
  normalised: bool = False,
  patience: float = 0.0,
  rules: TokenRules = _NO_RULES,
  requirements: Requirements | None = None,
) -> Hypotheses:
  """Searches for the best hypotheses of every sentence.

  Each step extends the K live hypotheses of a sentence by every token and
  takes the 2K best extensions: those that end go to the finished ones, the
  best K others live on. With K = 1 it takes the one best extension, which is
  greedy search. At the limit of its sentence a live hypothesis is extended by
  the end symbol only, so that every score is the model's score of a complete
  translation.

  A sentence is done when nothing live can come to score more than the worst
  hypothesis kept. Log-probabilities only fall and the divisor is largest at
  the limit, so log P / penalty(limit) bounds what a live hypothesis can reach.
  Stopping there never changes the result, and no sentence depends on another.

  Args:
    step: the model; it sees start_id at position 0 and the newest token of
      each live hypothesis afterwards.
    cache: of the step; every leaf [B, K, ...].
    batch: sentences, B.
    beam: live hypotheses of a sentence, K.
    max_length: room for the longest hypothesis, T.
    max_lengths: int32 limit of each sentence, the end symbol included; values
      outside 1 to max_length are clipped.
    start_id: the token before the first.
    end_id: the token that ends a hypothesis.
    penalty: the length penalty.
    keep: hypotheses to return, N; None for K. Fewer end the search sooner.
    normalised: the step's logits are log-probabilities already.
    patience: a sentence is also done when so many times K hypotheses are
      finished (Kasai et al. 2022); fewer than N are N. 0: only when nothing
      better can come.
    rules: what hypotheses must not contain.
    requirements: shortest lengths and prefixes. The limit of a sentence is
      at least one more than its prefix; it goes before the shortest length.

  Returns:
    The hypotheses, best first; equal scores in the order of their ending.
  """
  if requirements is not None:
    max_lengths = requirements.limits(max_lengths)
  max_lengths = jnp.clip(max_lengths, 1, max_length)
  keep = keep or beam
  enough = max(round(patience * beam), keep) if patience else 0
  divisors = jnp.asarray(penalty.divisors(max_length))

  def advance(state: _State) -> _State:
    logits, cache = step(
      state.newest, state.position, _split_beams(state.cache, beam)
    )
    at_limit = state.position + 1 >= max_lengths
    allowed = allowed_tokens(
      rules,
      requirements,
      state.tokens,
      state.position,
      end_id,
      logits.shape[-1],
    )
    candidates = _extend(
      logits, allowed, state.log_probabilities, at_limit, end_id, normalised
    )
    tokens = _sequences(state.tokens, candidates, state.position)
    ends = candidates.tokens == end_id
    finished = _merge(
      state.finished,
      tokens,
      jnp.where(ends, candidates.log_probabilities, _NONE),
      state.position + 1,
      divisors,
    )
    alive, chosen = jax.lax.top_k(
      jnp.where(ends, _NONE, candidates.log_probabilities), beam
    )
    bounds = alive[:, 0] / divisors[max_lengths]
    done = finished.scores[:, keep - 1] >= bounds
    if enough:
      done |= finished.lengths[:, enough - 1] > 0
    return _State(
      position=state.position + 1,
      tokens=_select(tokens, chosen),
      newest=_select(candidates.tokens, chosen),
      log_probabilities=jnp.where(done[:, None], _NONE, alive),
      finished=finished,
      cache=_merge_beams(_reorder(cache, _select(candidates.parents, chosen))),
    )

  room = max(keep, enough)
  state = _start(cache, batch, beam, room, max_length, start_id)
  finished = jax.lax.while_loop(_any_alive, advance, state).finished
  return jax.tree.map(lambda leaf: leaf[:, :keep], finished)


def top_k(
  scores: Float32[Array, 'R V'], k: int
) -> tuple[Float32[Array, 'R {k}'], Int32[Array, 'R {k}']]:
  """The k largest elements of every row, as `jax.lax.top_k`, but fast.

  In two levels: the k chunks with the largest maxima, then the k largest
  elements inside them. It is exact: an element outside those chunks has k
  elements before it, one in each. Equal elements come in the order of their
  columns, because the chunks chosen are searched in the order of theirs.

  Args:
    scores: the rows.
    k: at most V.

  Returns:
    The elements in falling order, and their columns.
  """
  rows, columns = scores.shape
  chunks = -(-columns // _CHUNK)
  if chunks <= 2 * k:
    return tuple(jax.lax.top_k(scores, k))
  padding = ((0, 0), (0, chunks * _CHUNK - columns))
  padded = jnp.pad(scores, padding, constant_values=_NONE)
  maxima = padded.reshape(rows, chunks, _CHUNK).max(axis=-1)
  chosen = jnp.sort(jax.lax.top_k(maxima, k)[1], axis=-1)
  # [R, k] -> [R, k * _CHUNK]
  places = chosen[:, :, None] * _CHUNK + jnp.arange(_CHUNK)
  places = places.reshape(rows, k * _CHUNK)
  inside = jnp.take_along_axis(scores, jnp.minimum(places, columns - 1), axis=1)
  inside = jnp.where(places < columns, inside, _NONE)
  largest, order = jax.lax.top_k(inside, k)
  return largest, jnp.take_along_axis(places, order, axis=1)


def _start(
  cache: Any,
  batch: int,
  beam: int,
  keep: int,
  max_length: int,
  start_id: int,
) -> _State:
  """One live hypothesis a sentence, the empty one; none finished."""
  alive = jnp.where(jnp.arange(beam) == 0, 0.0, _NONE)
  return _State(
    position=jnp.int32(0),
    tokens=jnp.zeros((batch, beam, max_length), jnp.int32),
    newest=jnp.full((batch, beam), start_id, jnp.int32),
    log_probabilities=jnp.tile(alive.astype(jnp.float32), (batch, 1)),
    finished=Hypotheses(
      jnp.zeros((batch, keep, max_length), jnp.int32),
      jnp.zeros((batch, keep), jnp.int32),
      jnp.full((batch, keep), _NONE, jnp.float32),
      jnp.full((batch, keep), _NONE, jnp.float32),
    ),
    cache=_merge_beams(cache),
  )


def _any_alive(state: _State) -> Array:
  return jnp.any(state.log_probabilities > _NONE)


def _extend(
  logits: Float32[Array, 'B K V'],
  allowed: Bool[Array, '#B #K V'] | None,
  alive: Float32[Array, 'B K'],
  at_limit: Array,
  end_id: int,
  normalised: bool,
) -> _Candidates:
  """The best allowed extensions; at the limit, each hypothesis with its end.

  The logits are read twice and never copied: the best of a row need no more
  than its largest logits and the logarithm of its normaliser.
  """
  batch, beam, vocabulary = logits.shape
  count = 2 * beam if beam > 1 else 1
  each = min(count, vocabulary)
  # [B, K, V] -> [B * K, each] -> [B, K * each]
  open_logits = logits
  if allowed is not None:
    open_logits = jnp.where(allowed, logits, _NONE)
  largest, tokens = top_k(open_logits.reshape(batch * beam, vocabulary), each)
  normaliser = (
    jnp.zeros((batch, beam))
    if normalised
    else jax.nn.logsumexp(logits, axis=-1)
  )
  gains = largest.reshape(batch, beam, each) - normaliser[:, :, None]
  scores = alive[:, :, None] + gains
  scores, order = jax.lax.top_k(scores.reshape(batch, beam * each), count)
  tokens = _select(tokens.reshape(batch, beam * each), order)
  spare = ((0, 0), (0, count - beam))
  ends = alive + (logits[:, :, end_id] - normaliser)
  ends = jnp.pad(ends, spare, constant_values=_NONE)
  every = jnp.pad(jnp.arange(beam, dtype=jnp.int32), spare[1])
  at_limit = at_limit[:, None]
  return _Candidates(
    parents=jnp.where(at_limit, every, order // each),
    tokens=jnp.where(at_limit, jnp.int32(end_id), tokens),
    log_probabilities=jnp.where(at_limit, ends, scores),
  )


def _sequences(
  tokens: Int32[Array, 'B K T'],
  candidates: _Candidates,
  position: Int32[Array, ''],
) -> Int32[Array, 'B C T']:
  """The tokens of the candidates."""
  here = jnp.arange(tokens.shape[-1]) == position
  return jnp.where(
    here,
    candidates.tokens[:, :, None],
    _select(tokens, candidates.parents),
  )


def _merge(
  finished: Hypotheses,
  tokens: Int32[Array, 'B C T'],
  log_probabilities: Float32[Array, 'B C'],
  length: Int32[Array, ''],
  divisors: Float32[Array, ' lengths'],
) -> Hypotheses:
  """The best of the finished hypotheses and the candidates that end now.

  Those that have not ended have log-probability -inf. They come after the
  finished ones, so they never take the place of an equal.
  """
  ended = Hypotheses(
    tokens,
    jnp.where(log_probabilities > _NONE, length, 0),
    log_probabilities / divisors[length],
    log_probabilities,
  )
  both = jax.tree.map(
    lambda old, new: jnp.concatenate([old, new], axis=1), finished, ended
  )
  _, order = jax.lax.top_k(both.scores, finished.scores.shape[1])
  return jax.tree.map(lambda leaf: _select(leaf, order), both)


def _select(rows: Array, index: Int32[Array, 'B J']) -> Array:
  """rows[b, index[b, j]] for every b and j: [B, I, ...] -> [B, J, ...]."""
  return jax.vmap(
    lambda one, chosen: one.at[chosen].get(mode='promise_in_bounds')
  )(rows, index)


def _reorder(cache: Any, parents: Int32[Array, 'B K']) -> Any:
  """Gives every live hypothesis the cache of its parent."""
  if parents.shape[1] == 1:
    return cache
  return jax.tree.map(lambda leaf: _select(leaf, parents), cache)


def _split_beams(cache: Any, beam: int) -> Any:
  """Leaves [B * K, ...] as [B, K, ...]."""
  return jax.tree.map(
    lambda leaf: leaf.reshape(-1, beam, *leaf.shape[1:]), cache
  )


def _merge_beams(cache: Any) -> Any:
  """Leaves [B, K, ...] as [B * K, ...]."""
  return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), cache)
