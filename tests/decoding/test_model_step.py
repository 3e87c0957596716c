"""The coverage penalty by hand, and in the search against all hypotheses."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from copying import make_tokenizer, random_run

from fusion_jax.decoding.ensemble import Mixture
from fusion_jax.decoding.model_step import (
  SearchRows,
  SearchSettings,
  Source,
  coverage_penalty,
  search_batch,
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
