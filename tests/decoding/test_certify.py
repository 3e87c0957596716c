"""The comparison by hand, broken models that it finds, sound ones that pass."""

import dataclasses
import json
import math
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import norm_for, reading
from copying import Copying, make_run, make_tokenizer, random_run
from tiers import extended_but

from fusion_jax.cli import decode as decode_program
from fusion_jax.cli import run as run_module
from fusion_jax.cli.run import sample_lines
from fusion_jax.config import DecodingConfig, ModelConfig
from fusion_jax.config.fusion import SideConfig
from fusion_jax.decoding.batches import PairIds, PlannedBatch
from fusion_jax.decoding.certify import (
  Certificate,
  Comparison,
  Scenario,
  StepCheck,
  Tolerance,
  all_scenarios,
  as_json,
  certify,
  compare,
  compare_steps,
  failure,
  relative_gaps,
  rounding,
  table,
  translated,
)
from fusion_jax.decoding.sentences import Sentence
from fusion_jax.decoding.translate import Translation, Translator
from fusion_jax.errors import InputError
from fusion_jax.fusion import SCHEMES
from fusion_jax.models.transformer import ModelOutput, OutputLayer, Transformer
from fusion_jax.testing import drawn_parameters


def test_by_hand():
  # 8 * 2^-23 * sqrt(12 layers * 512).
  assert rounding(ModelConfig()) == pytest.approx(7.475e-5, rel=1e-3)
  assert rounding(ModelConfig(compute_dtype='bfloat16')) == 0.02
  # |-1.5 + 1| / 1.0, |-3 + 4| / 4 and 0.
  found = relative_gaps([-1.5, -3.0, 0.0], [-1.0, -4.0, 0.0])
  assert found.tolist() == [0.5, 0.25, 0.0]
  assert np.isnan(relative_gaps([np.nan, 0.0], [0.0, np.nan])).all()


@pytest.mark.parametrize(('layers', 'width'), [(1, 16), (6, 512), (12, 1024)])
def test_another_order_of_the_terms_is_explained(layers, width):
  """Layers of random products, each summed from both ends."""
  rng = np.random.default_rng(0)
  forward = backward = rng.standard_normal(width, np.float32)
  for _ in range(2 * layers):
    kernel = rng.standard_normal((width, width), np.float32) / np.sqrt(width)
    kernel = kernel.astype(np.float32)
    forward = np.cumsum(forward * kernel, 1, np.float32)[:, -1]
    backward = np.cumsum((backward * kernel)[:, ::-1], 1, np.float32)[:, -1]
  gap = relative_gaps(forward, backward).max()
  config = ModelConfig(
    width=width, heads=1, encoder_layers=layers, decoder_layers=layers
  )
  allowed = rounding(config)
  assert allowed / 50 < gap < allowed / 2


# Each has at most 7 subwords.
SHORT = ['the dog sat', 'cats', 'a dog', 'a cat sat']
OPTIONS = DecodingConfig(
  beam_size=2, max_source_length=16, batch_tokens=128, max_length_extra=3
)
SCENARIO = Scenario('a scenario')
TOLERANCE = Tolerance(1e-2, True)


class Sound(Copying):
  """Copies in the teacher-forced pass as well."""

  def __call__(self, source, source_lengths, target, *rest):
    logits = [
      self.decode_step(
        target[:, :1], jnp.int32(at), None, None, (source, source_lengths)
      )[0]
      for at in range(target.shape[1])
    ]
    size = self.target_vocabulary
    layer = OutputLayer(jnp.eye(size), None)
    features = jnp.concatenate(logits, 1)
    return ModelOutput(features, layer, (), (), features)


class ReadsPadding(Sound):
  """Leaves out the first subword of a source that has much padding."""

  def decode_step(self, tokens, position, rows, cache, memory):
    skipped = int(memory[0].shape[1] > 8)
    return super().decode_step(tokens, position + skipped, rows, cache, memory)


class ReadsNeighbour(Sound):
  """Translates the first sentence of the batch for every other."""

  def decode_step(self, tokens, position, rows, cache, memory):
    first = jax.tree.map(
      lambda leaf: jnp.broadcast_to(leaf[:1], leaf.shape), memory
    )
    return super().decode_step(tokens, position, rows, cache, first)


class Unsure(Sound):
  """Less sure of the same translation where there is much padding."""

  def decode_step(self, tokens, position, rows, cache, memory):
    logits, cache = super().decode_step(tokens, position, rows, cache, memory)
    return logits / (4 if memory[0].shape[1] > 8 else 1), cache


class BadCache(Sound):
  """Less sure step by step than in the teacher-forced pass."""

  def decode_step(self, tokens, position, rows, cache, memory):
    logits, cache = super().decode_step(tokens, position, rows, cache, memory)
    return logits / (1 if rows is None else 4), cache


@pytest.fixture(scope='module')
def tokenizer():
  return make_tokenizer()


def _found(ids, score, tokens=()):
  return Translation(
    f'text {ids}', score, score, (PairIds([5, 3], ids),), tokens
  )


def _score(translations):
  """Teacher-forced scores: minus the first id."""
  return [-float(each.pairs[0].target[0]) for each in translations]


def _compare(ours, theirs, score=_score):
  return compare(SCENARIO, [7], [ours], [theirs], score, TOLERANCE)


def test_the_same_answers_have_no_difference():
  ours = [_found([4, 3], -1.0), _found([6, 3], -2.0)]
  # Within 0.01 * max(1, 2) of -2.
  theirs = [_found([4, 3], -1.0), _found([6, 3], -2.015)]
  found = _compare(ours, theirs, score=lambda asked: [0.0 for _ in asked])
  assert found.differences == ()
  assert (found.sentences, found.different, found.ties) == (1, [], [])
  assert found.largest == pytest.approx(0.015)


def test_a_tie_is_two_translations_of_one_score():
  ours, theirs = _found([4, 3], -1.0), _found([9, 3], -5.0)
  found = _compare([ours], [theirs], score=lambda asked: [-1.0, -1.009])
  (tie,) = found.differences
  assert (tie.line, tie.rank, tie.kind) == (7, 1, 'tie')
  assert tie.gap == pytest.approx(0.009)
  assert tie.bound == pytest.approx(0.01)
  assert (found.different, found.ties) == ([], [7])
  # The scores of two translations say nothing of one's rounding.
  assert found.largest == 0


def test_a_real_difference_has_both_translations_and_their_gap():
  ours, theirs = _found([4, 3], -1.0), _found([9, 3], -1.0)
  found = _compare([_found([5, 3], 0.0), ours], [_found([5, 3], 0.0), theirs])
  (difference,) = found.differences
  assert (difference.rank, difference.kind) == (2, 'translation')
  assert (difference.ours, difference.theirs) == (ours, theirs)
  # -4 - (-9), by _score.
  assert difference.gap == 5
  assert (found.different, found.ties) == ([7], [])


@pytest.mark.parametrize('score', [-1.02, math.nan])
def test_another_score_of_the_same_translation_is_a_difference(score):
  found = _compare([_found([4, 3], -1.0)], [_found([4, 3], score)])
  assert [each.kind for each in found.differences] == ['score']
  assert found.different == [7]
  assert not found.largest < 0.019


def test_a_missing_hypothesis_is_a_difference():
  both = [_found([4, 3], -1.0), _found([6, 3], -2.0)]
  for ours, theirs in ((both, both[:1]), (both[:1], both)):
    (difference,) = _compare(ours, theirs).differences
    assert (difference.rank, difference.kind) == (2, 'missing')
    assert None in (difference.ours, difference.theirs)
    assert difference.gap is None


def test_steps_by_hand():
  answers = [
    [_found([4, 3], -1.0, (-0.5, -0.5)), _found([6, 3], -2.0, (-1.0, -1.0))],
    [_found([5, 3], -1.0, (-2.5, 0.0))],
  ]
  forced = [[[-0.5, -0.75], [-1.0, -1.0]], [[-4.0, 0.0]]]
  found = compare_steps([2, 8], answers, forced)
  # (2.5 - 4) / 4 is the largest; 0.25 of -0.75 counts as it is.
  mean = (0.375 + 0.25) / 6
  assert found == StepCheck(6, 0.375, mean, line=8, rank=1, position=1)
  forced[0][1][1] = math.nan
  found = compare_steps([2, 8], answers, forced)
  assert math.isnan(found.largest)
  assert (found.line, found.rank, found.position) == (2, 2, 2)


@pytest.mark.parametrize(
  ('steps', 'message'),
  [
    (StepCheck(), 'no line has a translation'),
    (StepCheck(3, 2e-2, 1e-2, 2, 1, 3), r'2.0e-02 \(line 2, translation 1, su'),
    (StepCheck(3, math.nan, math.nan, 2, 1, 3), r'nan \(line 2'),
    (StepCheck(3, 1e-2, 1e-3, 2, 1, 3), ''),
  ],
)
def test_what_does_not_hold_is_told(steps, message):
  certificate = Certificate(TOLERANCE, 1, (Comparison(SCENARIO, 3),), steps)
  assert certificate.holds == (not message)
  assert re.search(message, failure(certificate))
  assert bool(failure(certificate)) == bool(message)
  unjudged = dataclasses.replace(
    certificate, tolerance=Tolerance(1e-2, False), steps=StepCheck(3, 9.0)
  )
  assert failure(unjudged) == ''
  assert list(table(unjudged))[-1].startswith('reported, not judged')


def test_a_long_list_is_cut_and_json_has_all_of_it():
  ours = [[_found([4, 3], math.nan)] for _ in range(30)]
  found = compare(SCENARIO, range(30), ours, ours, _score, TOLERANCE)
  certificate = Certificate(TOLERANCE, 1, (found,), StepCheck(1))
  lines = list(table(certificate))
  assert lines[-2].startswith('10 more differences')
  assert lines[-1] == 'not certified'
  report = json.loads(as_json(certificate, workdir='run'))
  assert report['workdir'] == 'run'
  (scenario,) = report['scenarios']
  assert scenario['largest_score_difference'] is None
  assert [each['line'] for each in scenario['differences']] == list(range(30))
  assert scenario['differences'][0]['ours']['ids'] == [[4, 3]]


def test_all_scenarios():
  scenarios = all_scenarios(OPTIONS, 2, source_tokens=48, devices=6)
  # min(128, 2 * 48) = 96 slots, so 24 and 6.
  assert {scenario.batch_tokens for scenario in scenarios} == {0, 1, 6, 24}
  assert [scenario.devices for scenario in scenarios if scenario.devices] == [
    1,
    2,
    4,
  ]
  assert [scenario.n_best for scenario in scenarios if scenario.n_best] == [1]
  assert {scenario.order for scenario in scenarios} == {
    'given',
    'reversed',
    'shuffled',
  }
  assert not [scenario for scenario in scenarios if scenario.skipped]


@pytest.mark.parametrize(
  ('changes', 'n_best', 'reason'),
  [
    ({'search': 'sample'}, 3, 'another number of samples'),
    ({'beam_size': 1}, 1, 'a beam of 1'),
    ({'beam_size': 4, 'patience': 0.5}, 4, 'patience 0.5 ends the search'),
  ],
)
def test_ways_that_would_differ_are_skipped(changes, n_best, reason):
  options = dataclasses.replace(OPTIONS, **changes)
  skipped = [
    scenario.skipped for scenario in all_scenarios(options, n_best, 48, 1)
  ]
  assert 'there is 1 device' in skipped
  assert [why for why in skipped if why.startswith(reason)]


def test_the_number_of_devices_that_translate(tokenizer):
  end = tokenizer.vocabulary.end
  sources = [Sentence(([4, end],))] * 4
  for count in (1, 2, 4):
    translator = Translator(make_run(tokenizer), OPTIONS, devices=count)
    shape = next(s for s in translator.shapes if s.rows == 8)
    batch = PlannedBatch(shape, list(range(4)))
    tokens = translator._start(batch, sources, 0, prefixed=False).tokens
    assert len(tokens.sharding.device_set) == count
    assert tokens.addressable_shards[0].data.shape[0] == 8 // count


def test_draws_are_those_of_the_line_in_every_order(tokenizer):
  options = dataclasses.replace(
    OPTIONS, search='sample', max_source_length=8, batch_tokens=64
  )
  run = random_run(tokenizer, 5)
  # The second line is translated in pieces.
  lines = ['cats', 'the dog sat on the mat in the house', 'a dog', 'cats']
  ours = translated(run, options, 2, Scenario('default'), lines)
  assert len(ours[1][0].pairs) > 1
  assert ours[0] != ours[3]
  for order in ('reversed', 'shuffled'):
    theirs = translated(run, options, 2, Scenario(order, order=order), lines)
    assert [_ids(each) for each in theirs] == [_ids(each) for each in ours]


def _ids(translations):
  return [each.pairs for each in translations]


@pytest.fixture
def decode(tokenizer, monkeypatch, tmp_path):
  """Certifies a model and gives exit code and report."""
  monkeypatch.chdir(tmp_path)
  Path('source').write_text('\n\n'.join(SHORT) + '\n')

  def run(trained, *flags):
    small = dataclasses.replace(trained.config, decoding=OPTIONS)
    trained = dataclasses.replace(trained, config=small)
    monkeypatch.setattr(run_module, 'load_run', lambda *_: trained)
    given = '--workdir=run', '--mode=certify', '--output=report'
    code = decode_program.main([*given, '--input=source', *flags])
    report = Path('report')
    return code, json.loads(report.read_text()) if report.exists() else None

  return run


@pytest.mark.parametrize(
  ('kind', 'scenario', 'different', 'first'),
  extended_but(
    [
      (ReadsPadding, 'longest shape', ['translation'] * 4, 1),
      # On eight devices each has one sentence; one device has all of them, and
      # the first of its batch, the longest, stays what it is.
      (ReadsNeighbour, '1 device of 8', ['translation'] * 3, 3),
      (Unsure, 'longest shape', ['score'] * 4, 1),
    ],
    lambda case: case[0] is ReadsPadding,
  ),
)
def test_a_broken_model_is_caught(
  decode, tokenizer, capsys, kind, scenario, different, first
):
  flags = '--beam_size=1', '--batch_tokens=64'
  code, report = decode(make_run(tokenizer, kind), *flags)
  assert code == 1
  assert not report['certified']
  (found,) = [
    each for each in report['scenarios'] if each['scenario'] == scenario
  ]
  kinds = [each['kind'] for each in found['differences']]
  assert kinds == different
  assert found['differences'][0]['line'] == first
  out, err = capsys.readouterr()
  (line,) = [x for x in err.splitlines() if x.startswith('failed: ')]
  assert (
    f'of 4 sentences differ in the scenario {scenario!r}: line {first},' in line
  )
  assert f'line {first}, {scenario}, translation 1: {different[0]}' in out


def test_a_broken_cache_is_caught(decode, tokenizer, capsys):
  code, report = decode(make_run(tokenizer, BadCache), '--beam_size=1')
  assert code == 1
  assert not any(each.get('different') for each in report['scenarios'])
  assert report['cached_against_forced']['largest'] > 0.05
  line = capsys.readouterr().err.splitlines()[-1]
  assert line.startswith('failed: cached steps against teacher-forced pass: ')


def test_a_random_transformer_passes_all_scenarios(decode, tokenizer, capsys):
  code, report = decode(random_run(tokenizer, 5))
  assert code == 0
  assert report['certified']
  # One by one, two sizes, two orders, the longest shape, 1, 2 and 4 devices
  # of 8, and one hypothesis of 2.
  assert report['devices'] == 8
  assert [each.get('sentences') for each in report['scenarios']] == [4] * 10
  assert report['lines'] == [1, 3, 5, 7]
  steps = report['cached_against_forced']
  assert steps['subwords'] > 16
  assert 0 < steps['largest'] <= report['tolerance']
  lines = capsys.readouterr().out.splitlines()
  assert lines[0].split()[:4] == ['scenario', 'sentences', 'different', 'ties']
  assert lines[1].split()[:6] == ['one', 'by', 'one', '4', '0', '0']
  assert lines[-1] == 'certified'


def _fused(tokenizer, name):
  """Two layers a side; weights that need no program of their own."""
  options = {'group_size': 1} if name == 'gtrans' else {}
  side = SideConfig(name, options) if name in SCHEMES else reading(name)
  sides = SCHEMES[name].modules if name in SCHEMES else ('encoder', 'decoder')
  run = make_run(tokenizer, Transformer)
  layers = {'encoder_layers': 2, 'decoder_layers': 2}
  config = dataclasses.replace(
    run.config.model,
    **layers,
    **dict.fromkeys(sides, side),
    norm=norm_for(name, wanted=run.config.model.norm),
  )
  model = run.model.clone(config=config)
  parameters = drawn_parameters(model)
  config = dataclasses.replace(run.config, model=config)
  return dataclasses.replace(
    run, config=config, model=model, parameters=parameters
  )


@pytest.mark.extended
@pytest.mark.parametrize(
  'name',
  # Other schemes combine the layers of one position, as these do.
  ['hierarchical', 'gtrans', 'surface_fusion', 'shortcut'],
)
def test_every_scheme_passes(tokenizer, name):
  options = dataclasses.replace(OPTIONS, max_source_length=8, batch_tokens=64)
  scenarios = (
    Scenario('one by one', batch_tokens=1),
    Scenario('reversed', order='reversed'),
  )
  lines = list(enumerate(SHORT, start=1))
  found = certify(_fused(tokenizer, name), options, lines, 2, scenarios)
  assert [each.sentences for each in found.comparisons] == [4, 4]
  assert found.steps.subwords > 16
  assert found.holds, list(table(found))


def test_lines_are_spread_over_the_file(tmp_path):
  path = tmp_path / 'source'
  path.write_text(''.join(f'{n}\n\n' for n in range(10)))
  # Every third and a bit of 10 lines of text; each is followed by an empty one.
  assert sample_lines(str(path), 3) == [(1, '0'), (7, '3'), (13, '6')]
  assert len(sample_lines(str(path), 64)) == 10


@pytest.mark.parametrize(
  ('flags', 'message'),
  [
    (['--input='], '--mode=certify takes one run, and lines of an --input'),
    (['--input=none'], 'none: cannot be read'),
    (['--input=blank'], 'blank: has no line of text'),
    (['--sentences=0'], 'argument --sentences: must be >= 1, got 0'),
    (['--workdir=a,b'], '--mode=certify takes one run'),
    (['--reference=source'], '--reference has no meaning with --mode=certify'),
    (['--states_output=s.npz'], '--states_output has no meaning with --mode=c'),
    (['--mode=translate', '--sentences=3'], '--sentences has no meaning with'),
    (['--n_best=9'], 'n_best must be between 1 and the beam size 2, got 9'),
    (['--output=none/report'], 'none/report: cannot be written'),
  ],
)
def test_mistakes_end_in_one_line(decode, tokenizer, capsys, flags, message):
  Path('blank').write_text(' \n\n')
  code, report = decode(make_run(tokenizer), *flags)
  assert (code, report) == (2, None)
  assert (
    capsys.readouterr().err.splitlines()[-1].startswith(f'error: {message}')
  )


def test_a_mistake_is_an_input_error(tmp_path):
  with pytest.raises(InputError, match='cannot be read'):
    sample_lines(str(tmp_path / 'none'), 3)
