"""start='baseline': a fused model begins as the plain one that it came from."""

import dataclasses
import functools
import itertools
import tomllib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import norm_for
from tiers import extended_but

from fusion_jax.config import ModelConfig
from fusion_jax.config.fusion import SideConfig
from fusion_jax.fusion import SCHEMES
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


def _baseline(**fields) -> SideConfig:
  return SideConfig(start='baseline', **fields)


def _listed() -> dict[str, dict[str, SideConfig]]:
  """The sides of the table."""
  path = Path(__file__).with_name('starts.toml')
  cases = {}
  for name, row in tomllib.loads(path.read_text()).items():
    both = dict.fromkeys(_BOTH, row.pop('both')) if 'both' in row else {}
    sides = both | row
    cases[name] = {side: _baseline(**sides[side]) for side in sides}
  return cases


_SIDES = {
  f'{scheme}-{side}': {side: _baseline(fusion=scheme)}
  for scheme, row in SCHEMES.items()
  for side in row.modules
} | _listed()


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
