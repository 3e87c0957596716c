"""Ensembles of runs, and the direction and groups of each run."""

import dataclasses
import logging
import runpy
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from copying import LINES, Copying, make_run, random_run
from programs import one_line
from tiers import extended_but

from fusion_jax.cli import decode as decode_program
from fusion_jax.cli import run as run_module
from fusion_jax.cli.line_formats import alignment_file, score_text
from fusion_jax.cli.text_io import split_paths
from fusion_jax.config import (
  DataConfig,
  DecodingConfig,
  Direction,
  TokenizerConfig,
)
from fusion_jax.config.fusion import SideConfig
from fusion_jax.data.tokenizer import Tokenizer, train
from fusion_jax.decoding.batches import PairIds
from fusion_jax.decoding.ensemble import (
  Ensemble,
  Mixture,
  in_direction,
  make_ensemble,
  with_groups,
)
from fusion_jax.decoding.score import Scorer
from fusion_jax.decoding.translate import Translator
from fusion_jax.decoding.views import Internals, View
from fusion_jax.errors import InputError
from fusion_jax.models.transformer import Transformer, initial_parameters
from fusion_jax.testing import assert_close
from fusion_jax.tools.export import stablehlo

OPTIONS = DecodingConfig(
  beam_size=2, max_source_length=24, batch_tokens=256, max_length_extra=3
)
_LINES = [line for line in LINES if line.strip()]


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
    run_module, 'load_run', lambda workdir, *arguments: loaded[workdir]
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


PAIRS = [('de', 'en'), ('en', 'de'), ('en', 'fr'), ('ro', 'en')]
DATA = DataConfig(
  directions=tuple(Direction(*pair, ('a.{lang}',)) for pair in PAIRS),
  source_tag='<{lang}>',
  target_tag='<2{lang}>',
)
_TAGGED = DecodingConfig(beam_size=2, max_source_length=32, batch_tokens=512)


class AfterTags(Copying):
  """Copies what stands after two tags."""

  def decode_step(self, tokens, position, rows, cache, memory):
    return super().decode_step(tokens, position + 2, rows, cache, memory)


@pytest.fixture(scope='module')
def with_tags():
  config = TokenizerConfig(algorithm='bpe', vocabulary_size=50)
  return Tokenizer(train(LINES * 3, config, DATA.all_tags))


def run_of(with_tags, kind=AfterTags, data=DATA):
  run = make_run(with_tags, kind)
  return dataclasses.replace(
    run, config=dataclasses.replace(run.config, data=data, decoding=_TAGGED)
  )


@pytest.fixture
def decode(with_tags, monkeypatch, tmp_path):
  """Runs the program in a folder with `source` and gives its exit code."""
  trained = run_of(with_tags)
  monkeypatch.setattr(run_module, 'load_run', lambda *_: trained)
  monkeypatch.chdir(tmp_path)
  Path('source').write_text(''.join(line + '\n' for line in LINES))
  return lambda *flags: decode_program.main(
    ['--workdir=run', '--input=source', '--output=out', *flags]
  )


def test_a_run_in_one_direction(with_tags):
  run = in_direction(run_of(with_tags), 'run', 'en', 'fr')
  data = run.config.data
  assert (data.source_language, data.target_language) == ('en', 'fr')
  assert data.directions == ()
  ids = run.source_tokenizer.encode('a dog')
  assert with_tags.pieces(ids[:2]) == ['<en>', '<2fr>']
  assert ids[2:] == with_tags.encode('a dog')
  assert run.target_tokenizer.encode('a dog') == ids[2:]
  assert set(run.config.decoding.forbidden) == set(DATA.all_tags)
  assert len(DATA.all_tags) == 6
  # Once more, it is the run's only one.
  again = in_direction(run, 'run')
  assert again.source_tokenizer.encode('a dog') == ids


def test_every_piece_of_a_long_line_has_the_tags(with_tags):
  run = in_direction(run_of(with_tags), 'run', 'de', 'en')
  options = dataclasses.replace(run.config.decoding, max_source_length=12)
  translator = Translator(run, options)
  found = list(translator.translate_n_best(LINES))
  expected = [' '.join(line.split()) for line in LINES]
  assert [each[0].text for each in found] == expected
  tags = ['<de>', '<2en>']
  pieces = [
    with_tags.pieces(pair.source) for each in found for pair in each[0].pairs
  ]
  # Two of the lines are blank.
  assert len(pieces) > len(LINES) - 2
  assert all(own[:2] == tags and len(own) <= 12 for own in pieces)
  assert not any(set(own[2:]) & set(DATA.all_tags) for own in pieces)


def test_tags_never_come_out(with_tags):
  """A model that copies the tags too is made to say something else."""
  run = in_direction(run_of(with_tags, Copying), 'run', 'de', 'en')
  tags = set(run.source_tokenizer.tags)
  assert len(tags) == 2
  (best, *_) = Translator(run, run.config.decoding, 2).translate_n_best(
    ['a dog']
  )
  for each in best:
    assert not tags & set(each.pairs[0].target)
    assert '<' not in each.text


def test_scores_are_those_of_the_tagged_source(with_tags):
  run = in_direction(run_of(with_tags), 'run', 'de', 'en')
  encoder = Scorer(run, run.config.decoding)._encoders[0]
  pair = encoder.encode('x', 'a dog', 'a dog')
  assert with_tags.pieces(pair.source[:2]) == ['<de>', '<2en>']
  assert pair.source[2:] == pair.target
  assert encoder.encode('x', '', '').is_blank


@pytest.mark.parametrize(
  'flags',
  [
    ['--source_language=de', '--target_language=en'],
    # One direction alone is from de, one into fr.
    ['--source_language=de'],
    ['--target_language=fr'],
  ],
)
def test_the_program_translates_in_a_direction(decode, flags, caplog):
  assert decode(*flags) == 0
  expected = [' '.join(line.split()) for line in LINES]
  assert Path('out').read_text().split('\n') == [*expected, '']
  assert 'zero-shot' not in caplog.text


def test_a_zero_shot_direction_is_warned_of(decode, caplog):
  caplog.set_level(logging.WARNING)
  assert decode('--source_language=ro', '--target_language=fr') == 0
  warnings = [m for m in caplog.messages if 'zero-shot' in m]
  assert warnings == [
    'run was not trained to translate from ro to fr: zero-shot'
  ]
  assert len(Path('out').read_text().splitlines()) == len(LINES)


LISTED = 'de-en, en-de, en-fr, ro-en'


@pytest.mark.parametrize(
  ('flags', 'message'),
  [
    ([], f'run translates in several directions: {LISTED}; give '),
    (['--target_language=en'], 'run translates in several directions'),
    (
      ['--source_language=xx', '--target_language=en'],
      '--source_language=xx --target_language=en: run translates ' + LISTED,
    ),
    (
      ['--source_language=fr', '--target_language=de'],
      '--source_language=fr --target_language=de: run translates ' + LISTED,
    ),
    (['--source_language=de', '--target_language=de'], 'run translates de-en'),
    (['--source_language=fr'], '--source_language=fr: run translates de-en'),
  ],
)
def test_no_direction_or_an_unknown_one_is_one_line(
  decode, capsys, flags, message
):
  assert decode(*flags) == 2
  assert message in one_line(capsys.readouterr().err)
  assert not Path('out').exists()


def test_without_a_tag_there_is_no_zero_shot(with_tags):
  data = dataclasses.replace(
    DATA,
    directions=(DATA.directions[0], DATA.directions[2]),
    source_tag='',
    target_tag='',
  )
  with pytest.raises(InputError, match='run translates de-en, en-fr'):
    in_direction(run_of(with_tags, data=data), 'run', 'de', 'fr')
  run = in_direction(run_of(with_tags, data=data), 'run', 'en', 'fr')
  assert run.source_tokenizer is with_tags
  assert run.config.decoding.forbidden == ()


def test_alignments_count_the_words_of_the_text(with_tags, tmp_path):
  tagged = with_tags.tagged(DATA.tags('de', 'en'))
  source, target = tagged.encode('a dog cats'), with_tags.encode('cats a')
  numbers = [
    [sum(p.startswith('▁') for p in with_tags.pieces(ids[: i + 1])) - 1
     for i in range(len(ids))]
    for ids in (source[2:], target)
  ]  # fmt: skip
  # Each target word looks at its like, and still more at a tag.
  words = {0: 2, 1: 0}
  weights = np.zeros((len(target) + 1, len(source) + 1), np.float32)
  weights[:, 0] = 1
  for row, word in enumerate(numbers[1]):
    weights[row, 2 + numbers[0].index(words[word])] = 0.5
  pair = PairIds([*source, 3], [*target, 3])
  view = View(pair, Internals(weights, None, None))
  path = tmp_path / 'links.pharaoh'
  with alignment_file(str(path), tagged, with_tags, 'word') as write:
    write(0, [view, view])
  assert path.read_text() == '2-0 0-1 5-2 3-3\n'


@pytest.mark.extended
def test_an_exported_direction_puts_its_tags(with_tags, tmp_path):
  plain = random_run(with_tags, 3)
  config = dataclasses.replace(plain.config, data=DATA, decoding=_TAGGED)
  run = in_direction(dataclasses.replace(plain, config=config), 'run', 'ro')
  lines = ['a dog', '', 'the cat sat']
  stablehlo.export(run, tmp_path / 'out', ((2, 16),))
  translate = runpy.run_path(str(tmp_path / 'out' / 'load.py'))['translate']
  expected = list(Translator(run, run.config.decoding).translate(lines))
  assert translate(lines) == expected
  untagged = dataclasses.replace(run, source_tokenizer=with_tags)
  other = Translator(untagged, run.config.decoding).translate(lines)
  assert list(other) != expected
  written = ['<2en> a dog', '<ro><2en>', ' <ro> <2en> the cat sat']
  assert translate(written) == expected
  with pytest.raises(ValueError, match=r'^line 2: begins with <2fr>, the tag'):
    translate(['a dog', '<2fr> a dog'])


@pytest.fixture(scope='module')
def grouped(tokenizer):
  """A decoder of three groups of two layers."""
  return random_run(tokenizer, 0, SideConfig('gtrans'), layers=6)


def _output(run, parameters, *training, **rngs):
  return run.model.apply(
    {'params': parameters},
    *(jnp.array([[3, 4]]), jnp.array([2]), jnp.array([[5, 6]])),
    *training,
    **rngs,
  )


def test_only_the_groups_asked_for_and_the_layers_they_need(grouped):
  run = grouped
  everything = _output(run, run.parameters)
  assert everything.features.shape == (3, 1, 2, 16)
  kept = _output(with_groups(run, '1:2'), run.parameters)
  np.testing.assert_array_equal(kept.features, everything.features[:2])
  np.testing.assert_allclose(jnp.exp(kept.log_weights).sum(), 1, rtol=1e-6)
  assert len(kept.decoder_layers) == 1 + 4


def test_layers_above_the_last_group_are_not_read(grouped):
  run = with_groups(grouped, '1:1')
  broken = dict(run.parameters)
  broken['decoder'] = dict(broken['decoder'])
  broken['decoder']['layer_2'] = jax.tree.map(
    lambda x: jnp.nan * x, broken['decoder']['layer_2']
  )
  assert np.isfinite(_output(run, broken).features).all()


def test_groups_that_are_not_there_are_refused(grouped, runs):
  with pytest.raises(InputError, match="within 1:3, got '2:4'"):
    with_groups(grouped, '2:4')
  with pytest.raises(InputError, match="has no groups, its fusion is 'none'"):
    with_groups(runs[0], '1:1')


def test_training_uses_all_groups(grouped):
  run = with_groups(grouped, '1:1')
  shapes = jax.eval_shape(lambda: initial_parameters(run.model, 0))
  assert 'layer_5' in shapes['decoder']
  rngs = {'dropout': jax.random.key(0)}
  trained = _output(run, run.parameters, False, rngs=rngs)
  assert trained.features.shape[0] == 3
