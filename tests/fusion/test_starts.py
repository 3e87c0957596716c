"""start='baseline': a fused model begins as the plain one that it came from."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawn import drawn_parameters

from fusion_jax.config import ModelConfig
from fusion_jax.errors import InputError
from fusion_jax.fusion import SCHEMES
from fusion_jax.fusion.groups import mixture_log_probabilities
from fusion_jax.fusion_options import (
  AggOptions,
  DlclOptions,
  DynamicOptions,
  GtransOptions,
  LinearOptions,
  MlrfOptions,
  MultiLayerOptions,
  RoutingOptions,
  ShortcutOptions,
  SideConfig,
)
from fusion_jax.models.transformer import (
  Transformer,
  initial_parameters,
  output_logits,
)
from fusion_jax.training.initialize import merged_parameters
from fusion_jax.training.weights import path_name

_SOURCE = jnp.array([[3, 4, 5], [6, 7, 0]])
_LENGTHS = jnp.array([3, 2])
_TARGET = jnp.array([[8, 9], [10, 3]])
_NORMS = 'pre', 'post', 'rezero'
_EPS = np.finfo(np.float32).eps


def _model(norm: str, **changes) -> Transformer:
  config = ModelConfig(
    width=8, filter=12, heads=2, encoder_layers=4, decoder_layers=4, norm=norm
  )
  return Transformer(dataclasses.replace(config, **changes), 11, 11, 2)


def _side(scheme: str, **options) -> SideConfig:
  return SideConfig(fusion=scheme, start='baseline', **options)


_FUSED = ShortcutOptions(source='lexical', feature_fusion=True)
_SIDES = {
  **{
    f'{scheme}-{side}': {side: _side(scheme)}
    for scheme, row in SCHEMES.items()
    for side in row.module
  },
  'linear-plain': {
    'encoder': _side('linear', linear=LinearOptions(factored=False))
  },
  'linear-narrow': {'encoder': _side('linear', linear=LinearOptions(hidden=4))},
  'linear-norm': {
    'decoder': _side('linear', linear=LinearOptions(output_norm=True))
  },
  'dynamic-softmax': {
    'decoder': _side(
      'dynamic_combination', dynamic=DynamicOptions(normalize='softmax')
    )
  },
  'feed_forward-no-norm': {
    'encoder': _side('feed_forward', mlrf=MlrfOptions(norm='none'))
  },
  'feed_forward-narrow': {
    'decoder': _side('feed_forward', mlrf=MlrfOptions(hidden=10))
  },
  'per-layer-norms': {'encoder': _side('linear', input_norm='per_layer')},
  'routing-paper': {
    'encoder': _side('dynamic_routing', routing=RoutingOptions(form='paper'))
  },
  'hierarchical-read-out': {
    'encoder': _side('hierarchical', agg=AggOptions(feedback=False))
  },
  'dlcl-vector': {'encoder': _side('dlcl', dlcl=DlclOptions(weights='vector'))},
  'gtrans-last': {
    'decoder': _side('gtrans', gtrans=GtransOptions(mode='last'))
  },
  'gtrans-pruned': {
    'decoder': _side('gtrans', gtrans=GtransOptions(inference_groups='1:1'))
  },
  'multi_layer': {
    'encoder': _side('none', multi_layer=MultiLayerOptions(layers=2)),
    'decoder': _side('none', multi_layer=MultiLayerOptions(layers=3)),
  },
  'shortcut': {
    'encoder': _side('none', shortcut=ShortcutOptions(source='lexical')),
    'decoder': _side('none', shortcut=ShortcutOptions(source='non_lexical')),
  },
  'shortcut-cross': {
    'decoder': _side(
      'none', shortcut=ShortcutOptions(source='lexical', where='both')
    )
  },
  'feature_fusion': {
    'encoder': _side('none', shortcut=_FUSED),
    'decoder': _side(
      'none', shortcut=dataclasses.replace(_FUSED, where='both')
    ),
  },
}


@functools.cache
def _plain(norm: str):
  model = _model(norm)
  return model, drawn_parameters(model)


@functools.cache
def _started(name: str, norm: str):
  """A fused model and its parameters, from a trained plain one."""
  model = _model(norm, **_SIDES[name])
  fresh = initial_parameters(model, 1)
  return model, merged_parameters(fresh, _plain(norm)[1], model)


def _log_probabilities(model, parameters):
  output = model.apply({'params': parameters}, _SOURCE, _LENGTHS, _TARGET)
  logits = functools.partial(output_logits, output=output.output)
  features = output.features
  if output.log_weights is None:
    return jax.nn.log_softmax(logits(features.reshape(-1, 8)))
  features = features.reshape(len(features), -1, 8)
  combine = model.config.decoder.gtrans.combine
  return mixture_log_probabilities(
    features, output.log_weights, logits, combine
  )


@pytest.mark.parametrize('norm', _NORMS)
@pytest.mark.parametrize('name', _SIDES)
def test_a_fused_model_starts_as_the_plain_one(name, norm):
  expected = _log_probabilities(*_plain(norm))
  got = _log_probabilities(*_started(name, norm))
  # LN(LN(x)) is LN(x) but for epsilon, 1e-6 of a variance of 1.
  tolerance = (32 * _EPS + 2e-6) * np.abs(expected).max()
  np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance)


def _gradient(model, parameters):
  def loss(parameters):
    log_p = _log_probabilities(model, parameters)
    return -jnp.take_along_axis(log_p, _TARGET.reshape(-1, 1), 1).sum()

  return {
    path_name(path): np.asarray(leaf)
    for path, leaf in jax.tree_util.tree_leaves_with_path(
      jax.grad(loss)(parameters)
    )
  }


def _opened(parameters):
  """As after an update that moves every opening."""

  def move(path, leaf):
    return leaf + 0.1 if path_name(path).endswith('/gate') else leaf

  return jax.tree_util.tree_map_with_path(move, parameters)


# What no gradient can reach: biases of keys, which the softmax over keys
# cancels.
def _is_inert(name: str) -> bool:
  return name.endswith('key/bias')


@pytest.mark.parametrize('norm', _NORMS)
@pytest.mark.parametrize(
  'name', [name for name in _SIDES if name != 'gtrans-pruned']
)
def test_new_parameters_have_a_gradient_at_the_start(name, norm):
  model, parameters = _started(name, norm)
  if not (old := _gradient(*_plain(norm))):
    raise AssertionError
  gradient = _gradient(model, parameters)
  new = {each for each in gradient if each not in old}
  gates = {each for each in new if each.endswith('/gate')}
  for each in gates:
    assert np.abs(gradient[each]).max() > 0, each
  if not gates:
    assert any(np.abs(gradient[each]).max() > 0 for each in new)
  # Behind an opening, and behind zeros of the second of two maps, a gradient
  # arrives with the first update.
  moved = jax.tree.map(
    lambda leaf, key: leaf + 0.01 * jax.random.normal(key, leaf.shape),
    _opened(parameters),
    _keys(parameters),
  )
  later = _gradient(model, moved)
  for each in new:
    assert _is_inert(each) or np.abs(later[each]).max() > 0, each


def _keys(parameters):
  leaves, tree = jax.tree.flatten(parameters)
  return tree.unflatten(jax.random.split(jax.random.key(0), len(leaves)))


def test_an_open_gate_is_the_fusion_itself():
  model, parameters = _started('iterative-encoder', 'post')
  side = dataclasses.replace(model.config.encoder, start='fresh')
  fresh = model.clone(config=dataclasses.replace(model.config, encoder=side))
  opening = parameters['encoder']['opening_features']
  opened = parameters | {
    'encoder': parameters['encoder']
    | {'opening_features': jax.tree.map(jnp.ones_like, opening)}
  }
  encoder = dict(parameters['encoder'])
  del encoder['opening_features']
  np.testing.assert_allclose(
    _log_probabilities(model, opened),
    _log_probabilities(fresh, parameters | {'encoder': encoder}),
    rtol=1e-5,
    atol=1e-5,
  )


def test_pruned_groups_start_as_the_whole_decoder():
  model, parameters = _started('gtrans-pruned', 'pre')
  pruned = _log_probabilities(model, parameters)
  assert pruned.shape == (4, 11)


@pytest.mark.parametrize(
  ('options', 'message'),
  [
    ({}, "'baseline' is about a fusion, and there is none"),
    (
      {'shortcut': ShortcutOptions(source='lexical', author_compat=True)},
      'author_compat',
    ),
  ],
)
def test_what_cannot_start_as_the_plain_model_is_refused(options, message):
  with pytest.raises(InputError, match=message) as error:
    _model('pre', decoder=_side('none', **options))
  assert str(error.value).startswith('config.model.decoder.start')


def test_the_opening_is_recorded():
  model, parameters = _started('average-encoder', 'pre')
  _, kept = model.apply(
    {'params': _opened(parameters)},
    _SOURCE,
    _LENGTHS,
    _TARGET,
    mutable=['telemetry'],
  )
  value = kept['telemetry']['encoder']['opening_features']['opening']
  np.testing.assert_allclose(value, 0.1, rtol=1e-6)
