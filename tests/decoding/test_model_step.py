"""The coverage penalty, and a search over a compacted batch."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from copying import make_run, make_tokenizer, random_run
from tiers import extended_but

from fusion_jax.config import DecodingConfig
from fusion_jax.config.fusion import SideConfig
from fusion_jax.decoding.ensemble import Mixture
from fusion_jax.decoding.model_step import (
  SearchRows,
  SearchSettings,
  Source,
  coverage_penalty,
  search_batch,
)
from fusion_jax.decoding.score import TeacherForcedRows, teacher_forced_scores
from fusion_jax.decoding.translate import Translator
from fusion_jax.models.transformer import Transformer, initial_parameters
from fusion_jax.search.beam import beam_search
from fusion_jax.search.constraints import Requirements, TokenRules
from fusion_jax.search.hypotheses import (
  CompactedBatch,
  Hypotheses,
  LengthPenalty,
)
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


_ROWS, _ROOM = 64, 9


class CountingDown:
  """Sentence b ends after b tokens; counts the rows of every step."""

  def __init__(self, lengths):
    self.lengths = lengths
    self.rows = []

  def step(self, tokens, position, rows, cache):
    self.rows.append(tokens.shape[0])
    ends = (position + 1 >= self.lengths)[:, None, None]
    # Token 1 ends a sentence, token 2 continues it, token 3 is less probable.
    continued = jnp.array([-9.0, -9.0, 0.0, -1.0])
    end = jnp.array([-9.0, 0.0, -9.0, -9.0])
    logits = jnp.where(ends, end, continued)
    return jnp.broadcast_to(logits, (*tokens.shape, 4)), cache

  def compact_batch(self, sentences, cache):
    part = CountingDown(self.lengths[sentences])
    part.rows = self.rows
    return CompactedBatch(part.step, None, cache)


def test_the_last_quarter_continues_alone():
  lengths = jnp.asarray(np.r_[np.full(50, 2), 2 + np.arange(14) % 7])
  model = CountingDown(lengths)
  found = beam_search(
    model.step,
    (),
    batch=_ROWS,
    beam=1,
    max_length=_ROOM,
    max_lengths=jnp.full(_ROWS, _ROOM),
    start_id=0,
    end_id=1,
    penalty=LengthPenalty(),
    compact_batch=model.compact_batch,
  )
  np.testing.assert_array_equal(found.lengths[:, 0], lengths)
  # Every size of a batch is traced once.
  assert sorted(set(model.rows)) == [_ROWS // 4, _ROWS]


def _assert_same(ours: Hypotheses, theirs: Hypotheses):
  np.testing.assert_array_equal(ours.tokens, theirs.tokens)
  np.testing.assert_array_equal(ours.lengths, theirs.lengths)
  assert_close(ours.scores, theirs.scores)
  assert_close(ours.token_log_probabilities, theirs.token_log_probabilities)


def _rows(models, seed):
  random = np.random.default_rng(seed)
  lengths = random.integers(1, 6, _ROWS).astype(np.int32)
  ids = random.integers(4, 40, (_ROWS, 6)).astype(np.int32)
  prefixes = random.integers(4, 40, (_ROWS, _ROOM)).astype(np.int32)
  return SearchRows(
    (Source(ids, lengths),) * models,
    random.integers(2, _ROOM, _ROWS).astype(np.int32),
    np.arange(_ROWS, dtype=np.int32),
    Requirements(
      random.integers(1, 4, _ROWS).astype(np.int32),
      prefixes,
      random.integers(0, 3, _ROWS).astype(np.int32),
    ),
  )


def _scanned(tokenizer):
  run = make_run(tokenizer, Transformer)
  config = dataclasses.replace(
    run.config.model,
    scan_layers=True,
    decoder_layers=2,
    decoder=SideConfig('surface_fusion'),
  )
  model = run.model.clone(config=config)
  parameters = jax.tree.map(lambda x: 3 * x, initial_parameters(model, 1))
  return dataclasses.replace(run, model=model, parameters=parameters)


@pytest.mark.parametrize(
  'kind', extended_but(['scanned', 'ensemble'], ['ensemble'])
)
def test_constraints_coverage_and_caches_go_with_their_sentences(kind):
  tokenizer = make_tokenizer()
  gtrans = SideConfig('gtrans', {'group_size': 1})
  surface = SideConfig('surface_fusion', {'kind': 'learned'})
  runs = (
    [_scanned(tokenizer)]
    if kind == 'scanned'
    else [
      random_run(tokenizer, 1, surface),
      random_run(tokenizer, 2, gtrans, layers=2),
    ]
  )
  weights = (1.0,) if len(runs) == 1 else (0.4, 0.6)
  settings = SearchSettings(
    *(3, 2, tokenizer.vocabulary.end, LengthPenalty()),
    coverage=0.4,
    mixture=Mixture(weights),
  )
  whole, compacted = (
    search_batch(
      tuple(run.parameters for run in runs),
      _rows(len(runs), 7),
      models=tuple(run.model for run in runs),
      settings=dataclasses.replace(settings, compacts=compacts),
      max_length=_ROOM,
    )
    for compacts in (False, True)
  )
  assert len(set(np.asarray(whole.lengths[:, 0]).tolist())) > 3
  _assert_same(compacted, whole)


@pytest.mark.extended
def test_each_device_compacts_its_own_batch():
  tokenizer = make_tokenizer()
  run = random_run(tokenizer, 4)
  options = DecodingConfig(
    beam_size=2, max_source_length=8, batch_tokens=1024, max_length_extra=3
  )
  lines = ['cats', 'a dog', 'the cat', 'a mat'] * 16
  one = Translator(run, options, devices=1)
  two = Translator(run, options, devices=2)
  assert one._search.compacts
  assert two._search.compacts
  ours, theirs = (each.translate_n_best(lines) for each in (one, two))
  for (own,), (other,) in zip(ours, theirs, strict=True):
    assert own.text == other.text
    assert_close(own.score, other.score)
