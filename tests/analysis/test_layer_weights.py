"""Weights of layers, of every scheme that sums them."""

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
from pictures import assert_not_blank

from fusion_jax.analysis.layer_weights import VIEW, layer_weights
from fusion_jax.analysis.view import look_at
from fusion_jax.config.fusion import (
  DlclOptions,
  GrnOptions,
  LinearOptions,
  MuddOptions,
  SideConfig,
)

DYNAMIC = SideConfig(fusion='dynamic_combination')


def test_dlcl_shows_what_is_read(tmp_path):
  run = make_run(
    {
      # Row l is of what follows layer l; above the diagonal nothing is read.
      'encoder/connection/weights': [[1, 9, 9], [2, 3, 9], [4, 5, 6]],
      # Over the features 0..15 the mean of 2 x is 15.
      'decoder/connection/weights': 2 * np.arange(16.0),
    },
    encoder=SideConfig(fusion='dlcl'),
    decoder=SideConfig(
      fusion='dlcl', dlcl=DlclOptions(weights='vector', window=2)
    ),
  )
  numbers = layer_weights(fused_run(run, tmp_path))
  assert numbers['encoder']['weights'] == [
    [1, None, None],
    [2, 3, None],
    [4, 5, 6],
  ]
  assert numbers['encoder']['rows'] == ['layer 1', 'layer 2', 'output']
  assert numbers['encoder']['layers'] == ['H[0]', 'H[1]', 'H[2]']
  assert numbers['decoder']['weights'] == [
    [15, None, None],
    [15, 15, None],
    [None, 15, 15],
  ]


def test_dlcl_with_a_softmax_sums_to_1(tmp_path):
  options = DlclOptions(normalize='softmax')
  run = make_run(
    # Of the second row, 3 and 1 to 1.
    {'encoder/connection/weights': np.log([[1, 1, 1], [3, 1, 1], [1, 2, 5]])},
    encoder=SideConfig(fusion='dlcl', dlcl=options),
  )
  weights = layer_weights(fused_run(run, tmp_path))['encoder']['weights']
  np.testing.assert_allclose(weights[1][:2], [0.75, 0.25], rtol=1e-5)
  np.testing.assert_allclose(weights[2], [0.125, 0.25, 0.625], rtol=1e-5)


def test_transparent_attention_by_layer_of_the_decoder(tmp_path):
  run = make_run(
    # Columns are layers of the decoder: 1, 1, 2 and 1, 1, 0 to one another.
    {'read_out/weights': np.log([[1, 1], [1, 1], [2, 1e-30]])},
    encoder=SideConfig(fusion='transparent'),
  )
  own = layer_weights(fused_run(run, tmp_path))['encoder']
  assert own['rows'] == ['layer 1', 'layer 2']
  np.testing.assert_allclose(
    own['weights'], [[0.25, 0.25, 0.5], [0.5, 0.5, 0]], atol=1e-6
  )


def test_norms_of_the_blocks_of_linear_combination(tmp_path):
  run = make_run(
    # |2 I| = 2 sqrt(16) and |3 I| = 12.
    {
      'encoder/read_out/kernel': np.stack([2 * np.eye(16), 3 * np.eye(16)]),
    },
    encoder=SideConfig(fusion='linear', linear=LinearOptions(factored=False)),
    decoder=SideConfig(fusion='linear'),
    decoder_layers=3,
  )
  numbers = layer_weights(fused_run(run, tmp_path))
  assert numbers['encoder']['norms'] == [8, 12]
  assert numbers['encoder']['layers'] == ['H[1]', 'H[2]']
  # A and B of 48 x 24 and 24 x 16.
  parts = run.parameters['decoder']['read_out']
  product = np.asarray(parts['hidden']['kernel']) @ parts['out']['kernel']
  expected = [
    np.sqrt(np.square(product[16 * layer : 16 * (layer + 1)]).sum())
    for layer in range(3)
  ]
  np.testing.assert_allclose(numbers['decoder']['norms'], expected, rtol=1e-5)


def test_multiway_weights_are_means_over_the_tokens(tmp_path):
  run = make_run(
    # Static weights; the others are sums of states times 0.
    {
      'encoder/connection/static_1': np.arange(8.0).reshape(4, 2),
      'encoder/connection/out_1/kernel': 0.0,
      'encoder/connection/static_2': [[1, 2, 3]],
    },
    norm='pre',
    encoder=SideConfig(fusion='mudd'),
  )
  analysed = fused_run(run, tmp_path)
  own = layer_weights(analysed)['encoder']
  assert own['rows'] == [
    *(f'layer 2, {way}' for way in ('residual', 'query', 'key', 'value')),
    'output',
  ]
  assert own['weights'][:4] == [[2 * i, 2 * i + 1, None] for i in range(4)]
  rows = rows_of(
    shown(analysed)['encoder']['connection']['weights_2'],
    all_at_once(analysed)[1],
  )
  assert own['positions'] == len(rows)
  np.testing.assert_allclose(own['weights'][4], rows.mean((0, 1)), rtol=1e-4)


def test_weights_of_outputs_with_a_sum_of_those_between(tmp_path):
  # After layer 3, H[0], y[1] + y[2] and y[3]; over the features 0..15 the mean
  # of 2 x is 15.
  run = make_run(
    {
      'encoder/connection/static_3': [[1, 2, 3]],
      'decoder/connection/static_1': 2 * np.arange(16.0),
      'decoder/connection/direction_1': 0.0,
    },
    norm='pre',
    encoder_layers=3,
    encoder=SideConfig(fusion='grn', grn=GrnOptions('scalar', last=1)),
    decoder=SideConfig(fusion='grn', grn=GrnOptions(ways=3)),
  )
  analysed = fused_run(run, tmp_path)
  numbers = layer_weights(analysed)
  own = numbers['encoder']
  assert own['layers'] == ['y[0]', 'y[1]', 'y[2]', 'y[3]']
  assert own['rows'] == ['layer 1', 'layer 2', 'layer 3', 'output']
  assert own['weights'][3] == [1, 2, 2, 3]
  assert own['weights'][0][1:] == [None] * 3
  assert 'positions' not in own
  own = numbers['decoder']
  assert own['rows'][3:] == [
    *(f'layer 2, {way}' for way in ('query', 'key', 'value')),
    'output',
  ]
  assert own['weights'][3:6] == [[15, 15, None]] * 3
  rows = rows_of(
    shown(analysed)['decoder']['connection']['weights_2'],
    all_at_once(analysed)[3],
  )
  assert own['positions'] == len(rows)
  np.testing.assert_allclose(own['weights'][6], rows.mean((0, 1)), rtol=1e-4)


def test_memories_have_a_row_for_each_decoder_layer(tmp_path):
  # Two layers on either side; the weights of the memories are static alone.
  run = make_run(
    {
      'encoder/connection/static_2': np.arange(12.0).reshape(4, 3),
      'encoder/connection/out_2/kernel': 0.0,
    },
    norm='pre',
    encoder=SideConfig(fusion='mudd', mudd=MuddOptions(0, memory_ways=2)),
  )
  own = layer_weights(fused_run(run, tmp_path))['encoder']
  assert own['rows'] == [
    f'output, {way}_{n}' for n in (1, 2) for way in ('key', 'value')
  ]
  assert own['weights'] == [[3 * i, 3 * i + 1, 3 * i + 2] for i in range(4)]
  assert own['layers'] == ['H[0]', 'H[1]', 'H[2]']


def test_dynamic_combination_against_all_weights_of_the_text(tmp_path):
  analysed = fused_run(make_run(decoder=DYNAMIC), tmp_path)
  rows = rows_of(
    shown(analysed)['decoder']['read_out']['layer_weights'],
    all_at_once(analysed)[3],
  )
  own = layer_weights(analysed)['decoder']
  assert own['positions'] == len(rows)
  assert own['layers'] == ['H[1]', 'H[2]']
  np.testing.assert_allclose(own['mean'], rows.mean((0, 2)), atol=1e-5)
  np.testing.assert_allclose(own['deviation'], rows.std((0, 2)), rtol=1e-4)
  assert min(own['deviation']) > 0.1


def test_dynamic_weights_of_a_bias_alone(tmp_path):
  # Half the features of H[1] have 1 and half 3; those of H[2] have 5.
  bias = [1.0] * 8 + [3.0] * 8 + [5.0] * 16
  run = make_run(
    {'read_out/out/kernel': 0.0, 'read_out/out/bias': bias}, encoder=DYNAMIC
  )
  analysed = fused_run(run, tmp_path)
  finding = look_at(VIEW, analysed, tmp_path / 'analysis')
  own = finding.numbers['encoder']
  np.testing.assert_allclose(own['mean'], [2, 5], rtol=1e-6)
  np.testing.assert_allclose(own['deviation'], [1, 0], atol=2e-3)
  assert finding.summary == (
    'Weights of layers: encoder (means of dynamic_combination) H[1] 2.00, '
    'H[2] 5.00.'
  )
  assert_not_blank(tmp_path / 'analysis/layer_weights.png')


@pytest.mark.parametrize(
  ('encoder', 'decoder'),
  [('transparent', 'dlcl'), ('linear', 'none'), ('none', 'dlcl')],
)
def test_files(tmp_path, encoder, decoder):
  run = make_run(
    encoder=SideConfig(fusion=encoder), decoder=SideConfig(fusion=decoder)
  )
  finding = look_at(VIEW, fused_run(run, tmp_path), tmp_path / 'analysis')
  written = json.loads((tmp_path / 'analysis/layer_weights.json').read_text())
  assert written['numbers'] == json.loads(json.dumps(finding.numbers))
  sides = {'encoder': encoder, 'decoder': decoder}
  assert {side: own['scheme'] for side, own in finding.numbers.items()} == {
    side: scheme for side, scheme in sides.items() if scheme != 'none'
  }
  assert_not_blank(tmp_path / 'analysis/layer_weights.png')
