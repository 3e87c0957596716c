"""Weights of layers, by layer and by what positions compute."""

import jax.numpy as jnp
import numpy as np
import pytest
from cases import norm_for
from flax import linen as nn
from fused_runs import (
  all_at_once,
  assert_not_blank,
  fused_run,
  make_run,
  numbers_of,
  rows_of,
  shown,
)
from tiers import extended_but

from fusion_jax import fusion
from fusion_jax.analysis.views import VIEWS, look_at
from fusion_jax.config import fusion as fusion_options
from fusion_jax.config.fusion import SideConfig
from fusion_jax.errors import InputError
from fusion_jax.fusion.scheme import on_both_sides
from fusion_jax.layers.sow import sow

POSITIONS = VIEWS['position_weights']

_DYNAMIC = SideConfig('dynamic_combination')
_FOUR = 'residual', 'query', 'key', 'value'


@pytest.fixture(scope='module')
def analysed(tmp_path_factory):
  run = make_run(
    norm='pre',
    encoder=SideConfig('mudd', {'ways': 1}),
    decoder=SideConfig('grn', {'ways': 3}),
  )
  return fused_run(run, tmp_path_factory.mktemp('weights'))


@pytest.fixture(scope='module')
def numbers(analysed):
  return numbers_of(POSITIONS, analysed)


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


def _sublayers(*names):
  return [f'layer {n} {name}' for n in (1, 2) for name in names]


_ENCODER = _sublayers('self-attention', 'feed-forward')
_DECODER = _sublayers('self-attention', 'cross-attention', 'feed-forward')
_STREAMS = ['stream 1', 'stream 2', 'stream 3', 'stream 4']
_MEMORIES = ['decoder layer 1', 'decoder layer 2']
_HYPER = SideConfig('hyper_connections')


def _attention(**options):
  return SideConfig('attention_residuals', options)


# Side, fusion, and the readers of each group.
_CASES = {
  'mudd': ('encoder', SideConfig('mudd'), {way: ['layer 2'] for way in _FOUR}),
  'memory': (
    'encoder',
    SideConfig('mudd', {'ways': 1, 'memory_ways': 2}),
    {
      'residual': ['layer 2'],
      'memory key': _MEMORIES,
      'memory value': _MEMORIES,
    },
  ),
  'one memory': (
    'encoder',
    SideConfig('mudd', {'ways': 0, 'memory_ways': 1}),
    {'memory': _MEMORIES},
  ),
  'hyper': (
    'decoder',
    _HYPER,
    {'read': _DECODER, 'write': _DECODER, 'mix': _DECODER},
  ),
  'identity': (
    'encoder',
    SideConfig('hyper_connections', {'kind': 'identity_mix'}),
    dict.fromkeys(('read', 'write'), _ENCODER),
  ),
  # The first sublayer has one source, H[0].
  'attention': (
    'decoder',
    _attention(heads=2),
    {'read': [*_DECODER[1:], 'output']},
  ),
  # The first sublayer has none, the second one.
  'delta': ('encoder', _attention(kind='delta'), {'read': _ENCODER[2:]}),
  'combination': ('encoder', _DYNAMIC, {'combination': ['output']}),
  'hops': (
    'decoder',
    SideConfig('hops', {'hops': 2}),
    {'hop': ['hop 1', 'hop 2']},
  ),
  'dynamic_routing': (
    'encoder',
    SideConfig('dynamic_routing'),
    {'share': ['output']},
  ),
}


@pytest.mark.parametrize('name', extended_but(_CASES, ['mudd', 'memory']))
def test_every_scheme_has_its_groups_and_readers(tmp_path, name):
  side, fusion, groups = _CASES[name]
  run = make_run(**{side: fusion}, norm=norm_for(fusion.fusion))
  own = POSITIONS.measure(fused_run(run, tmp_path))[side]
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
  own = POSITIONS.measure(analysed)['decoder']['weights']
  assert own['read']['sources'] == own['write']['sources'] == _STREAMS
  assert own['mix']['sources'][:5] == [*(f'1>{j}' for j in range(1, 5)), '2>1']
  attended = views['layer_1']['cross_attention_residual']
  place = _DECODER.index('layer 2 cross-attention')
  for group in own:
    rows = rows_of(attended[group], lengths)
    wanted = rows.mean(0).ravel()
    found = own[group]['mean']['all'][place]
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-4)


def test_scanned_layers_have_the_same_weights(tmp_path):
  """The same parameters, stacked."""
  side = SideConfig('hyper_connections')
  run = make_run(norm='pre', encoder=side, scan_layers=True)
  analysed = fused_run(run, tmp_path)
  lengths = all_at_once(analysed)[1]
  views = shown(analysed)['encoder']['layers']
  own = POSITIONS.measure(analysed)['encoder']['weights']['write']
  assert own['readers'] == _ENCODER
  for layer in range(2):
    rows = rows_of(views['feed_forward_residual']['write'][layer], lengths)
    found = own['mean']['all'][2 * layer + 1]
    np.testing.assert_allclose(found, rows.mean(0), rtol=1e-4)


@pytest.mark.extended
def test_a_side_whose_weights_are_constant_is_said_in_the_line(tmp_path):
  run = make_run(
    norm='pre', encoder=SideConfig('dlcl'), decoder=SideConfig('mudd')
  )
  found = look_at(POSITIONS, fused_run(run, tmp_path), tmp_path / 'analysis')
  assert found['numbers']['encoder'] == {'scheme': 'dlcl'}
  assert found['summary'].startswith(
    'Deviation of the weights over the positions, mean: encoder (dlcl) has the '
    'same weights at every position; decoder (mudd) residual '
  )
  assert '\n' not in found['summary']
  assert_not_blank(tmp_path / 'analysis/position_weights.png')


def test_a_stack_with_nothing_to_choose_is_refused_in_one_line(tmp_path):
  # Two sublayers: the first has no output below it, the second one.
  run = make_run(norm='pre', encoder=_attention(kind='delta'), encoder_layers=1)
  with pytest.raises(InputError, match='no part of its stacks has two sources'):
    POSITIONS.measure(fused_run(run, tmp_path))


def test_maps_have_the_numbers(analysed, numbers):
  assert_not_blank(analysed.workdir / 'analysis/position_weights.png')
  figure = POSITIONS.draw(numbers)
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
  assert 'decoder (grn) query ' in POSITIONS.summary(numbers)


LAYERS_VIEW = VIEWS['layer_weights']

DYNAMIC = SideConfig(fusion='dynamic_combination')


def test_dlcl_shows_what_is_read(tmp_path):
  run = make_run(
    {
      # Row l is of what follows layer l; above the diagonal nothing is read.
      'encoder/connection/weights': [[1, 9, 9], [2, 3, 9], [4, 5, 6]],
      'decoder/connection/weights': 15,
    },
    encoder=SideConfig(fusion='dlcl'),
    decoder=SideConfig('dlcl', {'window': 2}),
  )
  numbers = LAYERS_VIEW.measure(fused_run(run, tmp_path))
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


def test_transparent_attention_by_layer_of_the_decoder(tmp_path):
  run = make_run(
    # Columns are layers of the decoder: 1, 1, 2 and 1, 1, 0 to one another.
    {'read_out/weights': np.log([[1, 1], [1, 1], [2, 1e-30]])},
    encoder=SideConfig(fusion='transparent'),
  )
  own = LAYERS_VIEW.measure(fused_run(run, tmp_path))['encoder']
  assert own['rows'] == ['layer 1', 'layer 2']
  np.testing.assert_allclose(
    own['weights'], [[0.25, 0.25, 0.5], [0.5, 0.5, 0]], atol=1e-6
  )


def test_norms_of_the_blocks_of_linear_combination(tmp_path):
  run = make_run(
    # |2 I| = 2 sqrt(16) and |3 I| = 12.
    {'encoder/read_out/kernel': np.stack([2 * np.eye(16), 3 * np.eye(16)])},
    encoder=SideConfig('linear', {'factored': False}),
    decoder=SideConfig(fusion='linear'),
    decoder_layers=3,
  )
  numbers = LAYERS_VIEW.measure(fused_run(run, tmp_path))
  assert numbers['encoder']['norms'] == [8, 12]
  assert numbers['encoder']['layers'] == ['H[1]', 'H[2]']
  # A and B of 48 x 24 and 24 x 16.
  parts = run.parameters['decoder']['read_out']
  product = np.asarray(parts['hidden']['kernel']) @ parts['out']['kernel']
  expected = np.linalg.norm(product.reshape(3, -1), axis=1)
  np.testing.assert_allclose(numbers['decoder']['norms'], expected, rtol=1e-5)


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
    encoder=SideConfig('grn', {'kind': 'scalar', 'last': 1}),
    decoder=SideConfig('grn', {'ways': 3}),
  )
  analysed = fused_run(run, tmp_path)
  numbers = LAYERS_VIEW.measure(analysed)
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


def test_dynamic_weights_of_a_bias_alone(tmp_path):
  # Half the features of H[1] have 1 and half 3; those of H[2] have 5.
  bias = [1.0] * 8 + [3.0] * 8 + [5.0] * 16
  run = make_run(
    {'read_out/out/kernel': 0.0, 'read_out/out/bias': bias}, encoder=DYNAMIC
  )
  analysed = fused_run(run, tmp_path)
  finding = look_at(LAYERS_VIEW, analysed, tmp_path / 'analysis')
  own = finding['numbers']['encoder']
  np.testing.assert_allclose(own['mean'], [2, 5], rtol=1e-6)
  np.testing.assert_allclose(own['deviation'], [1, 0], atol=2e-3)
  assert finding['summary'] == (
    'Weights of layers: encoder (means of dynamic_combination) H[1] 2.00, '
    'H[2] 5.00.'
  )
  assert_not_blank(tmp_path / 'analysis/layer_weights.png')


class _Fixed(nn.Module):
  """Reads the top layer, and says it weighs the layers 1/4 and 3/4."""

  config: object
  side: str

  @nn.compact
  def __call__(self, layers, context):
    weights = jnp.float32([0.25, 0.75])
    sow(self, 'telemetry', 'layer_weights', weights)
    shape = *layers[-1].shape[:2], 2
    sow(self, 'views', 'layer_weights', jnp.broadcast_to(weights, shape))
    return layers[-1]


class _Silent(nn.Module):
  """Sows nothing."""

  config: object
  side: str

  @nn.compact
  def __call__(self, layers, context):
    return layers[-1]


@pytest.fixture
def declared(tmp_path):
  def run_of(module, *views):
    fusion.register(
      on_both_sides('mine', module, 'layer aggregation', 'a test', views=views)
    )
    return fused_run(make_run(encoder=SideConfig(fusion='mine')), tmp_path)

  yield run_of
  fusion_options.ROWS['fusion'].pop('mine', None)


def test_both_views_show_what_is_sown(declared):
  analysed = declared(_Fixed, 'layer_weights', 'position_weights')
  finding = VIEWS['layer_weights'].look(analysed)
  assert finding['numbers'] == {
    'encoder': {
      'scheme': 'mine',
      'layers': ['H[1]', 'H[2]'],
      'rows': ['output'],
      'weights': [[0.25, 0.75]],
    }
  }
  assert 'encoder (output of mine) H[1] 0.25, H[2] 0.75' in finding['summary']
  own = VIEWS['position_weights'].measure(analysed)['encoder']['weights']
  assert own['weights']['sources'] == ['H[1]', 'H[2]']
  assert own['weights']['readers'] == ['output']
  np.testing.assert_allclose(own['weights']['mean']['all'], [[0.25, 0.75]])


def test_a_view_of_what_is_not_sown_is_one_line(declared):
  analysed = declared(_Silent, 'layer_weights')
  with pytest.raises(InputError, match="in 'telemetry', K <= 2; it sows none"):
    VIEWS['layer_weights'].look(analysed)
