"""The search against enumeration and plain Python."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fusion_jax.search.beam import LengthPenalty, beam_search, top_k
from fusion_jax.testing import assert_close

START, END = 0, 1
PENALTIES = (
  LengthPenalty('gnmt', 0.6),
  LengthPenalty('gnmt', 2.0),
  LengthPenalty('length', 1.0),
  LengthPenalty('none'),
)
some = settings(max_examples=8)


def texts(hypotheses, sentence=0):
  return [
    list(np.asarray(tokens)[:length])
    for tokens, length in zip(
      hypotheses.tokens[sentence],
      np.asarray(hypotheses.lengths[sentence]),
      strict=True,
    )
  ]


def test_length_penalty_divisors():
  # ((5 + 7) / 6)^2 = 4; 3^0.5 = 1.7321.
  assert LengthPenalty('gnmt', 2.0).divisors(7)[7] == 4
  assert LengthPenalty('length', 0.5).divisors(3)[3] == pytest.approx(3**0.5)
  np.testing.assert_array_equal(LengthPenalty('none').divisors(3), np.ones(4))
  with pytest.raises(ValueError, match='alpha must be >= 0'):
    LengthPenalty('gnmt', -1.0)


class Recurrent:
  """A random recurrent model: its state depends on all tokens.

  The cache [B, T, K, W] has the states after every position, row by row.

  h' = tanh(h W + E[token]); logits = h' O. Sentences differ in h_0.
  """

  def __init__(self, seed, vocabulary, batch, width=6):
    random = np.random.default_rng(seed)

    def normal(*shape):
      return random.normal(size=shape).astype(np.float32)

    self.vocabulary = vocabulary
    self.inner = normal(width, width)
    self.embedding = normal(vocabulary, width)
    self.output = normal(width, vocabulary)
    self.start = normal(batch, width)

  def log_probabilities(self, sentence, prefix):
    """Of every next token, in float64."""
    state = self.start[sentence].astype(np.float64)
    for token in (START, *prefix):
      state = np.tanh(state @ self.inner + self.embedding[token])
    logits = state @ self.output
    return logits - np.log(np.exp(logits).sum())

  def search(self, beam, limits, penalty, max_length=None, keep=None):
    return search_recurrent(
      (self.inner, self.embedding, self.output),
      jnp.asarray(self.start[: len(limits)]),
      jnp.asarray(limits, jnp.int32),
      beam=beam,
      max_length=max_length or max(limits),
      penalty=penalty,
      keep=keep,
    )


@functools.partial(
  jax.jit, static_argnames=('beam', 'max_length', 'penalty', 'keep')
)
def search_recurrent(
  weights, start, limits, *, beam, max_length, penalty, keep
):
  inner, embedding, output = weights

  def step(tokens, position, rows, cache):
    last = jnp.maximum(position - 1, 0)
    parents = jax.lax.dynamic_index_in_dim(rows, last, 2, keepdims=False)
    before = jax.lax.dynamic_index_in_dim(cache, last, 1, keepdims=False)
    state = jnp.take_along_axis(before, parents[..., None], axis=1)
    state = jnp.where(position == 0, start[:, None], state)
    state = jnp.tanh(state @ inner + embedding[tokens])
    return state @ output, cache.at[:, position].set(state)

  return beam_search(
    step,
    jnp.zeros((len(limits), max_length, beam, start.shape[1])),
    batch=len(limits),
    beam=beam,
    max_length=max_length,
    max_lengths=limits,
    start_id=START,
    end_id=END,
    penalty=penalty,
    keep=keep,
  )


def enumerate_all(model, limit, penalty):
  """(score, tokens) of every complete hypothesis, best first."""
  divisors = penalty.divisors(limit)
  others = [token for token in range(model.vocabulary) if token != END]
  every = []
  for length in range(1, limit + 1):
    for body in itertools.product(others, repeat=length - 1):
      tokens = [*body, END]
      total = sum(
        model.log_probabilities(0, tokens[:at])[token]
        for at, token in enumerate(tokens)
      )
      every.append((total / divisors[length], tokens))
  return sorted(every, reverse=True)


def never_stopping(model, sentence, beam, limit, penalty, keep):
  """The same search written with lists, run to the limit."""
  divisors = penalty.divisors(limit)
  live, finished = [(0.0, [])], []
  for length in range(1, limit + 1):
    extended = [
      (score + gain, [*tokens, token])
      for score, tokens in live
      for token, gain in enumerate(model.log_probabilities(sentence, tokens))
      if length < limit or token == END
    ]
    best = sorted(extended, reverse=True)[: 2 * beam if beam > 1 else 1]
    finished += [
      (score / divisors[length], tokens)
      for score, tokens in best
      if tokens[-1] == END
    ]
    live = [pair for pair in best if pair[1][-1] != END][:beam]
  return sorted(finished, reverse=True)[:keep]


def assert_same(hypotheses, sentence, expected, penalty):
  count = len(expected)
  assert texts(hypotheses, sentence)[:count] == [y for _, y in expected]
  np.testing.assert_allclose(
    hypotheses.scores[sentence, :count],
    [score for score, _ in expected],
    rtol=1e-4,
    atol=1e-5,
  )
  lengths = [len(tokens) for _, tokens in expected]
  totals = hypotheses.log_probabilities[sentence, :count]
  divided = totals / penalty.divisors(max(lengths))[lengths]
  assert_close(hypotheses.scores[sentence, :count], divided)
  for tokens, (_, wanted) in zip(
    hypotheses.tokens[sentence], expected, strict=False
  ):
    assert not np.asarray(tokens)[len(wanted) :].any()


@some
@given(st.integers(0, 10_000), st.sampled_from(PENALTIES))
def test_wide_beam_finds_what_enumeration_finds(seed, penalty):
  # 3 tokens beside the end symbol: 27 open prefixes at length 3, and
  # 1 + 3 + 9 + 27 = 40 complete hypotheses of at most 4 tokens.
  model = Recurrent(seed, vocabulary=4, batch=1)
  found = model.search(27, [4], penalty, keep=41)
  expected = enumerate_all(model, 4, penalty)
  assert len(expected) == 40
  assert_same(found, 0, expected, penalty)
  assert found.lengths[0, 40] == 0
  assert np.isneginf(found.scores[0, 40])


@some
@given(
  st.integers(0, 10_000),
  st.sampled_from(PENALTIES),
  st.sampled_from([(1, 1), (2, 1), (3, 1), (3, 3), (4, 2)]),
)
def test_stopping_early_never_changes_the_result(seed, penalty, sizes):
  beam, keep = sizes
  model = Recurrent(seed, vocabulary=9, batch=3)
  limits = [8, 1, 12]
  found = model.search(beam, limits, penalty, keep=keep)
  for sentence, limit in enumerate(limits):
    expected = never_stopping(model, sentence, beam, limit, penalty, keep)
    assert_same(found, sentence, expected, penalty)


@pytest.mark.parametrize('beam', [1, 4])
def test_a_batch_equals_its_sentences_one_by_one(beam):
  model = Recurrent(3, vocabulary=300, batch=5)
  limits = [7, 1, 12, 4, 9]
  together = model.search(beam, limits, LengthPenalty(), max_length=16)
  for sentence, limit in enumerate(limits):
    alone = Recurrent(3, vocabulary=300, batch=5)
    alone.start = model.start[sentence : sentence + 1]
    found = alone.search(beam, [limit], LengthPenalty(), max_length=16)
    assert texts(found) == texts(together, sentence)
    assert_close(found.scores[0], together.scores[sentence])


def test_stops_as_soon_as_nothing_better_can_come():
  # The end symbol has probability 0.9 at every step: after the first, a live
  # hypothesis has at most 0.1 / 3, and log 0.9 > log(0.1 / 3) / divisor(99).
  positions = []
  logits = jnp.log(jnp.array([0.1 / 3, 0.9, 0.1 / 3, 0.1 / 3]))

  def step(tokens, position, rows, cache):
    jax.debug.callback(lambda at: positions.append(int(at)), position)
    return jnp.tile(logits, (*tokens.shape, 1)), cache

  search = functools.partial(
    beam_search,
    step,
    (),
    batch=2,
    beam=3,
    max_length=99,
    max_lengths=jnp.array([99, 99], jnp.int32),
    start_id=START,
    end_id=END,
  )
  jax.block_until_ready(search(penalty=LengthPenalty(), keep=1))
  jax.effects_barrier()
  assert positions == [0]
  positions.clear()
  # The three best are `end`, `x end`, `y end`: one step more.
  found = search(penalty=LengthPenalty('none'), keep=3)
  jax.block_until_ready(found)
  jax.effects_barrier()
  assert positions == [0, 1]
  np.testing.assert_array_equal(found.lengths, [[1, 2, 2]] * 2)


@some
@given(
  st.integers(0, 10_000),
  st.sampled_from([1, 63, 64, 129, 640, 1_000, 2_049]),
  st.sampled_from([1, 2, 8]),
  st.sampled_from([2, 20, 100_000]),
)
def test_top_k_equals_lax_top_k(seed, columns, k, values):
  # Few different values make many ties; -inf meets the padding.
  random = np.random.default_rng(seed)
  scores = random.integers(0, values, size=(5, columns)).astype(np.float32)
  scores[random.random(scores.shape) < 0.1] = -np.inf
  scores[0] = -np.inf
  k = min(k, columns)
  expected = jax.lax.top_k(jnp.asarray(scores), k)
  found = top_k(jnp.asarray(scores), k)
  np.testing.assert_array_equal(found[0], expected[0])
  np.testing.assert_array_equal(found[1], expected[1])
