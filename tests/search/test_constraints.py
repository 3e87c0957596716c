"""Constraints against plain Python, and against enumeration."""

import itertools

import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fusion_jax.search.beam import LengthPenalty, beam_search
from fusion_jax.search.constraints import Requirements, TokenRules

START, END = 0, 1
some = settings(max_examples=8)


def _logits(seed, vocabulary=4):
  """A chain of order 1: the next token depends on the one before."""
  random = np.random.default_rng(seed)
  return random.normal(size=(vocabulary, vocabulary)).astype(np.float32)


def _search(logits, limit, **changes):
  table = jnp.asarray(logits)
  arguments = {
    'batch': 1,
    'beam': 32,
    'max_length': limit,
    'max_lengths': jnp.array([limit], jnp.int32),
    'start_id': START,
    'end_id': END,
    'penalty': LengthPenalty('none'),
    'keep': 8,
  }
  found = beam_search(
    lambda tokens, position, rows, cache: (table[tokens], cache),
    (),
    **(arguments | changes),
  )
  lengths = np.asarray(found.lengths[0])
  return [
    (float(score), np.asarray(tokens)[:length].tolist())
    for score, tokens, length in zip(
      found.scores[0], found.tokens[0], lengths, strict=True
    )
    if length
  ]


def _every(logits, limit):
  """(score, tokens) of all complete hypotheses, best first."""
  log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
  others = [token for token in range(len(logits)) if token != END]
  every = []
  for length in range(1, limit + 1):
    for body in itertools.product(others, repeat=length - 1):
      path = [START, *body, END]
      score = sum(log_p[a, b] for a, b in itertools.pairwise(path))
      every.append((float(score), path[1:]))
  return sorted(every, reverse=True)


def _requirements(shortest=1, prefix=()):
  return Requirements(
    jnp.array([shortest]), jnp.array([[*prefix, 0]]), jnp.array([len(prefix)])
  )


def _no_repeat(tokens, size):
  grams = [tuple(tokens[i : i + size]) for i in range(len(tokens) - size + 1)]
  return len(grams) == len(set(grams))


def _assert_same(found, expected):
  assert [tokens for _, tokens in found] == [
    tokens for _, tokens in expected[: len(found)]
  ]
  np.testing.assert_allclose(
    [score for score, _ in found],
    [score for score, _ in expected[: len(found)]],
    rtol=1e-4,
  )
  assert len(found) == min(8, len(expected))


@some
@given(st.integers(0, 10_000), st.integers(1, 4))
def test_shortest_length(seed, shortest):
  found = _search(_logits(seed), 4, requirements=_requirements(shortest))
  every = _every(_logits(seed), 4)
  _assert_same(found, [each for each in every if len(each[1]) >= shortest])


@some
@given(st.integers(0, 10_000), st.lists(st.sampled_from([0, 2, 3]), max_size=3))
def test_prefix(seed, prefix):
  found = _search(_logits(seed), 4, requirements=_requirements(1, prefix))
  every = _every(_logits(seed), 4)
  size = len(prefix)
  _assert_same(found, [each for each in every if each[1][:size] == prefix])


def test_a_prefix_is_longer_than_the_limit():
  found = _search(
    _logits(0),
    4,
    max_lengths=jnp.array([2]),
    requirements=_requirements(1, [3, 3, 2]),
  )
  assert [tokens for _, tokens in found] == [[3, 3, 2, END]]


@some
@given(st.integers(0, 10_000), st.sampled_from([(2,), (0, 3)]))
def test_forbidden_tokens(seed, forbidden):
  found = _search(_logits(seed), 4, rules=TokenRules(forbidden))
  every = _every(_logits(seed), 4)
  _assert_same(
    found, [each for each in every if not set(each[1]) & set(forbidden)]
  )


@some
@given(st.integers(0, 10_000), st.integers(1, 3))
def test_no_ngram_twice(seed, size):
  rules = TokenRules(no_repeat_ngram=size)
  found = _search(_logits(seed), 4, rules=rules)
  every = _every(_logits(seed), 4)
  _assert_same(found, [each for each in every if _no_repeat(each[1], size)])


def test_all_together():
  prefix = [2, 2]
  found = _search(
    _logits(3),
    4,
    rules=TokenRules((3,), no_repeat_ngram=2),
    requirements=_requirements(4, prefix),
  )
  # After 2 2, neither 2 (2 2 again) nor 3 (forbidden) may come.
  assert [tokens for _, tokens in found] == [[2, 2, 0, END]]


def test_nothing_is_allowed():
  rules = TokenRules((0, 2, 3))
  assert (
    _search(_logits(0), 4, rules=rules, requirements=_requirements(2)) == []
  )


def test_patience_ends_when_enough_are_finished():
  # The end symbol is improbable, and long hypotheses are favoured: without
  # patience the search goes on to the limit.
  logits = np.zeros((4, 4), np.float32)
  logits[:, END] = -3
  penalty = LengthPenalty('length', 1.0)

  def length(patience):
    found = _search(
      logits, 30, beam=4, keep=1, penalty=penalty, patience=patience
    )
    return len(found[0][1])

  # The empty hypothesis alone has an end among its eight best extensions: one
  # is finished after a step, and the next four at the limit.
  assert [length(n) for n in (0.25, 0.5, 1.0, 0.0)] == [1, 30, 30, 30]
