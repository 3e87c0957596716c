"""Ensembles against single models and against mixtures by hand."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from copying import LINES, make_run, make_tokenizer, random_run
from tiers import extended_but

from fusion_jax.cli import request as request_module
from fusion_jax.cli import run as run_module
from fusion_jax.cli.line_formats import score_text
from fusion_jax.cli.text_io import split_paths
from fusion_jax.config import DecodingConfig, TokenizerConfig
from fusion_jax.config.fusion import SideConfig
from fusion_jax.data.tokenizer import Tokenizer, train
from fusion_jax.decoding.ensemble import Ensemble, Mixture, make_ensemble
from fusion_jax.decoding.score import Scorer
from fusion_jax.decoding.translate import Translator
from fusion_jax.errors import InputError
from fusion_jax.models.transformer import Transformer
from fusion_jax.testing import assert_close

OPTIONS = DecodingConfig(
  beam_size=2, max_source_length=24, batch_tokens=256, max_length_extra=3
)
_LINES = [line for line in LINES if line.strip()]


@pytest.fixture(scope='module')
def tokenizer():
  return make_tokenizer()


@pytest.fixture(scope='module')
def runs(tokenizer):
  gtrans = SideConfig('gtrans', {'group_size': 1})
  return random_run(tokenizer, 1), random_run(tokenizer, 2, gtrans, layers=2)


def _translations(ensemble, lines=_LINES):
  found = Translator(ensemble, OPTIONS).translate_n_best(lines)
  return [best[0] for best in found]


@pytest.mark.extended
@pytest.mark.parametrize(
  ('which', 'combine'),
  extended_but([(0, 'arithmetic'), (1, 'geometric')], [(1, 'geometric')]),
)
def test_a_model_with_itself_is_the_model(runs, which, combine):
  run = runs[which]
  twice = make_ensemble([run, run], ['a', 'b'], [3.0, 1.0], combine)
  for single, double in zip(
    _translations(run), _translations(twice), strict=True
  ):
    assert double.text == single.text
    assert_close(double.score, single.score)


@pytest.mark.extended
def test_schemes_and_depths_mix(runs):
  both = _translations(make_ensemble(runs, ['a', 'b']))
  first, second = map(_translations, runs)
  assert [each.text for each in both] != [each.text for each in first]
  almost = make_ensemble(runs, ['a', 'b'], [1e-7, 1.0])
  assert [each.text for each in _translations(almost)] == [
    each.text for each in second
  ]


def test_mixtures_by_hand():
  log_p = [jnp.log(jnp.array([0.2, 0.8])), jnp.log(jnp.array([0.6, 0.4]))]
  weights = (0.25, 0.75)
  arithmetic = Mixture(weights).log_probabilities(log_p)
  assert_close(jnp.exp(arithmetic), np.array([0.5, 0.5]), units=16)
  geometric = Mixture(weights, 'geometric').log_probabilities(log_p)
  products = np.array([0.2**0.25 * 0.6**0.75, 0.8**0.25 * 0.4**0.75])
  assert_close(jnp.exp(geometric), products / products.sum(), units=16)


@pytest.mark.extended
def test_sources_may_be_cut_differently(runs, tokenizer):
  config = TokenizerConfig(algorithm='bpe', vocabulary_size=36)
  other = Tokenizer(train(LINES * 3, config))
  mixed = dataclasses.replace(runs[0], source_tokenizer=other)
  assert other.encode(_LINES[0]) != tokenizer.encode(_LINES[0])
  # Nearly all weight on one of them: what it translates alone, where the
  # other does not cut lines into pieces.
  whole = [line for line in _LINES if len(other.encode(line)) < 24]
  assert len(whole) > 2
  almost = make_ensemble([runs[0], mixed], ['a', 'b'], [1.0, 1e-7])
  assert [each.text for each in _translations(almost, whole)] == [
    each.text for each in _translations(runs[0], whole)
  ]


def test_what_cannot_be_an_ensemble(runs, tokenizer):
  config = TokenizerConfig(algorithm='bpe', vocabulary_size=36)
  other = Tokenizer(train(LINES * 3, config))
  with pytest.raises(InputError, match='b has another target vocabulary'):
    make_ensemble(
      [runs[0], dataclasses.replace(runs[0], target_tokenizer=other)],
      ['a', 'b'],
    )
  french = make_run(tokenizer, Transformer, language='fr')
  with pytest.raises(InputError, match='b translates en to fr, but a en to de'):
    make_ensemble([runs[0], french], ['a', 'b'])
  for weights in ([1.0], [1.0, 0.0], [1.0, -1.0], [1.0, np.nan], [np.inf, 1.0]):
    with pytest.raises(InputError, match='must be 2 positive numbers'):
      make_ensemble(runs, ['a', 'b'], weights)


@pytest.mark.extended
def test_decode_reads_several_runs(runs, monkeypatch, tmp_path):
  loaded = dict(zip('ab', runs, strict=True))
  monkeypatch.setattr(
    request_module, 'load_run', lambda workdir, *arguments: loaded[workdir]
  )
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'in').write_text('\n'.join(_LINES) + '\n')
  options = dataclasses.asdict(OPTIONS)
  request = run_module.DecodeRequest(
    'a,b', input='in', output='out', weights='3,1', options=options
  )
  run_module.run(request)
  expected = _translations(Ensemble(runs, Mixture((0.75, 0.25))))
  lines = (tmp_path / 'out').read_text().splitlines()
  assert lines == [each.text for each in expected]
  wrong = dataclasses.replace(request, weights='3,x')
  with pytest.raises(InputError, match='must be numbers with commas'):
    run_module.run(wrong)
  short = [line for line in _LINES if len(line) < 30]
  (tmp_path / 'in').write_text('\n'.join(short) + '\n')
  scoring = dataclasses.replace(request, mode='score', target='in')
  run_module.run(scoring)
  scores = (tmp_path / 'out').read_text().splitlines()
  assert len(scores) == len(short) > 2
  assert scores == _scored(Ensemble(runs, Mixture((0.75, 0.25))), short)


def test_a_run_directory_may_have_a_comma_in_its_name(tmp_path):
  (tmp_path / 'a,b').mkdir()
  assert split_paths(f'{tmp_path}/a,b') == [f'{tmp_path}/a,b']
  assert split_paths(f'{tmp_path}/a,c') == [f'{tmp_path}/a', 'c']


def _scored(ensemble, lines):
  pairs = [(line, line) for line in lines]
  return [
    score_text(each, False) for each in Scorer(ensemble, OPTIONS).score(pairs)
  ]
