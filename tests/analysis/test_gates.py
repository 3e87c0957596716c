"""Gates of lexical shortcuts by layer, position and frequency."""

import dataclasses
import json

import numpy as np
import pytest
from fused_runs import (
  all_at_once,
  fused_run,
  make_run,
  rows_of,
  shown,
)
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from pictures import assert_not_blank
from tiers import extended_but

from fusion_jax.analysis.frequency import frequency_bins, subword_counts
from fusion_jax.analysis.gates import VIEW, draw, gate_numbers
from fusion_jax.analysis.view import look_at
from fusion_jax.config.fusion import GtransOptions, ShortcutOptions, SideConfig

SELF = SideConfig(shortcut=ShortcutOptions(source='lexical'))
BOTH = SideConfig(shortcut=ShortcutOptions(source='lexical', where='both'))
CROSS = SideConfig(shortcut=ShortcutOptions(source='lexical', where='cross'))
# Without these K_S = K_H = 0 and V_S = V_H = 0: gates are sigmoid(bias).
NO_PROJECTIONS = {
  f'self_attention/{name}/{part}': 0.0
  for name in ('key', 'value')
  for part in ('kernel', 'bias')
} | {f'shortcut_{name}/kernel': 0.0 for name in ('key', 'value')}
# sigmoid(log 3) = 3 / 4.
LOG_3 = np.log(3)


@pytest.fixture(scope='module')
def analysed(tmp_path_factory):
  run = make_run(encoder=SELF, decoder=BOTH)
  return fused_run(run, tmp_path_factory.mktemp('gates'))


@pytest.fixture(scope='module')
def numbers(analysed):
  found = look_at(VIEW, analysed, analysed.workdir / 'analysis').numbers
  return json.loads(json.dumps(found))


def test_by_layer_against_all_gates_of_the_text(analysed, numbers):
  _, sources, _, targets = all_at_once(analysed)
  views = shown(analysed)
  places = {
    'encoder self-attention': sources,
    'decoder self-attention': targets,
    'decoder cross-attention': sources,
  }
  assert list(numbers) == list(places)
  for place, lengths in places.items():
    side, attention = place.replace('-', '_').split()
    assert numbers[place]['positions']['all'] == lengths.sum()
    for kind in ('key_gate', 'value_gate'):
      for layer in range(2):
        gates = views[side][f'layer_{layer}'][attention][kind]
        own = rows_of(gates, lengths)
        moments = [
          numbers[place][kind][moment]['layer'][layer]
          for moment in ('mean', 'deviation')
        ]
        np.testing.assert_allclose(moments, [own.mean(), own.std()], rtol=1e-4)


def test_by_position_against_all_gates_of_the_text(analysed, numbers):
  lengths = all_at_once(analysed)[3]
  gates = shown(analysed)['decoder']['layer_1']['self_attention']['key_gate']
  own = numbers['decoder self-attention']
  counts = [int((lengths > place).sum()) for place in range(20)]
  assert own['positions']['position'] == counts
  assert counts[0] == 6
  for place in (0, 3):
    column = gates[lengths > place, place]
    moments = [
      own['key_gate'][moment]['position'][place][1]
      for moment in ('mean', 'deviation')
    ]
    np.testing.assert_allclose(
      moments, [column.mean(), column.std()], rtol=1e-4
    )


def test_by_frequency_of_what_the_position_reads(analysed, numbers):
  run, pairs = analysed.run, analysed.pairs
  counts = subword_counts((p.target for p in pairs), run.target_tokenizer)
  bins = frequency_bins(counts)
  gates = shown(analysed)['decoder']['layer_0']['self_attention']['value_gate']
  found = [[] for _ in range(10)]
  for row, pair in zip(gates, pairs, strict=True):
    # Position t reads token t - 1; the first reads the start symbol.
    for place, token in enumerate(pair.target[:-1], start=1):
      found[bins[token]].append(row[place])
  own = numbers['decoder self-attention']
  assert own['positions']['frequency'] == [len(each) for each in found]
  for number, each in enumerate(found):
    mean = own['value_gate']['mean']['frequency'][number][0]
    if each:
      np.testing.assert_allclose(mean, np.mean(each), rtol=1e-4)
    else:
      assert mean is None


@pytest.mark.parametrize(
  'run_as',
  extended_but(
    [
      {'remat': True},
      {'scan_layers': True},
      {'scan_layers': True, 'remat': True},
    ],
    lambda run_as: len(run_as) == 2,
  ),
)
def test_without_projections_gates_are_those_of_their_bias(tmp_path, run_as):
  biases = {'key_gate_bias': 0.0, 'value_gate_bias': LOG_3}
  run = make_run(NO_PROJECTIONS | biases, encoder=SELF, **run_as)
  numbers = gate_numbers(fused_run(run, tmp_path))
  assert list(numbers) == ['encoder self-attention']
  own = numbers['encoder self-attention']
  for kind, expected in (('key_gate', 0.5), ('value_gate', 0.75)):
    for part in ('layer', 'position', 'frequency'):
      rows = [
        row for row in own[kind]['mean'][part] if row not in (None, [None] * 2)
      ]
      assert rows
      np.testing.assert_allclose(rows, expected, rtol=1e-5)
    deviations = own[kind]['deviation']['layer']
    # The root of a mean square's rounding.
    np.testing.assert_allclose(deviations, [0, 0], atol=1e-3)


def test_scanned_cross_attention(tmp_path):
  run = make_run(decoder=CROSS, scan_layers=True)
  analysed = fused_run(run, tmp_path)
  lengths = all_at_once(analysed)[1]
  gates = shown(analysed)['decoder']['layers']['cross_attention']['key_gate']
  own = gate_numbers(analysed)['decoder cross-attention']
  expected = [rows_of(layer, lengths).mean() for layer in gates]
  np.testing.assert_allclose(
    own['key_gate']['mean']['layer'], expected, rtol=1e-5
  )


def test_layers_that_no_group_reads_have_no_gates(tmp_path):
  # The first of two groups translates; the memory is made for both layers.
  options = GtransOptions(group_size=1, inference_groups='1:1')
  decoder = dataclasses.replace(BOTH, fusion='gtrans', gtrans=options)
  numbers = gate_numbers(fused_run(make_run(decoder=decoder), tmp_path))
  layers = [len(own['key_gate']['mean']['layer']) for own in numbers.values()]
  assert layers == [1, 2]


def test_bins_of_counts_by_hand():
  # The middles of 10, 5, 4 and 1 of 20 are at 5 / 20, 12.5 / 20, 17 / 20 and
  # 19.5 / 20.
  counts = np.array([0, 1, 10, 4, 5], np.int64)
  assert frequency_bins(counts).tolist() == [-1, 0, 7, 1, 3]
  assert frequency_bins(np.zeros(3, np.int64)).tolist() == [-1] * 3


@given(
  hnp.arrays(np.int64, st.integers(1, 40), elements=st.integers(0, 9)),
  st.integers(1, 12),
)
def test_bins_have_at_most_their_mass_and_one_subword_more(counts, number):
  bins = frequency_bins(counts, number)
  assert ((bins == -1) == (counts == 0)).all()
  share = counts.sum() / number
  for each in range(number):
    own = counts[bins == each]
    assert own.sum() <= share + own.max(initial=0) + 1e-9
  # Rarer subwords are in no later bin.
  seen = bins[np.argsort(-counts, kind='stable')][: (counts > 0).sum()]
  assert (np.diff(seen) <= 0).all()


def test_end_symbols_are_not_counted(analysed):
  tokenizer = analysed.run.source_tokenizer
  counts = subword_counts((p.source for p in analysed.pairs), tokenizer)
  assert counts[tokenizer.vocabulary.end] == 0
  assert counts.sum() == sum(len(p.source) - 1 for p in analysed.pairs)


def test_the_figure(analysed, numbers):
  assert numbers
  assert_not_blank(analysed.workdir / 'analysis/gates.png')


def test_gates_are_drawn_from_0_to_1(numbers):
  figure = draw(numbers)
  assert [axes.get_ylim() for axes in figure.axes] == [(0, 1)] * 6
  assert not any(axes.get_legend() for axes in figure.axes)
  assert len(figure.legends) == 1
