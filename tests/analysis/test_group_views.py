"""Weights of groups of layers, and BLEU of parts of them."""

import json
import math

import numpy as np
import pytest
from fused_runs import SOURCES, TARGETS, fused_run, make_run
from pictures import assert_not_blank

from fusion_jax.analysis import groups, run_with_text
from fusion_jax.analysis.groups import group_scores, group_weights, with_groups
from fusion_jax.analysis.view import look_at
from fusion_jax.config.fusion import GtransOptions, SideConfig
from fusion_jax.decoding.translate import Translator
from fusion_jax.errors import InputError

ONE = SideConfig(fusion='gtrans', gtrans=GtransOptions(group_size=1))
LAST = SideConfig(
  fusion='gtrans', gtrans=GtransOptions(group_size=1, mode='last')
)
# psi of the weights tau log(1, 2, 5) is 1/8, 2/8, 5/8; tau = sqrt(width 16).
PSI = [0.125, 0.25, 0.625]
WEIGHTS = 4 * np.log([1.0, 2.0, 5.0])


def _three_groups(**options):
  return make_run(
    {
      'decoder/prediction/group_weights': WEIGHTS,
      # sigmoid(0) and sigmoid(+-log 3).
      'decoder/prediction/layer_weights': [0.0, math.log(3), -math.log(3)],
      'encoder/read_out/weights': [math.log(3)],
    },
    encoder=SideConfig(fusion='gtrans'),
    decoder=ONE,
    decoder_layers=3,
    **options,
  )


def _log(folder, *rows):
  lines = ''.join(f'{json.dumps(row)}\n' for row in rows)
  (folder / 'metrics.jsonl').write_text(lines)


def test_weights_of_hand_made_parameters(tmp_path):
  analysed = fused_run(_three_groups(), tmp_path)
  _log(tmp_path, {'step': 1, 'kind': 'train', 'loss': 2.0})
  numbers = group_weights(analysed)
  assert numbers['training'] is None
  weights = numbers['weights']
  assert list(weights) == ['encoder', 'decoder_layers', 'psi']
  np.testing.assert_allclose(weights['psi'], PSI, rtol=1e-5)
  np.testing.assert_allclose(weights['decoder_layers'], [0.5, 0.75, 0.25])
  np.testing.assert_allclose(weights['encoder'], [0.75])
  # Groups of three layers in an encoder of two.
  assert numbers['layers'] == {
    'encoder': [[1, 2]],
    'decoder': [[1, 1], [2, 2], [3, 3]],
  }


def test_weights_over_the_training(tmp_path, caplog):
  analysed = fused_run(_three_groups(), tmp_path)
  psi = 'decoder/prediction/group_weights'
  rows = [
    {
      'step': step,
      'kind': 'fusion',
      'encoder/read_out/group_weights_0': 0.5,
      **{f'{psi}_{k}': value for k, value in enumerate(values)},
      f'{psi}_of_another': 9.0,
    }
    for step, values in ((10, [0.3, 0.3, 0.4]), (20, [0.2, None, 0.6]))
  ]
  _log(tmp_path, *rows)
  finding = look_at(groups.WEIGHTS, analysed, tmp_path / 'analysis')
  assert not caplog.records
  training = finding.numbers['training']
  assert training == {
    'steps': [10, 20],
    'encoder': [[0.5, 0.5]],
    'psi': [[0.3, 0.2], [0.3, None], [0.4, 0.6]],
  }
  assert 'psi: 0.125, 0.250, 0.625' in finding.summary
  assert_not_blank(tmp_path / 'analysis/groups.png')


def test_ten_groups_are_in_their_order(tmp_path):
  run = make_run(
    {'decoder/prediction/group_weights': np.arange(11.0)},
    decoder=LAST,
    decoder_layers=11,
  )
  names = [f'decoder/prediction/group_weights_{k}' for k in range(11)]
  _log(tmp_path, {'step': 5, 'kind': 'fusion'} | dict.fromkeys(names, 0.1))
  analysed = fused_run(run, tmp_path)
  finding = look_at(groups.WEIGHTS, analysed, tmp_path)
  assert list(finding.numbers['weights']) == ['psi']
  training = finding.numbers['training']
  assert np.shape(training['psi']) == (11, 1)
  # One line of the log is no curve; two are.
  assert _panels(finding.numbers) == 1
  twice = {
    'steps': 2 * training['steps'],
    'psi': [2 * values for values in training['psi']],
  }
  assert _panels(finding.numbers | {'training': twice}) == 2


def _panels(numbers):
  return sum(axes.has_data() for axes in groups.draw_weights(numbers).axes)


def test_without_metrics_the_weights_are_there(tmp_path, caplog):
  run = make_run(decoder=ONE, decoder_layers=6)
  finding = look_at(groups.WEIGHTS, fused_run(run, tmp_path), tmp_path / 'a')
  (record,) = caplog.records
  assert 'metrics.jsonl' in record.getMessage()
  assert len(finding.numbers['weights']['psi']) == 6
  # The paper's psi have as many groups, and are drawn beside.
  assert sum(finding.numbers['paper']) == pytest.approx(1)
  svg = (tmp_path / 'a/groups.svg').read_text(encoding='utf-8')
  assert 'Yang 2022, 6 + 18 layers' in svg
  assert_not_blank(tmp_path / 'a/groups.png')


def test_a_run_with_other_groups_translates_with_them():
  run = make_run(decoder=ONE)
  pruned = with_groups(run, '2:2')
  for config in (pruned.config.model, pruned.model.config):
    assert config.decoder.gtrans.inference_groups == '2:2'
  assert run.config.model.decoder.gtrans.inference_groups == ''
  assert pruned.parameters is run.parameters
  with pytest.raises(InputError, match="within 1:2, got '1:3'"):
    with_groups(run, '1:3')


@pytest.mark.extended
def test_bleu_of_every_group(tmp_path):
  run = make_run(
    {'decoder/prediction/group_weights': [0.0, 4 * math.log(3)]},
    # With this seed both groups translate into several words.
    scale=1.0,
    encoder_layers=1,
    decoder=ONE,
  )
  # What the first group says is the reference: it alone has all of it right.
  sources = [line for line in SOURCES + TARGETS if len(line.split()) > 5]
  first = with_groups(run, '1:1')
  translator = Translator(first, run.config.decoding)
  references = list(translator.translate(sources))
  assert max(len(line.split()) for line in references) > 3
  analysed = fused_run(run, tmp_path, sources, references)
  finding = look_at(groups.BLEU, analysed, tmp_path / 'analysis')
  numbers = finding.numbers
  assert numbers['single'][0] == pytest.approx(100)
  assert numbers['pruned'][1] == numbers['single'][1] < 99
  assert len(numbers['pruned']) == 2
  np.testing.assert_allclose(numbers['psi'], [0.25, 0.75], rtol=1e-5)
  assert numbers['lines'] == len(sources)
  assert numbers['signature'].startswith('nrefs:1|')
  assert numbers['decoding']['beam_size'] == 1
  assert 'group 1 of 2, has 100.00' in finding.summary
  assert_not_blank(tmp_path / 'analysis/group_bleu.png')


def test_the_last_groups_of_a_search_are_all_tried_once(tmp_path, monkeypatch):
  tried = []

  class Knowing:
    def __init__(self, run, options):
      tried.append(run.model.config.decoder.gtrans.inference_groups)

    def translate(self, lines):
      return iter(TARGETS)

  monkeypatch.setattr(run_with_text, 'Translator', Knowing)
  numbers = group_scores(fused_run(_three_groups(), tmp_path))
  assert tried == ['1:3', '2:3', '3:3', '1:1', '2:2']
  assert numbers['single'] == pytest.approx([100] * 3)
