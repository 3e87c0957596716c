"""Weights that positions compute, by reader, position and frequency."""

import json

import numpy as np
import pytest
from cases import norm_for
from fused_runs import all_at_once, fused_run, make_run, rows_of, shown
from pictures import assert_not_blank

from fusion_jax.analysis.frequency import frequency_bins, subword_counts
from fusion_jax.analysis.position_weights import (
  VIEW,
  draw,
  position_weights,
  summary,
)
from fusion_jax.analysis.view import look_at
from fusion_jax.config import ModelConfig
from fusion_jax.config.fusion import (
  AttentionResidualOptions,
  GrnOptions,
  HyperOptions,
  MlrfOptions,
  MuddOptions,
  SideConfig,
)
from fusion_jax.errors import InputError

_DYNAMIC = SideConfig('dynamic_combination')
_FOUR = 'residual', 'query', 'key', 'value'


@pytest.fixture(scope='module')
def analysed(tmp_path_factory):
  run = make_run(
    norm='pre',
    encoder=SideConfig('mudd', mudd=MuddOptions(ways=1)),
    decoder=SideConfig('grn', grn=GrnOptions(ways=3)),
  )
  return fused_run(run, tmp_path_factory.mktemp('weights'))


@pytest.fixture(scope='module')
def numbers(analysed):
  found = look_at(VIEW, analysed, analysed.workdir / 'analysis').numbers
  return json.loads(json.dumps(found))


def test_means_and_deviations_of_the_whole_text(analysed, numbers):
  _, sources, _, targets = all_at_once(analysed)
  views, own = shown(analysed), numbers['decoder']
  assert own['scheme'] == 'grn'
  assert own['positions']['all'] == targets.sum()
  key = own['weights']['key']
  assert list(own['weights']) == ['query', 'key', 'value', 'residual']
  assert key['sources'] == ['y[0]', 'y[1]']
  assert key['readers'] == ['layer 1', 'layer 2']
  assert own['weights']['residual']['readers'] == ['output']
  rows = rows_of(views['decoder']['connection']['weights_1'][:, :, 1], targets)
  np.testing.assert_allclose(key['mean']['all'][1], rows.mean(0), rtol=1e-4)
  np.testing.assert_allclose(key['deviation']['all'][1], rows.std(0), rtol=1e-3)
  assert key['mean']['all'][0][1] is None
  encoder = numbers['encoder']['weights']['residual']
  rows = rows_of(views['encoder']['connection']['weights_2'][:, :, 0], sources)
  assert encoder['readers'] == ['layer 2', 'output']
  np.testing.assert_allclose(encoder['mean']['all'][1], rows.mean(0), rtol=1e-4)


def test_means_of_each_position(analysed, numbers):
  lengths = all_at_once(analysed)[3]
  weights = shown(analysed)['decoder']['connection']['weights_2'][:, :, 0]
  own = numbers['decoder']
  counts = [int((lengths > place).sum()) for place in range(20)]
  assert own['positions']['position'] == counts
  found = own['weights']['residual']['mean']['position']
  for place, count in enumerate(counts):
    column = weights[lengths > place, place] if count else None
    if column is None:
      assert found[place] == [[None] * 3]
    else:
      np.testing.assert_allclose(found[place][0], column.mean(0), rtol=1e-4)


def test_means_of_each_tenth_of_the_text(analysed, numbers):
  run, pairs = analysed.run, analysed.pairs
  counts = subword_counts((p.target for p in pairs), run.target_tokenizer)
  bins = frequency_bins(counts)
  weights = shown(analysed)['decoder']['connection']['weights_1'][:, :, 2]
  found = [[] for _ in range(10)]
  for row, pair in zip(weights, pairs, strict=True):
    # Position t reads token t - 1; the first reads the start symbol.
    for place, token in enumerate(pair.target[:-1], start=1):
      found[bins[token]].append(row[place])
  own = numbers['decoder']
  assert own['positions']['frequency'] == [len(each) for each in found]
  assert max(map(len, found)) > 1
  for number, each in enumerate(found):
    means = own['weights']['value']['mean']['frequency'][number][1]
    wanted = np.mean(each, 0) if each else [np.nan] * 2
    np.testing.assert_allclose(np.array(means, float), wanted, rtol=1e-4)


def _sublayers(*names):
  return [f'layer {n} {name}' for n in (1, 2) for name in names]


_ENCODER = _sublayers('self-attention', 'feed-forward')
_DECODER = _sublayers('self-attention', 'cross-attention', 'feed-forward')
_STREAMS = ['stream 1', 'stream 2', 'stream 3', 'stream 4']
_MEMORIES = ['decoder layer 1', 'decoder layer 2']
_HYPER = SideConfig('hyper_connections', hyper=HyperOptions(collapse='learned'))


def _attention(**options):
  return SideConfig(
    'attention_residuals',
    attention_residual=AttentionResidualOptions(**options),
  )


# Side, fusion, and the readers of each group.
_CASES = {
  'mudd': ('encoder', SideConfig('mudd'), {way: ['layer 2'] for way in _FOUR}),
  'memory': (
    'encoder',
    SideConfig('mudd', mudd=MuddOptions(ways=1, memory_ways=2)),
    {
      'residual': ['layer 2'],
      'memory key': _MEMORIES,
      'memory value': _MEMORIES,
    },
  ),
  'one memory': (
    'encoder',
    SideConfig('mudd', mudd=MuddOptions(ways=0, memory_ways=1)),
    {'memory': _MEMORIES},
  ),
  'hyper': (
    'decoder',
    _HYPER,
    {'read': [*_DECODER, 'output'], 'write': _DECODER, 'mix': _DECODER},
  ),
  'manifold': (
    'encoder',
    SideConfig('hyper_connections', hyper=HyperOptions('manifold')),
    dict.fromkeys(('read', 'write', 'mix'), _ENCODER),
  ),
  'identity': (
    'encoder',
    SideConfig('hyper_connections', hyper=HyperOptions('identity_mix')),
    dict.fromkeys(('read', 'write'), _ENCODER),
  ),
  # The first sublayer has one source, H[0].
  'attention': (
    'decoder',
    _attention(heads=2),
    {'read': [*_DECODER[1:], 'output']},
  ),
  'attention-layer': (
    'encoder',
    _attention(sources='layer'),
    {'read': ['layer 2 self-attention', 'output']},
  ),
  # The first sublayer has none, the second one.
  'delta': ('encoder', _attention(kind='delta'), {'read': _ENCODER[2:]}),
  'delta-embedding': (
    'encoder',
    _attention(kind='delta', embedding=True),
    {'read': _ENCODER[1:]},
  ),
  'combination': ('encoder', _DYNAMIC, {'combination': ['output']}),
  'hops': (
    'decoder',
    SideConfig('hops', mlrf=MlrfOptions(hops=2)),
    {'hop': ['hop 1', 'hop 2']},
  ),
  'dynamic_routing': (
    'encoder',
    SideConfig('dynamic_routing'),
    {'share': ['output']},
  ),
  'em_routing': ('decoder', SideConfig('em_routing'), {'share': ['output']}),
}


@pytest.mark.parametrize('name', _CASES)
def test_every_scheme_has_its_groups_and_readers(tmp_path, name):
  side, fusion, groups = _CASES[name]
  run = make_run(**{side: fusion}, norm=norm_for(fusion.fusion))
  own = position_weights(fused_run(run, tmp_path))[side]
  assert own['scheme'] == fusion.fusion
  found = {group: each['readers'] for group, each in own['weights'].items()}
  if name == 'mudd':
    groups = groups | {'residual': ['layer 2', 'output']}
  assert found == groups
  for each in own['weights'].values():
    shape = len(each['readers']), len(each['sources'])
    for part, parts in (('all', ()), ('position', (20,)), ('frequency', (10,))):
      for moment in ('mean', 'deviation'):
        values = np.array(each[moment][part], float)
        assert values.shape == (*parts, *shape)
    assert np.nanmax(np.array(each['deviation']['all'], float)) > 1e-4
  # Softmax over the sources, and shares of layers, sum to 1.
  if name.startswith(('attention', 'delta', 'hops')) or 'routing' in name:
    for each in own['weights'].values():
      sums = np.nansum(np.array(each['mean']['all'], float), 1)
      np.testing.assert_allclose(sums, 1, rtol=1e-4)


def test_how_streams_are_read_written_and_mixed(tmp_path):
  analysed = fused_run(make_run(norm='pre', decoder=_HYPER), tmp_path)
  lengths = all_at_once(analysed)[3]
  views = shown(analysed)['decoder']
  own = position_weights(analysed)['decoder']['weights']
  assert own['read']['sources'] == own['write']['sources'] == _STREAMS
  assert own['mix']['sources'][:5] == [
    *(f'1>{j}' for j in range(1, 5)),
    '2>1',
  ]
  attended = views['layer_1']['cross_attention_residual']
  place = _DECODER.index('layer 2 cross-attention')
  for group in own:
    rows = rows_of(attended[group], lengths)
    wanted = rows.mean(0).ravel()
    found = own[group]['mean']['all'][place]
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-4)
  rows = rows_of(views['state_read']['read'], lengths)
  np.testing.assert_allclose(
    own['read']['mean']['all'][-1], rows.mean(0), rtol=1e-4
  )


def test_scanned_layers_have_the_same_weights(tmp_path):
  """The same parameters, stacked."""
  side = SideConfig('hyper_connections')
  run = make_run(norm='pre', encoder=side, scan_layers=True)
  analysed = fused_run(run, tmp_path)
  lengths = all_at_once(analysed)[1]
  views = shown(analysed)['encoder']['layers']
  own = position_weights(analysed)['encoder']['weights']['write']
  assert own['readers'] == _ENCODER
  for layer in range(2):
    rows = rows_of(views['feed_forward_residual']['write'][layer], lengths)
    found = own['mean']['all'][2 * layer + 1]
    np.testing.assert_allclose(found, rows.mean(0), rtol=1e-4)


def test_a_sum_of_outputs_weighs_each_of_them(tmp_path):
  side = SideConfig('grn', grn=GrnOptions(last=1))
  run = make_run(norm='pre', encoder=side, encoder_layers=3)
  analysed = fused_run(run, tmp_path)
  own = position_weights(analysed)['encoder']['weights']['residual']
  assert own['sources'] == ['y[0]', 'y[1]', 'y[2]', 'y[3]']
  rows = rows_of(
    shown(analysed)['encoder']['connection']['weights_3'][:, :, 0],
    all_at_once(analysed)[1],
  )
  first, between, last = rows.mean(0)
  np.testing.assert_allclose(
    own['mean']['all'][3], [first, between, between, last], rtol=1e-4
  )


def test_a_side_whose_weights_are_constant_is_said_in_the_line(tmp_path):
  run = make_run(
    norm='pre', encoder=SideConfig('dlcl'), decoder=SideConfig('mudd')
  )
  found = look_at(VIEW, fused_run(run, tmp_path), tmp_path / 'analysis')
  assert found.numbers['encoder'] == {'scheme': 'dlcl'}
  assert found.summary.startswith(
    'Deviation of the weights over the positions, mean: encoder (dlcl) has the '
    'same weights at every position; decoder (mudd) residual '
  )
  assert '\n' not in found.summary
  assert_not_blank(tmp_path / 'analysis/position_weights.png')


@pytest.mark.parametrize(
  'side',
  [
    SideConfig('dlcl'),
    SideConfig('grn', grn=GrnOptions('vector')),
    SideConfig('hyper_connections', hyper=HyperOptions('static')),
    SideConfig('transparent'),
  ],
)
def test_constant_weights_have_no_such_view(side):
  assert not VIEW.applies(ModelConfig(norm='pre', encoder=side))


def test_static_streams_that_a_learned_read_ends_have_it(tmp_path):
  options = HyperOptions('static', collapse='learned')
  side = SideConfig('hyper_connections', hyper=options)
  run = make_run(norm='pre', encoder=side)
  own = position_weights(fused_run(run, tmp_path))['encoder']
  assert {group: each['readers'] for group, each in own['weights'].items()} == {
    'read': ['output']
  }


def test_a_stack_with_nothing_to_choose_is_refused_in_one_line(tmp_path):
  # Two sublayers: the first has no output below it, the second one.
  run = make_run(norm='pre', encoder=_attention(kind='delta'), encoder_layers=1)
  with pytest.raises(InputError, match='no part of its stacks has two sources'):
    position_weights(fused_run(run, tmp_path))


def test_maps_have_the_numbers(analysed, numbers):
  assert_not_blank(analysed.workdir / 'analysis/position_weights.png')
  figure = draw(numbers)
  groups = [
    f'{side}, {group}'
    for side, own in numbers.items()
    for group in own['weights']
  ]
  maps = [axes for axes in figure.axes if axes.images]
  assert [axes.get_title() for axes in maps[::3]] == groups
  key = numbers['decoder']['weights']['key']
  place = 3 * groups.index('decoder, key')
  shown_there = [np.ma.filled(m.images[0].get_array(), np.nan) for m in maps]
  wanted = np.array(key['mean']['all'], float)
  np.testing.assert_allclose(shown_there[place], wanted)
  # Layer 1 reads y[0] alone; its mean is that of layer 1 and layer 2.
  positions = np.array(key['mean']['position'], float)
  np.testing.assert_allclose(shown_there[place + 1][1], positions[:, 1, 1])
  np.testing.assert_allclose(
    shown_there[place + 1][0], positions[:, :, 0].mean(1)
  )
  assert 'decoder (grn) query ' in summary(numbers)
