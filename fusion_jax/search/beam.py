"""Beam search, independent of the model; a beam of one is greedy search.

The objective is that of Wu et al. (2016), section 7, Eq. 14: the translation Y
with the highest log P(Y) / penalty(|Y|). |Y| counts the end symbol.

Axis letters: B batch, K beam, C candidates, N hypotheses returned, T positions,
V vocabulary.
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
  CompactBatch,
  CoverageScore,
  Hypotheses,
  LengthPenalty,
  Step,
  best_first,
  select,
  written,
)

# When a quarter of the sentences is left, and that is at least 16, the search
# continues with them alone. Compacting at each halving would save more steps,
# but every time costs a compilation of the model.
_LEFT, _FEWEST = 4, 16

# Score of no hypothesis. It is infinite, so that adding to it changes nothing.
_NONE = -jnp.inf


class _Candidates(NamedTuple):
  """Best one-token extensions of the live hypotheses, best first."""

  parents: Int32[Array, 'B C']
  tokens: Int32[Array, 'B C']
  token_log_probs: Float32[Array, 'B C']
  log_probabilities: Float32[Array, 'B C']


class _Live(NamedTuple):
  """Hypotheses that have not ended; log-probability -inf: an empty place."""

  tokens: Int32[Array, 'B J T']
  token_log_probs: Float32[Array, 'B J T']
  rows: Int32[Array, 'B J T']  # Of the cache, see `Step`.
  log_probabilities: Float32[Array, 'B J']


class _State(NamedTuple):
  """Arrays that a step reads and replaces.

  Live hypotheses have `position` tokens each; `newest` is the last of them. A
  sentence without a live hypothesis is done.
  """

  position: Int32[Array, '']
  newest: Int32[Array, 'B K']
  live: _Live
  finished: Hypotheses
  cache: Any


@dataclasses.dataclass(frozen=True)
class _Search:
  """Constants of all steps; see the arguments of `beam_search`."""

  step: Step
  beam: int
  keep: int
  enough: int
  divisors: Float32[Array, ' lengths']
  coverage_score: CoverageScore | None
  normalised: bool
  constraints: Constraints
  compact_batch: CompactBatch | None


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
  coverage_score: CoverageScore | None = None,
  keep: int | None = None,
  normalised: bool = False,
  patience: float = 0.0,
  rules: TokenRules = NO_RULES,
  requirements: Requirements | None = None,
  compact_batch: CompactBatch | None = None,
) -> Hypotheses:
  """Search for the best hypotheses of every sentence.

  Each step extends the K live hypotheses of a sentence by every token and
  takes the 2K best extensions: those that end join the finished ones, and the
  best K others stay live. With K = 1 it takes the one best extension, which is
  greedy search. At the limit of its sentence a live hypothesis is extended by
  the end symbol only, so that every score is the model's score of a complete
  translation.

  A sentence is done when no live hypothesis can reach a higher score than the
  worst hypothesis kept. Log-probabilities only fall and the divisor is largest
  at the limit, so log P / penalty(limit) bounds what a live hypothesis can
  reach; a coverage score is at most 0. Stopping there never changes the
  result, and no sentence depends on another.

  Args:
    step: The model; it reads start_id at position 0 and the newest token of
      each live hypothesis afterwards.
    cache: Cache of the step, with K rows for each sentence.
    beam: Number K of live hypotheses of a sentence.
    max_length: Room T for the longest hypothesis.
    max_lengths: Limit of each sentence, the end symbol included, int32;
      values outside 1 to max_length are clipped.
    start_id: Token before the first.
    end_id: Token that ends a hypothesis.
    coverage_score: Term added to the score of a hypothesis that ends, if any.
    keep: Number N of hypotheses to return; None stands for K. A smaller number
      ends the search sooner.
    normalised: Whether the step's logits are log-probabilities already.
    patience: A sentence is also done when `patience` times K hypotheses are
      finished, but at least N (Kasai et al. 2022). With 0 it is done only when
      no better one is possible.
    rules: Tokens and n-grams that hypotheses must not contain.
    requirements: Shortest lengths and prefixes. The limit of a sentence is
      at least one more than its prefix, and overrides the shortest length.
    compact_batch: Function that lets the search continue with the last quarter
      of a batch's sentences; None keeps all of them to the end.

  Returns:
    The hypotheses, best first; equal scores in the order of their ending.
  """
  keep = keep or beam
  enough = max(round(patience * beam), keep) if patience else 0
  search = _Search(
    step,
    beam,
    keep,
    enough,
    jnp.asarray(penalty.divisors(max_length)),
    coverage_score,
    normalised,
    Constraints(rules, requirements, end_id, max_lengths).within(max_length),
    compact_batch,
  )
  state = _State(
    position=jnp.int32(0),
    newest=jnp.full((batch, beam), start_id, jnp.int32),
    live=_empty_live(batch, beam, max_length),
    finished=_none_finished(batch, max(keep, enough), max_length),
    cache=cache,
  )
  finished = _finish(search, state)
  return jax.tree.map(lambda leaf: leaf[:, :keep], finished)


def _empty_live(batch: int, beam: int, max_length: int) -> _Live:
  """Create one live hypothesis for each sentence, the empty one."""
  first = jnp.where(jnp.arange(beam) == 0, 0.0, _NONE).astype(jnp.float32)
  rows = jnp.arange(beam, dtype=jnp.int32)[:, None]
  shape = batch, beam, max_length
  return _Live(
    jnp.zeros(shape, jnp.int32),
    jnp.zeros(shape, jnp.float32),
    jnp.broadcast_to(rows, shape),
    jnp.tile(first, (batch, 1)),
  )


def _none_finished(batch: int, size: int, max_length: int) -> Hypotheses:
  return Hypotheses(
    jnp.zeros((batch, size, max_length), jnp.int32),
    jnp.zeros((batch, size), jnp.int32),
    jnp.full((batch, size), _NONE, jnp.float32),
    jnp.full((batch, size), _NONE, jnp.float32),
    jnp.zeros((batch, size, max_length), jnp.float32),
  )


def _finish(search: _Search, state: _State) -> Hypotheses:
  """Search until no sentence has a live hypothesis."""
  left = len(state.newest) // _LEFT
  if search.compact_batch is None or left < _FEWEST:
    left = 0
  state = jax.lax.while_loop(
    lambda state: _alive(state).sum() > left,
    functools.partial(_advance, search),
    state,
  )
  if not left:
    return state.finished
  sentences = jnp.argsort(~_alive(state), stable=True)[:left]
  rest = _finish(*_compacted(search, state, sentences.astype(jnp.int32)))
  return jax.tree.map(
    lambda every, own: every.at[sentences].set(own), state.finished, rest
  )


def _compacted(
  search: _Search, state: _State, sentences: Int32[Array, ' M']
) -> tuple[_Search, _State]:
  """Restrict search and state to some of the sentences."""

  def part(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf[sentences], tree)

  assert search.compact_batch is not None
  own = search.compact_batch(sentences, state.cache)
  constraints = dataclasses.replace(
    search.constraints,
    max_lengths=part(search.constraints.max_lengths),
    requirements=part(search.constraints.requirements),
  )
  search = dataclasses.replace(
    search,
    step=own.step,
    coverage_score=own.coverage_score,
    constraints=constraints,
    compact_batch=None,
  )
  newest, live, finished = part((state.newest, state.live, state.finished))
  return search, _State(state.position, newest, live, finished, own.cache)


def _alive(state: _State) -> Bool[Array, ' B']:
  return (state.live.log_probabilities > _NONE).any(1)


def _advance(search: _Search, state: _State) -> _State:
  """Extend all sentences by one token and sort ended from live hypotheses."""
  position, live = state.position, state.live
  logits, cache = search.step(state.newest, position, live.rows, state.cache)
  candidates = _candidates(search, logits, state)
  children = _children(live, candidates, position)
  ends = candidates.tokens == search.constraints.end_id
  added: Float32[Array, 'B C'] | float = 0.0
  if search.coverage_score is not None:
    coverage_score = search.coverage_score(live.rows, position, cache)
    added = select(coverage_score, candidates.parents)
  finished = _merge(search, state.finished, children, ends, position + 1, added)
  alive, chosen = jax.lax.top_k(
    jnp.where(ends, _NONE, candidates.log_probabilities), search.beam
  )
  live = jax.tree.map(lambda leaf: select(leaf, chosen), children)
  done = _done(search, finished, alive)
  own = jnp.arange(search.beam, dtype=jnp.int32)
  return _State(
    position=position + 1,
    newest=select(candidates.tokens, chosen),
    live=live._replace(
      # The next step writes hypothesis k into row k.
      rows=written(live.rows, position + 1, jnp.broadcast_to(own, alive.shape)),
      log_probabilities=jnp.where(done[:, None], _NONE, alive),
    ),
    finished=finished,
    cache=cache,
  )


def _candidates(
  search: _Search, logits: Float32[Array, 'B K V'], state: _State
) -> _Candidates:
  """Find the best allowed extensions; at the limit, only the end symbol."""
  position, live = state.position, state.live
  constraints, alive = search.constraints, live.log_probabilities
  at_limit = position + 1 >= constraints.max_lengths
  allowed = constraints.restricted(logits, live.tokens, position)
  if search.normalised:
    normaliser = jnp.zeros(logits.shape[:2])
  else:
    # Of rows [B * K, V]: a TPU would pad a small K to 8.
    rows = logits.reshape(-1, logits.shape[-1])
    normaliser = jax.nn.logsumexp(rows, axis=-1).reshape(logits.shape[:2])
  best = _extend(allowed, alive, normaliser)
  end = logits[:, :, constraints.end_id] - normaliser
  last = _ended(alive, end, constraints.end_id, best.tokens.shape)
  return jax.tree.map(
    lambda own, other: jnp.where(at_limit[:, None], own, other), last, best
  )


def _extend(
  logits: Float32[Array, 'B K V'],
  alive: Float32[Array, 'B K'],
  normaliser: Float32[Array, 'B K'],
) -> _Candidates:
  """Find the best allowed extensions.

  The logits are read and never copied: the best extensions of a row need only
  its largest logits and the logarithm of its normaliser.
  """
  batch, beam, vocabulary = logits.shape
  count = 2 * beam if beam > 1 else 1
  per_row = min(count, vocabulary)
  # [B, K, V] -> [B * K, per_row] -> [B, K * per_row]
  largest, tokens = top_k(logits.reshape(batch * beam, vocabulary), per_row)
  gains = largest.reshape(batch, beam, per_row) - normaliser[:, :, None]
  scores = (alive[:, :, None] + gains).reshape(batch, -1)
  scores, order = jax.lax.top_k(scores, count)
  return _Candidates(
    parents=order // per_row,
    tokens=select(tokens.reshape(batch, -1), order),
    token_log_probs=select(gains.reshape(batch, -1), order),
    log_probabilities=scores,
  )


def _ended(
  alive: Float32[Array, 'B K'],
  end: Float32[Array, 'B K'],
  end_id: int,
  shape: tuple[int, ...],
) -> _Candidates:
  """Extend every live hypothesis by the end symbol, in their order."""
  spare = ((0, 0), (0, shape[1] - alive.shape[1]))
  every = jnp.arange(alive.shape[1], dtype=jnp.int32)
  return _Candidates(
    parents=jnp.broadcast_to(jnp.pad(every, spare[1]), shape),
    tokens=jnp.full(shape, end_id, jnp.int32),
    token_log_probs=jnp.pad(end, spare),
    log_probabilities=jnp.pad(alive + end, spare, constant_values=_NONE),
  )


def _children(
  live: _Live, candidates: _Candidates, position: Int32[Array, '']
) -> _Live:
  """Return the candidates as hypotheses, ended or not."""
  parents = jax.tree.map(lambda leaf: select(leaf, candidates.parents), live)
  return _Live(
    written(parents.tokens, position, candidates.tokens),
    written(parents.token_log_probs, position, candidates.token_log_probs),
    parents.rows,
    candidates.log_probabilities,
  )


def _merge(
  search: _Search,
  finished: Hypotheses,
  children: _Live,
  ends: Bool[Array, 'B C'],
  length: Int32[Array, ''],
  added: Float32[Array, 'B C'] | float,
) -> Hypotheses:
  """Keep the best of the finished hypotheses and the children that end now.

  Children come after the finished ones, so a child never replaces a finished
  hypothesis of equal score.
  """
  total = jnp.where(ends, children.log_probabilities, _NONE)
  ended = Hypotheses(
    children.tokens,
    jnp.where(total > _NONE, length, 0),
    total / search.divisors[length] + added,
    total,
    children.token_log_probs,
  )
  both = jax.tree.map(
    lambda old, new: jnp.concatenate([old, new], axis=1), finished, ended
  )
  return best_first(both, finished.scores.shape[1])


def _done(
  search: _Search, finished: Hypotheses, alive: Float32[Array, 'B K']
) -> Bool[Array, ' B']:
  """Return whether the search of each sentence can stop.

  It can if no live hypothesis can still be kept, or enough are finished.
  """
  bounds = alive[:, 0] / search.divisors[search.constraints.max_lengths]
  done = finished.scores[:, search.keep - 1] >= bounds
  if search.enough:
    done |= finished.lengths[:, search.enough - 1] > 0
  return done


# Number of columns of a chunk; measured to be the fastest for 8,000 and for
# 32,000 columns on a CPU.
_CHUNK = 64


def top_k(
  scores: Float32[Array, 'R V'], k: int
) -> tuple[Float32[Array, 'R {k}'], Int32[Array, 'R {k}']]:
  """Find the k largest elements of every row, faster than `jax.lax.top_k`.

  The search has two levels: the k chunks with the largest maxima, then the k
  largest elements inside them. It is exact: k elements, one in each of those
  chunks, come before any element outside them. Equal elements come in the
  order of their columns, because the chosen chunks are searched in the order
  of their columns.

  Returns:
    The elements in descending order, and their columns.
  """
  rows, columns = scores.shape
  chunks = -(-columns // _CHUNK)
  if chunks <= 2 * k:
    largest, places = jax.lax.top_k(scores, k)
    return largest, places
  padding = ((0, 0), (0, chunks * _CHUNK - columns))
  padded = jnp.pad(scores, padding, constant_values=-jnp.inf)
  # As fast as the maxima of [R, chunks, _CHUNK] on a CPU; a TPU would turn that
  # array first.
  maxima = jax.lax.reduce_window(
    padded, -jnp.inf, jax.lax.max, (1, _CHUNK), (1, _CHUNK), 'VALID'
  )
  chosen = jnp.sort(jax.lax.top_k(maxima, k)[1], axis=-1)
  # [R, k] -> [R, k * _CHUNK]
  places = chosen[:, :, None] * _CHUNK + jnp.arange(_CHUNK)
  places = places.reshape(rows, k * _CHUNK)
  inside = jnp.take_along_axis(scores, jnp.minimum(places, columns - 1), axis=1)
  inside = jnp.where(places < columns, inside, -jnp.inf)
  largest, order = jax.lax.top_k(inside, k)
  return largest, jnp.take_along_axis(places, order, axis=1)
