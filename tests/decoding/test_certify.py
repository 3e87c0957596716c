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
from copying import Copying, make_run, random_run
from tiers import extended_but

from fusion_jax.cli import decode as decode_program
from fusion_jax.cli import run as run_module
from fusion_jax.cli.run import sample_lines
from fusion_jax.config import DecodingConfig, ModelConfig
from fusion_jax.decoding.batches import PairIds
from fusion_jax.decoding.certify import (
  Certificate,
  Comparison,
  StepCheck,
  all_scenarios,
  as_json,
  compare,
  compare_steps,
  relative_gaps,
  report,
  rounding,
)
from fusion_jax.decoding.translate import Translation
from fusion_jax.models.transformer import ModelOutput, OutputLayer


def test_by_hand():
  # 8 * 2^-23 * sqrt(12 layers * 512).
  assert rounding(ModelConfig()) == pytest.approx(7.475e-5, rel=1e-3)
  assert rounding(ModelConfig(compute_dtype='bfloat16')) == 0.02
  assert rounding(ModelConfig(), 'int8') == 0.05
  assert rounding(ModelConfig(product_dtype='bfloat16')) == 0.01
  # |-1.5 + 1| / 1.0, |-3 + 4| / 4 and 0.
  found = relative_gaps([-1.5, -3.0, 0.0], [-1.0, -4.0, 0.0])
  assert found.tolist() == [0.5, 0.25, 0.0]
  assert np.isnan(relative_gaps([np.nan, 0.0], [0.0, np.nan])).all()


@pytest.mark.parametrize(('layers', 'width'), [(1, 16), (6, 512)])
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


def _found(ids, score, tokens=()):
  return Translation(
    f'text {ids}', score, score, (PairIds([5, 3], ids),), tokens
  )


def _compare(ours, theirs, forced=()):
  """Compare with given teacher-forced scores."""
  scores = iter(forced)
  return compare([7], [ours], [theirs], lambda _: next(scores), 1e-2)


@pytest.mark.parametrize(
  ('score', 'kinds'), [(-2.015, []), (-2.03, ['score']), (math.nan, ['score'])]
)
def test_the_same_translation_may_change_within_the_bound(score, kinds):
  """The bound is 0.01 * max(1, 2)."""
  ours = [_found([4, 3], -1.0), _found([6, 3], -2.0)]
  found, largest = _compare(ours, [ours[0], _found([6, 3], score)])
  assert [difference.kind for difference in found] == kinds
  assert largest == pytest.approx(-2.0 - score, nan_ok=True)


@pytest.mark.parametrize(
  ('forced', 'kind'),
  [
    ([-1.0, -1.009], 'tie'),
    ([-4.0, -9.0], 'translation'),
    ([-4.0, math.nan], 'translation'),
  ],
)
def test_two_translations_tie_by_their_forced_scores(forced, kind):
  ours, theirs = _found([4, 3], -1.0), _found([9, 3], -5.0)
  same = _found([5, 3], 0.0)
  (found,), largest = _compare([same, ours], [same, theirs], forced)
  assert (found.line, found.rank, found.kind) == (7, 2, kind)
  assert (found.ours, found.theirs) == (ours, theirs)
  assert found.gap == pytest.approx(forced[0] - forced[1], nan_ok=True)
  # The scores of two translations say nothing of one's rounding.
  assert largest == 0
  comparison = Comparison('', (found,))
  assert (comparison.ties == [7]) == (comparison.different == [])
  assert (comparison.ties == [7]) == (kind == 'tie')


def test_a_missing_hypothesis_is_a_difference():
  both = [_found([4, 3], -1.0), _found([6, 3], -2.0)]
  for ours, theirs in ((both, both[:1]), (both[:1], both)):
    (difference,), _ = _compare(ours, theirs)
    assert (difference.rank, difference.kind) == (2, 'missing')
    assert None in (difference.ours, difference.theirs)


def test_steps_by_hand():
  answers = [
    [_found([4, 3], -1.0, (-0.5, -0.5)), _found([6, 3], -2.0, (-1.0, -1.0))],
    [_found([5, 3], -1.0, (-2.5, 0.0))],
  ]
  forced = {4: [-0.5, -0.75], 6: [-1.0, -1.0], 5: [-4.0, 0.0]}

  def found():
    return compare_steps(
      [2, 8], answers, lambda answer: forced[answer.pairs[0].target[0]]
    )

  # (2.5 - 4) / 4 is the largest; 0.25 of -0.75 counts as it is.
  assert found() == StepCheck(6, 0.375, line=8, rank=1, position=1)
  forced[6][1] = math.nan
  assert math.isnan(found().largest)
  assert (found().line, found().rank, found().position) == (2, 2, 2)


@pytest.mark.parametrize(
  ('steps', 'message'),
  [
    (StepCheck(), 'no line has a translation'),
    (StepCheck(3, 2e-2, 2, 1, 3), r'2.0e-02 \(line 2, translation 1, subw'),
    (StepCheck(3, math.nan, 2, 1, 3), r'nan \(line 2'),
    (StepCheck(3, 1e-2, 2, 1, 3), ''),
  ],
)
def test_what_does_not_hold_is_told(steps, message):
  fault = Certificate(1e-2, [1], (Comparison('default'),), steps).fault
  assert re.search(message, fault)
  assert bool(fault) == bool(message)


def test_a_long_list_is_cut_and_json_has_all_of_it():
  ours = [[_found([4, 3], math.nan)] for _ in range(30)]
  found = compare(range(30), ours, ours, lambda _: 0.0, 1e-2)
  comparisons = (Comparison('a scenario', *found),)
  certificate = Certificate(1e-2, [*range(30)], comparisons, StepCheck(1))
  assert list(report(certificate))[-1].startswith('10 more differences')
  written = json.loads(as_json(certificate, workdir='run'))
  assert written['workdir'] == 'run'
  assert not written['certified']
  (comparison,) = written['comparisons']
  assert comparison['largest'] is None
  differences = comparison['differences']
  assert [each['line'] for each in differences] == list(range(30))
  assert differences[0]['ours']['pairs'] == [[[5, 3], [4, 3]]]


@pytest.mark.parametrize('search', ['beam', 'sample'])
def test_all_scenarios(search):
  # Six sources of 8 subwords, 2 translations each: 96 slots, so 24 and 6.
  pair = PairIds([0] * 8, [0])
  answers = [[Translation('', 0.0, 0.0, (pair,))] * 2] * 6
  options = dataclasses.replace(OPTIONS, search=search)
  scenarios = all_scenarios(options, answers, devices=6)
  assert {scenario.slots for scenario in scenarios} == {0, 1, 6, 24}
  assert [s.devices for s in scenarios if s.devices] == [1, 2, 4]
  orders = [scenario.order for scenario in scenarios if scenario.order]
  # A line's draws are those of its number.
  assert len(orders) == (2 if search == 'beam' else 0)
  assert all(sorted(order) == list(range(6)) for order in orders)
  assert not all_scenarios(options, answers, devices=1)[-1].devices


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
      (ReadsNeighbour, '1 of 8 devices', ['translation'] * 3, 3),
      (Unsure, 'longest shape', ['score'] * 4, 1),
    ],
    lambda case: case[0] is ReadsPadding,
  ),
)
def test_a_broken_model_is_caught(
  decode, tokenizer, capsys, kind, scenario, different, first
):
  flags = '--beam_size=1', '--batch_tokens=64'
  code, written = decode(make_run(tokenizer, kind), *flags)
  assert code == 1
  assert not written['certified']
  found = {each['scenario']: each for each in written['comparisons']}
  differences = found[scenario]['differences']
  assert [each['kind'] for each in differences] == different
  assert differences[0]['line'] == first
  out, err = capsys.readouterr()
  (line,) = [x for x in err.splitlines() if x.startswith('failed: ')]
  where = f'of 4 sentences differ in the scenario {scenario!r}: line {first},'
  assert where in line
  assert f'line {first}, {scenario}, translation 1: {different[0]}' in out


def test_a_broken_cache_is_caught(decode, tokenizer, capsys):
  code, written = decode(make_run(tokenizer, BadCache), '--beam_size=1')
  assert code == 1
  assert not any(each['differences'] for each in written['comparisons'])
  assert written['steps']['largest'] > 0.05
  line = capsys.readouterr().err.splitlines()[-1]
  assert line.startswith('failed: cached steps against teacher-forced pass: ')


def test_a_random_transformer_passes_all_scenarios(decode, tokenizer, capsys):
  run = random_run(tokenizer, 5)
  # Its weights are three times as large as the bound takes them to be.
  plain = jax.tree.map(lambda x: x / 3, run.parameters)
  code, written = decode(dataclasses.replace(run, parameters=plain))
  assert code == 0
  assert written['certified']
  # One by one, two sizes, two orders, the longest shape, 1, 2 and 4 devices.
  assert [each['differences'] for each in written['comparisons']] == [[]] * 9
  assert written['lines'] == [1, 3, 5, 7]
  steps = written['steps']
  assert steps['subwords'] > 16
  assert 0 < steps['largest'] <= written['tolerance']
  lines = capsys.readouterr().out.splitlines()
  assert lines[2].startswith('| one by one | 0 | 0 | ')
  assert lines[-1] == 'certified'


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
  ],
)
def test_mistakes_end_in_one_line(decode, tokenizer, capsys, flags, message):
  Path('blank').write_text(' \n\n')
  code, report = decode(make_run(tokenizer), *flags)
  assert (code, report) == (2, None)
  assert (
    capsys.readouterr().err.splitlines()[-1].startswith(f'error: {message}')
  )
