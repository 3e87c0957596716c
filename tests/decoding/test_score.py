"""Scores of given translations, against the search and against hand sums."""

import dataclasses
import itertools
import re
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from copying import LINES, random_run, with_learned_positions
from tiers import extended_but

from fusion_jax.cli import run as run_module
from fusion_jax.config import DecodingConfig
from fusion_jax.config.fusion import SideConfig
from fusion_jax.decoding.ensemble import Mixture
from fusion_jax.decoding.model_step import (
  SearchRows,
  SearchSettings,
  Source,
  search_batch,
)
from fusion_jax.decoding.score import (
  Scorer,
  TeacherForcedRows,
  teacher_forced_scores,
  token_log_probabilities,
)
from fusion_jax.decoding.sentences import PairReader
from fusion_jax.errors import InputError
from fusion_jax.search.hypotheses import LengthPenalty
from fusion_jax.testing import assert_close

ONE = Mixture()
OPTIONS = DecodingConfig(
  beam_size=2, max_source_length=32, batch_tokens=256, max_length_extra=3
)
_GEOMETRIC = {'group_size': 1, 'combine': 'geometric'}
FUSIONS = {
  'none': SideConfig(),
  'em_routing': SideConfig('em_routing'),
  'gtrans': SideConfig('gtrans', {'group_size': 1}),
  'geometric': SideConfig('gtrans', _GEOMETRIC),
  'surface': SideConfig('surface_fusion', {'kind': 'learned'}),
}


def _run(tokenizer, fusion='none'):
  return random_run(tokenizer, 5, FUSIONS[fusion], layers=2)


def _scores_are_those_of_the_search(runs, mixture=ONE, coverage=0.0):
  penalty, source = LengthPenalty(), jnp.array([[4, 5, 6, 3], [7, 3, 0, 0]])
  sources = (Source(source, jnp.array([4, 2])),) * len(runs)
  parameters = tuple(run.parameters for run in runs)
  models = tuple(run.model for run in runs)
  end = runs[0].target_tokenizer.vocabulary.end
  found = search_batch(
    parameters,
    SearchRows(sources, jnp.array([6, 5]), jnp.arange(2)),
    models=models,
    settings=SearchSettings(2, 2, end, penalty, coverage, mixture=mixture),
    max_length=6,
  )
  divisors = penalty.divisors(6)
  for place in range(2):
    lengths = found.lengths[:, place]
    assert (np.asarray(lengths) > 0).all()
    tokens, coverage_score = teacher_forced_scores(
      parameters,
      TeacherForcedRows(sources, found.tokens[:, place], lengths),
      models=models,
      mixture=mixture,
      weight=coverage,
    )
    real = np.arange(6) < np.asarray(lengths)[:, None]
    each = found.token_log_probabilities[:, place]
    assert_close(np.where(real, tokens, 0), each)
    totals = np.asarray(each).sum(-1)
    assert_close(totals, found.log_probabilities[:, place])
    scores = totals / divisors[np.asarray(lengths)] + np.asarray(coverage_score)
    assert_close(scores, found.scores[:, place])
    assert (np.asarray(coverage_score) < -1e-3).any() == (coverage > 0)


@pytest.mark.parametrize(
  ('fusion', 'coverage'),
  extended_but(
    [('none', 0.0), *itertools.product(FUSIONS, [0.3])], [('none', 0.3)]
  ),
)
def test_scores_are_those_of_the_search(tokenizer, fusion, coverage):
  _scores_are_those_of_the_search([_run(tokenizer, fusion)], coverage=coverage)


@pytest.mark.extended
@pytest.mark.parametrize(
  'combine', extended_but(['arithmetic', 'geometric'], ['geometric'])
)
def test_scores_of_an_ensemble_are_those_of_the_search(tokenizer, combine):
  runs = [_run(tokenizer, name) for name in ('none', 'gtrans', 'surface')]
  mixture = Mixture((0.25, 0.35, 0.4), combine)
  _scores_are_those_of_the_search(runs, mixture, coverage=0.3)


def test_scores_do_not_depend_on_the_batch(tokenizer):
  run = _run(tokenizer)
  pairs = [(source, target) for source in LINES for target in LINES[::3]]
  together = list(Scorer(run, OPTIONS).score(pairs))
  small = dataclasses.replace(OPTIONS, batch_tokens=32)
  for pair, scored, alone in zip(
    pairs, together, Scorer(run, small).score(pairs), strict=True
  ):
    assert_close(np.array(scored.tokens), np.array(alone.tokens))
    ids = tokenizer.encode(pair[1])
    blank = not (pair[0].strip() or pair[1].strip())
    assert len(scored.tokens) == (0 if blank else len(ids) + 1)
    assert scored.mean <= 0


def test_probabilities_of_all_continuations_sum_to_one(tokenizer):
  run = _run(tokenizer, 'gtrans')
  size = run.model.target_vocabulary
  source = jnp.tile(jnp.array([[4, 5, 6]]), (size, 1))
  target = jnp.stack([jnp.full(size, 7), jnp.arange(size)], 1)
  output = run.model.apply(
    {'params': run.parameters}, source, jnp.full(size, 3), target
  )
  found = token_log_probabilities(output, target, 'arithmetic')
  assert float(jnp.exp(found[:, 1]).sum()) == pytest.approx(1, rel=1e-5)
  np.testing.assert_allclose(found[:, 0], found[0, 0], rtol=1e-5)


@pytest.mark.parametrize('side', ['source', 'translation'])
def test_a_line_that_is_too_long_is_named(tokenizer, side):
  pair = ('cats', LINES[3])
  pairs = [('a', 'b'), pair if side == 'translation' else pair[::-1]]
  options = dataclasses.replace(OPTIONS, max_source_length=8)
  with pytest.raises(InputError, match=f'line 2: its {side} has .* than') as e:
    list(Scorer(_run(tokenizer), options).score(pairs))
  # What the message asks for is just enough.
  enough = int(re.search(r'set it to (\d+) or more', str(e.value)).group(1))
  for longest, fits in ((enough - 1, False), (enough, True)):
    options = dataclasses.replace(OPTIONS, max_source_length=longest)
    assert Scorer(_run(tokenizer), options).fits(*pairs[1]) == fits


def test_a_line_longer_than_the_positions_of_the_model(tokenizer):
  run = with_learned_positions(_run(tokenizer), 256)
  reader = PairReader(run, dataclasses.replace(OPTIONS, max_source_length=300))
  with pytest.raises(InputError, match='more than the 256 positions that the'):
    reader.line(1, 'cat ' * 300, 'a')


@pytest.fixture
def score(tokenizer, monkeypatch, tmp_path):
  trained = _run(tokenizer)
  monkeypatch.setattr(run_module, 'load_run', lambda *_: trained)
  monkeypatch.chdir(tmp_path)
  Path('source').write_text('the cat sat\n\na dog\n')
  Path('target').write_text('a cat\n\nthe dog\n')

  def run(**fields):
    fields = {'mode': 'score', 'input': 'source', 'target': 'target'} | fields
    run_module.run(run_module.DecodeRequest('run', output='out', **fields))
    return [line.split('\t') for line in Path('out').read_text().splitlines()]

  return run


def test_a_line_of_numbers_for_each_pair(score):
  lines = score(per_token=True, options={'length_penalty': 'none'})
  for total, mean, ranked, tokens in (lines[0], lines[2]):
    each = [float(token) for token in tokens.split()]
    assert sum(each) == pytest.approx(float(total), abs=1e-4)
    assert sum(each) / len(each) == pytest.approx(float(mean), abs=1e-4)
    assert ranked == total
  assert lines[1] == ['0.000000', '0.000000', '0.000000', '']
  assert [line[:3] for line in lines] == score(
    options={'length_penalty': 'none'}
  )


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    ({'target': ''}, '--mode=score needs --target'),
    ({'n_best': 2}, '--n_best has no meaning with --mode=score'),
    ({'mode': 'translate'}, '--target has no meaning with --mode=translate'),
    ({'target': 'short'}, 'short: 1 lines, fewer than source'),
    ({'input': 'short'}, 'short: 1 lines, fewer than target'),
    ({'target': 'none'}, 'none: cannot be read'),
  ],
)
def test_what_cannot_be_scored_leaves_no_file(score, fields, message):
  Path('short').write_text('a\n')
  with pytest.raises(InputError, match=message):
    score(**fields)
  assert not Path('out').exists()
