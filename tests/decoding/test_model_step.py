"""The coverage penalty by hand, and in the search against all hypotheses."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from copying import make_tokenizer, random_run
from hypothesis import given, settings
from hypothesis import strategies as st

from fusion_jax.decoding.compiled import (
  SearchRows,
  SearchSettings,
  search_batch,
)
from fusion_jax.decoding.ensemble import Mixture
from fusion_jax.decoding.model_step import (
  Source,
  attended_sources,
  coverage_penalty,
  mean_attention,
  write_attention,
)
from fusion_jax.decoding.score import TeacherForcedRows, teacher_forced_scores
from fusion_jax.search.constraints import TokenRules
from fusion_jax.search.hypotheses import LengthPenalty
from fusion_jax.testing import assert_close


def test_by_hand():
  # Positions attended 0.5 times, 2 times and, a padding, not at all.
  sums = jnp.array([[0.5, 2.0, 0.0]])
  tokens = jnp.array([[True, True, False]])
  assert float(coverage_penalty(sums, tokens)[0]) == pytest.approx(np.log(0.5))
  everything = coverage_penalty(sums, jnp.ones((1, 3), bool))
  assert float(everything[0]) == pytest.approx(np.log(0.5) + np.log(1e-6))


def test_gradient():
  weights = jnp.full((2, 1, 3, 4, 5), 0.1)
  slope = jax.grad(
    lambda w: coverage_penalty(
      mean_attention(w).sum(1), jnp.ones((1, 5), bool)
    ).sum()
  )(weights)
  # d log(c) / d p = 1 / c with c = 4 * 0.1, shared by 2 layers of 3 heads.
  np.testing.assert_allclose(slope, 1 / 0.4 / 6, rtol=1e-5)


@settings(max_examples=25)
@given(st.integers(1, 3), st.integers(1, 5), st.integers(0, 99))
def test_hypotheses_find_their_attention_by_row(beam, steps, seed):
  random = np.random.default_rng(seed)
  attention = random.random((2, steps, beam, 4)).astype(np.float32)
  rows = random.integers(0, beam, (2, beam, steps + 1)).astype(np.int32)
  cache = jnp.zeros((2, (steps + 1) * beam, 4))
  for position in range(steps):
    cache = write_attention(
      cache, jnp.asarray(attention[:, position]), jnp.int32(position)
    )
  found = attended_sources(cache, jnp.asarray(rows), jnp.int32(steps - 1))
  for b, k in itertools.product(range(2), range(beam)):
    expected = sum(attention[b, t, rows[b, k, t]] for t in range(steps))
    assert_close(found[b, k], expected, units=16)


def test_a_wide_beam_finds_the_best_of_all_hypotheses():
  """Every hypothesis of a small vocabulary, scored by the full pass."""
  tokenizer = make_tokenizer()
  run, end, limit, weight = random_run(tokenizer, 3), 3, 3, 2.0
  penalty = LengthPenalty('gnmt', 0.5)
  # All tokens but these are forbidden, to have few hypotheses.
  allowed = (end, 8, 9, 10)
  source = Source(jnp.array([[5, 6, 7, end]]), jnp.array([4]))
  every = [
    (*body, end)
    for length in range(limit)
    for body in itertools.product(allowed[1:], repeat=length)
  ]
  lengths = np.array([len(tokens) for tokens in every], np.int32)
  target = np.array([t + (0,) * (limit - len(t)) for t in every], np.int32)
  tokens, coverage_score = teacher_forced_scores(
    (run.parameters,),
    TeacherForcedRows(
      (jax.tree.map(lambda x: jnp.repeat(x, len(every), 0), source),),
      jnp.asarray(target),
      jnp.asarray(lengths),
    ),
    models=(run.model,),
    mixture=Mixture(),
    weight=weight,
  )
  real = np.arange(limit) < lengths[:, None]
  totals = np.where(real, tokens, 0).sum(1)
  scores = totals / penalty.divisors(limit)[lengths] + np.asarray(
    coverage_score
  )
  best = np.argsort(-scores)[:3]
  forbidden = set(range(run.model.target_vocabulary)) - set(allowed)
  found = search_batch(
    (run.parameters,),
    SearchRows((source,), jnp.array([limit]), jnp.arange(1)),
    models=(run.model,),
    settings=SearchSettings(
      *(len(every), 3, end, penalty, weight),
      rules=TokenRules(tuple(sorted(forbidden))),
    ),
    max_length=limit,
  )
  assert_close(found.scores[0], scores[best])
  np.testing.assert_array_equal(found.tokens[0], target[best])
  plain = np.argsort(-totals / penalty.divisors(limit)[lengths])[:3]
  assert (plain != best).any()
