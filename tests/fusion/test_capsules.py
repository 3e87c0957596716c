"""Votes, and the modules that route them by agreement and by EM."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from aggregates import (
  CONTEXT,
  KEY,
  apply_fusion,
  initial_parameters,
  normal_layers,
  run_fusion,
  tiny_config,
)
from flax import linen as nn

from fusion_jax.fusion.capsules import DynamicRouting, EmRouting

_CLASSES = {'dynamic_routing': DynamicRouting, 'em_routing': EmRouting}
_NAMES = pytest.mark.parametrize('name', _CLASSES)


def _module(name='dynamic_routing', options=None, layers=3, **changes):
  return _CLASSES[name](
    tiny_config(name, layers, options, **changes), 'decoder'
  )


def test_names_and_axes_of_parameters():
  def boxes(name, **options):
    module, layers = _module(name, options), normal_layers(4)
    return jax.eval_shape(lambda: module.init(KEY, layers, CONTEXT)['params'])

  leaves = jax.tree_util.tree_leaves_with_path(
    boxes('em_routing', capsules=4),
    is_leaf=lambda x: isinstance(x, nn.LogicallyPartitioned),
  )
  assert {
    '/'.join(key.key for key in path): (box.names, box.value.shape)
    for path, box in leaves
  } == {
    'votes/hidden/kernel': (('embed', 'mlp'), (24, 24)),
    'votes/hidden/bias': (('mlp',), (24,)),
    'votes/out/kernel': (('mlp', 'embed'), (24, 24)),
    'votes/out/bias': (('embed',), (24,)),
    'activation_hidden/kernel': (('embed', 'mlp'), (24, 24)),
    'activation_hidden/bias': (('mlp',), (24,)),
    'activation_out/kernel': (('mlp', 'layers'), (24, 3)),
    'activation_out/bias': (('layers',), (3,)),
    'beta_a': (('capsules',), (4,)),
    'beta_u': (('capsules',), (4,)),
    'norm/scale': (('norm',), (8,)),
    'norm/bias': (('norm',), (8,)),
  }
  block = nn.unbox(boxes('dynamic_routing', vote_projection='block'))
  assert jax.tree.map(jnp.shape, block['votes']) == {
    'context': {'kernel': (3, 24, 8), 'bias': (3, 8)},
    'transform': {'kernel': (3, 8, 8), 'bias': (3, 8)},
  }


@pytest.mark.parametrize(
  ('initialization', 'limit'),
  # glorot: sqrt(6 / (40 + 40)); fan_in: 1 / sqrt(40). The layers are no
  # receptive field.
  [('glorot', math.sqrt(6 / 80)), ('fan_in', 1 / math.sqrt(40))],
)
def test_every_layer_starts_as_a_projection_of_its_own(initialization, limit):
  options = {'vote_projection': 'block', 'context': 'own'}
  module = _module(options=options, width=40, initialization=initialization)
  params = initial_parameters(module, normal_layers(4, 40))['votes']['context']
  kernel = np.asarray(params['kernel'])
  assert kernel.shape == (3, 40, 40)
  largest = np.abs(kernel).max((1, 2))
  assert ((0.98 * limit < largest) & (largest <= limit)).all()
  assert not np.allclose(kernel[0], kernel[1])
  assert bool(np.abs(params['bias']).max() > 0) == (initialization == 'fan_in')


def test_betas_start_normal():
  module = _module('em_routing', {}, 1, width=512, filter=4)
  params = initial_parameters(module, normal_layers(2, 512))
  for name in ('beta_a', 'beta_u'):
    assert float(params[name].std()) == pytest.approx(512**-0.5, rel=0.15)
  assert not np.allclose(params['beta_a'], params['beta_u'])


@pytest.mark.parametrize(
  ('name', 'literal'),
  [
    ('dynamic_routing', {'agreement': 'product', 'average': 'sum'}),
    ('em_routing', {'variance_floor': 1e-4}),
  ],
)
def test_the_literal_form_is_one_option(name, literal):
  literal = {
    'vote_norm': 'none',
    'residual': 'none',
    'stop_gradient': False,
    **literal,
  }
  layers = normal_layers(4)
  written_out = _module(name, literal)
  params = initial_parameters(written_out, layers)
  expected = apply_fusion(written_out, params, layers)
  short = apply_fusion(_module(name, {'form': 'paper'}), params, layers)
  np.testing.assert_array_equal(short, expected)
  stable = apply_fusion(_module(name), params, layers)
  assert not np.allclose(stable, expected, atol=0.1)


@_NAMES
def test_dropout_is_on_hidden_layers_only(name):
  layers = normal_layers(4)
  for rates, same in (
    ({'dropout': 0.9}, True),
    ({'activation_dropout': 0.5}, False),
  ):
    module = _module(name, **rates)
    params = initial_parameters(module, layers)
    y = apply_fusion(module, params, layers, deterministic=False)
    plain = apply_fusion(module, params, layers)
    assert np.allclose(y, plain, atol=1e-5) == same


@_NAMES
def test_telemetry(name):
  options = {'capsules': 4, 'iterations': 2}
  module, layers = _module(name, options), normal_layers(4)
  params = initial_parameters(module, layers)
  tokens = jnp.arange(5) < jnp.array([[5], [2]])

  def seen(layers, tokens):
    return run_fusion(module, params, layers, tokens)[1]['telemetry']

  every, some = seen(layers, None), seen(layers, tokens)
  entropies = 'coupling_entropy', 'coupling_diversity'
  shares = 'dead_capsules', 'saturated_capsules'
  assert set(some) == {*entropies, *shares, 'vote_size'}
  for key, values in some.items():
    assert values.shape == ((2,) if key in entropies else ())
    assert values.dtype == jnp.float32
  assert float(some['vote_size']) > 0
  assert all(0 <= float(some[key]) <= 1 for key in shares)
  assert float(some['coupling_entropy'][0]) == pytest.approx(math.log(4))
  assert float(some['coupling_entropy'][1]) < math.log(4)
  assert float(some['coupling_diversity'][0]) == pytest.approx(0, abs=1e-6)
  assert float(some['coupling_diversity'][1]) > 0
  # Padding does not count.
  other = tuple(jnp.where(tokens[..., None], x, 9.0) for x in layers)
  for key, values in seen(other, tokens).items():
    np.testing.assert_allclose(values, some[key], rtol=1e-5, atol=1e-6)
    if key not in shares:
      assert not np.allclose(every[key], values)


def test_dead_and_saturated_capsules_by_hand():
  # One layer and one iteration: O = squash(V), of length 2e-6 or 0.9999.
  layers = (jnp.zeros((1, 1, 2)), jnp.array([[[1.0, 0.0]]]))
  unit = {'kernel': jnp.eye(2), 'bias': jnp.zeros(2)}
  out = {
    'kernel': jnp.diag(jnp.array([100.0, 1.0])),
    'bias': jnp.array([0.0, 1e-3]),
  }
  params = {
    'votes': {'hidden': unit, 'out': out},
    'norm': {'scale': jnp.ones(2), 'bias': jnp.zeros(2)},
  }
  options = {'capsules': 2, 'iterations': 1, 'vote_norm': 'none'}
  module = _module(options=options, layers=1, width=2, heads=1)
  telemetry = run_fusion(module, params, layers)[1]['telemetry']
  assert float(telemetry['dead_capsules']) == 0.5
  assert float(telemetry['saturated_capsules']) == 0.5
  size = math.sqrt((100**2 + 1e-6) / 2)
  assert float(telemetry['vote_size']) == pytest.approx(size)


@_NAMES
def test_the_backward_pass_keeps_nothing_of_the_iterations(name):
  layers = normal_layers(4)

  def kept(iterations):
    module = _module(name, {'iterations': iterations})
    params = initial_parameters(module, layers)

    def pull(params, layers):
      def apply(params, layers):
        return module.apply({'params': params}, layers, CONTEXT)

      return jax.vjp(apply, params, layers)[1]

    leaves = jax.tree.leaves(jax.eval_shape(pull, params, layers))
    return sum(math.prod(x.shape) for x in leaves)

  assert kept(1) == kept(5)
