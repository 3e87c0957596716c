"""Parts left out: against models made by hand, and with one program."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import norm_for
from compilations import compiled
from fused_runs import assert_not_blank, fused_run, make_run
from tiers import extended_but

from fusion_jax import figures
from fusion_jax.analysis import ablations
from fusion_jax.analysis.ablations import Ablation, ablated, ablations_of
from fusion_jax.analysis.views import VIEWS
from fusion_jax.config import ModelConfig
from fusion_jax.config.fusion import SideConfig
from fusion_jax.fusion import SCHEMES
from fusion_jax.models.transformer import Transformer
from fusion_jax.testing import assert_close, drawn_parameters

_SOURCE = jnp.array([[4, 5, 6, 7, 3], [8, 9, 3, 0, 0]], jnp.int32)
_TARGET = jnp.array([[6, 5, 4, 3], [9, 8, 3, 0]], jnp.int32)
_LENGTHS = jnp.array([5, 3])


def _config(encoder=None, decoder=None, **changes):
  sides = {
    'encoder': encoder or SideConfig(),
    'decoder': decoder or SideConfig(),
  }
  sizes = {'width': 8, 'filter': 12, 'encoder_layers': 3, 'decoder_layers': 3}
  return ModelConfig(heads=2, **sides | sizes | changes)


def _model(config):
  return Transformer(config, 11, 11, 2)


def _parameters(config):
  return drawn_parameters(_model(config))


@functools.cache
def _pass(config):
  model = _model(config)
  return jax.jit(
    lambda parameters: model.apply(
      {'params': parameters}, _SOURCE, _LENGTHS, _TARGET
    )
  )


def _output(config, parameters, ablation=None):
  return _pass(config)(ablated(parameters, config, ablation))


def _with(parameters, path, change):
  """Parameters with one array, at 'a/b/c', changed."""
  first, _, rest = path.partition('/')
  below = parameters[first]
  new = _with(below, rest, change) if rest else change(below)
  return {**parameters, first: new}


def _only_scheme(name):
  options = {'group_size': 1} if name == 'gtrans' else {}
  sides = dict.fromkeys(SCHEMES[name].modules, SideConfig(name, options))
  depths = {'encoder_layers': 2, 'decoder_layers': 2}
  return _config(**sides, **depths, norm=norm_for(name))


@pytest.mark.parametrize('name', extended_but([*SCHEMES][::2], ['gtrans']))
def test_each_ablation_changes_the_model_and_compiles_nothing(name):
  config = _only_scheme(name)
  parameters = _parameters(config)
  whole = _output(config, parameters)
  assert_close(whole, _pass(config)(parameters))
  chosen_there = ablations_of(config)
  kinds = {(ablation.side, ablation.kind) for ablation in chosen_there}
  grouped = 'gtrans', 'surface_fusion'
  fused = {'group'} if name in grouped else {'input'}
  if SCHEMES[name].residual is not None:
    fused = set()
  for side in SCHEMES[name].modules:
    assert {kind for own, kind in kinds if own == side} >= {'layer', *fused}
  with compiled() as names:
    outputs = [_output(config, parameters, one) for one in chosen_there]
  assert names == []
  for ablation, output in zip(chosen_there, outputs, strict=True):
    changed = output.features, output.log_weights
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(output.features))
    same = jax.tree.map(
      np.allclose, changed, (whole.features, whole.log_weights)
    )
    assert not all(jax.tree.leaves(same)), ablation


def _shorter(parameters, side, left_out):
  """Parameters of the stack without a layer, from 1, of three."""
  own = dict(parameters[side])
  kept = [own.pop(f'layer_{i}') for i in range(3)]
  del kept[left_out - 1]
  return {
    **parameters,
    side: own | {f'layer_{i}': layer for i, layer in enumerate(kept)},
  }


@pytest.mark.parametrize(
  ('norm', 'side', 'number'),
  extended_but(
    [('post', 'decoder', 1), ('pre', 'encoder', 3)], [('pre', 'encoder', 3)]
  ),
)
def test_a_model_without_a_layer_is_one_layer_shorter(norm, side, number):
  config = _config(norm=norm)
  parameters = _parameters(config)
  got = _output(config, parameters, Ablation(side, 'layer', number))
  short = dataclasses.replace(config, **{f'{side}_layers': 2})
  want = _pass(short)(_shorter(parameters, side, number))
  assert_close(got.features, want.features)
  layers = getattr(got, f'{side}_layers')
  np.testing.assert_array_equal(layers[number], layers[number - 1])


# The scheme with its options, the layer that is left out, and the parameter
# that reads it with the part that must then be 0; a width is 8.
_READERS = {
  'linear': ({'factored': False}, 2, 'encoder/read_out/kernel', np.s_[1]),
  # The first node joins H[2] and H[1] in this order.
  'iterative': (
    {'residual': 'none'},
    1,
    'encoder/read_out/node_2/hidden/kernel',
    np.s_[8:16],
  ),
  'hierarchical': (
    {'residual': 'none'},
    2,
    'encoder/connection/node_1/hidden/kernel',
    np.s_[8:16],
  ),
  # What layer 1 reads is no sum.
  'dlcl': ({}, 0, 'encoder/connection/weights', np.s_[1:, 0]),
  'gtrans': ({'group_size': 1}, 2, 'encoder/read_out/weights', np.s_[1]),
}


@pytest.mark.parametrize('name', extended_but(_READERS, list(_READERS)[::3]))
def test_an_input_left_out_is_a_reader_of_zeros(name):
  options, number, path, part = _READERS[name]
  norm = 'pre' if name == 'dlcl' else 'post'
  config = _config(SideConfig(name, options), norm=norm)
  parameters = _parameters(config)
  # The encoder's groups have weights sigmoid(w): it is 0 at -inf.
  nothing = -jnp.inf if name == 'gtrans' else 0.0
  without = _with(parameters, path, lambda x: x.at[part].set(nothing))
  kind = 'group' if name == 'gtrans' else 'input'
  got = _output(config, parameters, Ablation('encoder', kind, number))
  assert_close(got.features, _output(config, without).features)


def test_groups_left_out_give_their_weight_to_the_others():
  options = {'group_size': 1, 'temperature': 1.0}
  config = _config(decoder=SideConfig('gtrans', options))
  parameters = _parameters(config)
  weights = np.array(parameters['decoder']['prediction']['group_weights'])
  got = _output(config, parameters, Ablation('decoder', 'group', 2))
  # psi = exp(w_k) / (exp(w_1) + exp(w_3)) of three groups without the second.
  kept = np.exp(weights) * [1, 0, 1]
  np.testing.assert_allclose(
    np.exp(got.log_weights), kept / kept.sum(), rtol=1e-5
  )


def test_only_what_is_read_can_be_left_out():
  plain = {ablation.kind for ablation in ablations_of(_config())}
  assert plain == {'layer'}
  options = {'group_size': 1, 'inference_groups': '1:2'}
  few = _config(decoder=SideConfig('gtrans', options))
  # The third layer is not run: no group that translates reads it.
  of_decoder = [one for one in ablations_of(few) if one.side == 'decoder']
  assert of_decoder == [
    Ablation('decoder', kind, number)
    for kind in ('layer', 'input', 'group')
    for number in (1, 2)
  ]
  alone = _config(SideConfig(fusion='linear'), encoder_layers=1)
  assert Ablation('encoder', 'input', 1) not in ablations_of(alone)


@pytest.mark.extended
def test_cached_decoding_leaves_out_the_same():
  config = _config(decoder=SideConfig(fusion='hierarchical'))
  parameters = _parameters(config)
  ablation = Ablation('decoder', 'layer', 2)
  full = _output(config, parameters, ablation)
  want = full.features @ full.output.table.T
  model = _model(config)
  variables = {'params': ablated(parameters, config, ablation)}
  apply = functools.partial(model.apply, variables)
  encoded = apply(_SOURCE, _LENGTHS, method='encode')
  cache, memory = apply(encoded, _LENGTHS, 1, 4, method='start_decoding')
  step = jax.jit(functools.partial(apply, method='decode_step'))
  tokens = jnp.pad(_TARGET, ((0, 0), (1, 0)), constant_values=2)
  for position in range(4):
    now = tokens[:, position : position + 1]
    rows = jnp.zeros((2, 1, 4), jnp.int32)
    logits, cache = step(now, jnp.int32(position), rows, cache, memory)
    assert_close(logits[:, 0], want[:, position])


@pytest.fixture(scope='module')
def analysed(tmp_path_factory):
  run = make_run(encoder=SideConfig('iterative'), decoder_layers=1)
  return fused_run(run, tmp_path_factory.mktemp('text'))


@pytest.mark.extended
def test_numbers_and_figure(analysed, monkeypatch, tmp_path):
  scores = {None: 30.0, Ablation('decoder', 'layer', 1): 10.0}
  monkeypatch.setattr(
    ablations,
    '_scores',
    lambda _, chosen: ([scores.get(one, 25.0) for one in chosen], 'signed'),
  )
  finding = VIEWS['ablations'].look(analysed)
  numbers = finding['numbers']
  assert numbers['whole']['bleu'] == 30.0
  rows = {
    (row['side'], row['kind'], row['number']): row
    for row in numbers['ablations']
  }
  assert rows['decoder', 'layer', 1]['bleu_change'] == -20.0
  assert rows['encoder', 'input', 2]['bleu_change'] == -5.0
  for row in rows.values():
    change = row['loss'] - numbers['whole']['loss']
    assert row['loss_change'] == pytest.approx(change)
  figure = VIEWS['ablations'].draw(numbers)
  parts = 'encoder, without a layer', 'encoder, without a fused layer'
  assert [panel.get_title() for panel in figure.axes] == [
    title for title in (*parts, 'decoder, without a layer') for _ in range(2)
  ]
  assert [len(panel.patches) for panel in figure.axes] == [2, 2, 2, 2, 1, 1]
  png, _ = figures.save(figure, tmp_path / 'ablations')
  assert_not_blank(png)
