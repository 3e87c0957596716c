"""start='baseline': a fused model begins as the plain one that it came from."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import norm_for
from tiers import extended_but

from fusion_jax.config import ModelConfig
from fusion_jax.config.fusion import SideConfig
from fusion_jax.fusion import SCHEMES, SOURCES
from fusion_jax.fusion.mixture import mixture_log_probabilities
from fusion_jax.models.transformer import (
  Transformer,
  initial_parameters,
  output_logits,
  path_name,
)
from fusion_jax.testing import drawn_parameters
from fusion_jax.training.warm_start import merged_parameters

_SOURCE = jnp.array([[3, 4, 5], [6, 7, 0]])
_LENGTHS = jnp.array([3, 2])
_TARGET = jnp.array([[8, 9], [10, 3]])
_BOTH = 'encoder', 'decoder'
_EPS = np.finfo(np.float32).eps


def _model(norm: str, **sides) -> Transformer:
  """Three layers where something is fused, one on the other side."""
  depth = {f'{side}_layers': 3 if side in sides else 1 for side in _BOTH}
  config = ModelConfig(width=8, filter=12, heads=2, norm=norm, **depth, **sides)
  return Transformer(config, 11, 11, 2)


def _side(scheme: str, /, options=None, **fields) -> SideConfig:
  if scheme in SOURCES:
    attention = {'attention': scheme, 'attention_options': options}
    return SideConfig(start='baseline', **attention, **fields)
  return SideConfig(scheme, options, start='baseline', **fields)


_FUSED = {'feature_fusion': True}
_SIDES = {
  **{
    f'{scheme}-{side}': {side: _side(scheme)}
    for scheme, row in SCHEMES.items()
    for side in row.modules
  },
  'linear-plain': {'encoder': _side('linear', {'factored': False})},
  'linear-narrow': {'encoder': _side('linear', {'hidden': 4})},
  'feed_forward-no-norm': {'encoder': _side('feed_forward', {'norm': 'none'})},
  'feed_forward-narrow': {'decoder': _side('feed_forward', {'hidden': 10})},
  'per-layer-norms': {'encoder': _side('linear', input_norm='per_layer')},
  'routing-paper': {'encoder': _side('dynamic_routing', {'form': 'paper'})},
  'hierarchical-read-out': {
    'encoder': _side('hierarchical', {'feedback': False})
  },
  'dlcl-averages': {
    'encoder': _side('dlcl', {'norms': 'none', 'start': 'top'}),
    'decoder': _side('dlcl', {'norms': 'none', 'start': 'top', 'period': 2}),
  },
  'transparent-by-feature': {
    'encoder': _side('transparent', {'feature_wise': True})
  },
  **{
    f'hyper_connections-{kind}': {
      'encoder': _side('hyper_connections', {'kind': kind}),
      'decoder': _side('hyper_connections', {'kind': kind}),
    }
    for kind in ('static', 'identity_mix', 'manifold')
  },
  **{
    f'attention_residuals-{kind}': {
      'encoder': _side(
        'attention_residuals', {'kind': kind, 'sources': 'layer'}
      ),
      'decoder': _side(
        'attention_residuals', {'kind': kind, 'block': 2, 'heads': 2}
      ),
    }
    for kind in ('replace', 'delta')
  },
  'skip_gains': {
    'encoder': _side('none', skip_gains=True),
    'decoder': _side('none', skip_gains=True),
  },
  'value-learnable': {
    'encoder': _side('value_residual', {'kind': 'learnable'}),
    'decoder': _side('value_residual', {'kind': 'learnable', 'where': 'both'}),
  },
  'mudd-1': {'encoder': _side('mudd', {'ways': 1})},
  'mudd-memory': {'encoder': _side('mudd', {'ways': 0, 'memory_ways': 2})},
  'mudd-memory-pre_post': {
    'encoder': _side('mudd', {'ways': 4, 'memory_ways': 1, 'norms': 'pre_post'})
  },
  'mudd-pre_post': {
    'encoder': _side('mudd', {'norms': 'pre_post'}),
    'decoder': _side('mudd', {'norms': 'pre_post'}),
  },
  **{
    f'grn-{ways}-{kind}': {
      side: _side('grn', {'kind': kind, 'ways': ways, 'last': last})
      for side, last in (('encoder', 0), ('decoder', 1))
    }
    for ways, kind in (
      (1, 'scalar'),
      (1, 'vector'),
      (3, 'dynamic'),
      (4, 'dynamic'),
    )
  },
  'surface_fusion-soft': {'decoder': _side('surface_fusion', {'kind': 'soft'})},
  'surface_fusion-learned': {
    'decoder': _side('surface_fusion', {'kind': 'learned'})
  },
  'gtrans-last': {'decoder': _side('gtrans', {'mode': 'last'})},
  'gtrans-pruned': {'decoder': _side('gtrans', {'inference_groups': '1:1'})},
  'multi_layer': {
    'encoder': _side('multi_layer', {'layers': 2}),
    'decoder': _side('multi_layer', {'layers': 2}),
  },
  'shortcut': {
    'encoder': _side('shortcut'),
    'decoder': _side('shortcut', {'source': 'non_lexical'}),
  },
  'shortcut-cross': {'decoder': _side('shortcut', {'where': 'both'})},
  'feature_fusion': {
    'encoder': _side('shortcut', _FUSED),
    'decoder': _side('shortcut', _FUSED | {'where': 'both'}),
  },
}


@functools.cache
def _plain(norm: str, sides: tuple[str, ...]):
  model = _model(norm, **dict.fromkeys(sides, SideConfig()))
  return model, drawn_parameters(model)


@functools.cache
def _started(name: str, norm: str):
  """A fused model and its parameters, from a trained plain one."""
  model = _model(norm, **_SIDES[name])
  _, trained = _plain(norm, tuple(_SIDES[name]))
  return model, merged_parameters(initial_parameters(model, 1), trained, model)


def _log_probabilities(model, parameters):
  output = model.apply({'params': parameters}, _SOURCE, _LENGTHS, _TARGET)
  logits = functools.partial(output_logits, output=output.output)
  features = output.features
  if output.log_weights is None:
    return jax.nn.log_softmax(logits(features.reshape(-1, 8)))
  features = features.reshape(len(features), -1, 8)
  combine = model.config.decoder.combine
  return mixture_log_probabilities(
    features, output.log_weights, logits, combine
  )


def _gradient(model):
  """Of a loss by the parameters; compiled."""

  def loss(parameters):
    log_p = _log_probabilities(model, parameters)
    return -jnp.take_along_axis(log_p, _TARGET.reshape(-1, 1), 1).sum()

  return jax.jit(jax.grad(loss))


def _named(gradient):
  return {
    path_name(path): np.abs(leaf).max() for path, leaf in _leaves(gradient)
  }


def _leaves(tree):
  return jax.tree_util.tree_leaves_with_path(tree)


@functools.cache
def _plain_answer(norm: str, sides: tuple[str, ...]):
  """Log-probabilities, and the names of the parameters."""
  model, parameters = _plain(norm, sides)
  names = {path_name(path) for path, _ in _leaves(parameters)}
  return np.asarray(_log_probabilities(model, parameters)), names


def _moved(parameters):
  """As after an update, which moves every opening and all else a little."""
  leaves, tree = jax.tree_util.tree_flatten_with_path(parameters)
  generator = np.random.default_rng(0)
  return tree.unflatten(
    leaf
    + 0.1 * path_name(path).endswith('/gate')
    + jnp.float32(0.01 * generator.normal(size=leaf.shape))
    for path, leaf in leaves
  )


_REZERO = 'linear-encoder', 'dense-decoder', 'gtrans-decoder', 'shortcut'
_CASES = [
  *(
    (name, norm_for(name.partition('-')[0], wanted=norm))
    for name, norm in zip(
      _SIDES, itertools.cycle(('pre', 'post')), strict=False
    )
  ),
  *itertools.product(_REZERO, ('rezero',)),
]


# In the short run, some of them.
@pytest.mark.parametrize(('name', 'norm'), extended_but(_CASES, _CASES[:50:20]))
def test_a_fused_model_starts_as_the_plain_one(name, norm):
  expected, _ = _plain_answer(norm, tuple(_SIDES[name]))
  got = jax.jit(functools.partial(_log_probabilities, _started(name, norm)[0]))(
    _started(name, norm)[1]
  )
  # LN(LN(x)) is LN(x) but for epsilon, 1e-6 of a variance of 1.
  tolerance = (32 * _EPS + 2e-6) * np.abs(expected).max()
  np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance)


# Groups that do not translate have no gradient, in a pass without dropout. The
# openings of both sides are the same code, and so are those of all options.
_LEARNING = [
  name
  for name in _SIDES
  if name != 'gtrans-pruned'
  and name.removesuffix('-encoder') + '-decoder' not in _SIDES
]


@pytest.mark.parametrize('name', extended_but(_LEARNING[::5], _LEARNING[:1]))
def test_what_is_new_learns_from_the_start_on(name):
  _, old = _plain_answer('pre', tuple(_SIDES[name]))
  model, parameters = _started(name, 'pre')
  gradient = _gradient(model)
  start, later = gradient(parameters), gradient(_moved(parameters))
  _check_gradients(_named(start), _named(later), old)


def _check_gradients(start, later, old):
  """What is new learns: openings at once, what is behind them later."""
  new = start.keys() - old
  gates = {each for each in new if each.endswith('/gate')}
  for each in gates:
    assert start[each] > 0, each
  assert not new or any(start[each] > 0 for each in new)
  for each in new:
    # The softmax over keys cancels their biases.
    learns = start[each] > 0 or later[each] > 0
    assert learns or each.endswith('key/bias'), each


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
