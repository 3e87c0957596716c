import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import without_unread
from flax import linen as nn

from fusion_jax.config import ModelConfig
from fusion_jax.config.fusion import SideConfig
from fusion_jax.fusion.capsules import Votes
from fusion_jax.fusion.dynamic_routing import DynamicRouting
from fusion_jax.fusion.em_routing import EmRouting
from fusion_jax.fusion.routing import dynamic_routing, em_routing, unit_votes
from fusion_jax.layers.context import Context
from fusion_jax.testing import assert_close

_WIDTH = 8
_KEY = jax.random.key(0)
_MASK = jnp.ones((1, 1, 1, 5), bool)
_CONTEXT = Context(_MASK, True)
_CLASSES = {'dynamic_routing': DynamicRouting, 'em_routing': EmRouting}
_NAMES = pytest.mark.parametrize('name', _CLASSES)


def _module(name='dynamic_routing', options=None, layers=3, **changes):
  side = SideConfig(name, options or {})
  side = without_unread(side, 'decoder')
  values = {'width': _WIDTH, 'filter': 20, 'heads': 2, 'decoder': side}
  config = ModelConfig(decoder_layers=layers, **(values | changes))
  return _CLASSES[name](config, 'decoder')


def _layers(count, dtype='float32', scale=1.0):
  keys = jax.random.split(jax.random.key(1), count)
  return tuple(
    (scale * jax.random.normal(key, (2, 5, _WIDTH))).astype(dtype)
    for key in keys
  )


def _params(module, layers, context=_CONTEXT):
  init = jax.jit(lambda layers: module.init(_KEY, layers, context)['params'])
  return nn.unbox(init(layers))


def _apply(module, params, layers, context=_CONTEXT, **kwargs):
  run = jax.jit(
    lambda params, layers: module.apply(
      {'params': params}, layers, context, **kwargs
    )
  )
  return run(params, layers)


def _shapes(module):
  config = module.config
  layers = (jnp.zeros((1, 2, config.width)),) * (config.layers(module.side) + 1)
  context = Context(_MASK[..., :2], True)
  variables = jax.eval_shape(
    lambda: module.init(jax.random.key(0), layers, context)
  )
  return variables['params']


def _votes(activation, options, layers, params=None, name='dynamic_routing'):
  """The votes, and their parameters."""
  module = _module(name, options, len(layers))
  votes = Votes(module.config, 'decoder', activation)
  params = params or nn.unbox(votes.init(_KEY, layers, _CONTEXT)['params'])
  return votes.apply({'params': params}, layers, _CONTEXT), params


# Parameters.


def test_names_and_axes_of_parameters():
  boxes = jax.tree_util.tree_leaves_with_path(
    _shapes(_module('em_routing', {'capsules': 4})),
    is_leaf=lambda x: isinstance(x, nn.LogicallyPartitioned),
  )
  found = {
    '/'.join(key.key for key in path): (box.names, box.value.shape)
    for path, box in boxes
  }
  assert found == {
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
  block = nn.unbox(_shapes(_module(options={'vote_projection': 'block'})))
  shapes = jax.tree.map(lambda x: x.shape, block['votes'])
  assert shapes == {
    'context': {'kernel': (3, 24, 8), 'bias': (3, 8)},
    'transform': {'kernel': (3, 8, 8), 'bias': (3, 8)},
  }


@pytest.mark.parametrize(
  ('initialization', 'limit'),
  # glorot: sqrt(6 / (40 + 40)); mlrf: 1 / sqrt(40). The layers are no
  # receptive field.
  [('glorot', math.sqrt(6 / 80)), ('mlrf', 1 / math.sqrt(40))],
)
def test_every_layer_starts_as_a_projection_of_its_own(initialization, limit):
  options = {'vote_projection': 'block', 'context': 'own'}
  module = _module(options=options, width=40, initialization=initialization)
  layers = (jnp.zeros((1, 2, 40)),) * 4
  params = _params(module, layers)['votes']['context']
  kernel = np.asarray(params['kernel'])
  assert kernel.shape == (3, 40, 40)
  largest = np.abs(kernel).max((1, 2))
  assert ((0.98 * limit < largest) & (largest <= limit)).all()
  assert not np.allclose(kernel[0], kernel[1])
  assert bool(np.abs(params['bias']).max() > 0) == (initialization == 'mlrf')


def test_betas_start_normal():
  module = _module('em_routing', {}, 1, width=512, filter=4)
  params = _params(module, (jnp.zeros((1, 2, 512)),) * 2)
  for name in ('beta_a', 'beta_u'):
    assert float(params[name].std()) == pytest.approx(512**-0.5, rel=0.15)
  assert not np.allclose(params['beta_a'], params['beta_u'])


# Votes.


@pytest.mark.parametrize('activation', ['none', 'relu'])
def test_dense_votes_are_a_network_over_all_layers(activation):
  layers = _layers(3)
  votes, params = _votes(activation, {'capsules': 2}, layers)
  hidden = jnp.concatenate(layers, -1) @ params['hidden']['kernel']
  hidden = jax.nn.relu(hidden) if activation == 'relu' else hidden
  flat = hidden @ params['out']['kernel']
  assert votes.shape == (2, 5, 3, 2, 4)
  assert_close(votes.reshape(2, 5, 24), flat)


@pytest.mark.parametrize('activation', ['none', 'relu'])
@pytest.mark.parametrize('context', ['own', 'all'])
def test_block_votes_have_maps_for_every_layer(activation, context):
  layers = _layers(3)
  votes, params = _votes(
    activation,
    {'vote_projection': 'block', 'context': context, 'capsules': 4},
    layers,
  )
  assert votes.shape == (2, 5, 3, 4, 2)
  for index, layer in enumerate(layers):
    read = layer if context == 'own' else jnp.concatenate(layers, -1)
    capsule = read @ params['context']['kernel'][index]
    capsule = jax.nn.relu(capsule) if activation == 'relu' else capsule
    vote = capsule @ params['transform']['kernel'][index]
    assert_close(votes[:, :, index].reshape(2, 5, 8), vote)


def test_automatic_activation_of_votes():
  for name, options, expected in (
    ('dynamic_routing', {}, 'none'),
    ('em_routing', {}, 'relu'),
    ('dynamic_routing', {'vote_activation': 'relu'}, 'relu'),
    ('em_routing', {'vote_activation': 'none'}, 'none'),
  ):
    module = _module(name, options)
    bound = module.bind({'params': _params(module, _layers(4))})
    assert bound.votes.activation == expected


# Read-outs.


def test_dynamic_routing_is_the_norm_of_routed_votes():
  literal = {'vote_norm': 'none', 'agreement': 'product', 'residual': 'none'}
  options = {'capsules': 4, 'iterations': 2, 'route_gain': 3.0, **literal}
  options['average'] = 'gain'
  layers = _layers(4)
  module = _module(options=options)
  params = _params(module, layers)
  votes, _ = _votes('none', options, layers[1:], params['votes'])
  routed = dynamic_routing(votes, 2, 3.0).output.reshape(2, 5, 8)
  centred = routed - routed.mean(-1, keepdims=True)
  expected = centred / jnp.sqrt(centred.var(-1, keepdims=True) + 1e-6)
  np.testing.assert_allclose(
    _apply(module, params, layers), expected, rtol=1e-4, atol=1e-4
  )


def test_the_default_routes_cosines_of_unit_votes():
  options = {'capsules': 4, 'output_norm': False}
  layers = _layers(4)
  module = _module(options=options)
  params = _params(module, layers)
  votes, _ = _votes('none', options, layers[1:], params['votes'])
  routed = dynamic_routing(
    unit_votes(votes), gain=None, agreement='cosine', stop_gradient=True
  )
  expected = routed.output.reshape(2, 5, 8) + layers[-1]
  np.testing.assert_allclose(
    _apply(module, params, layers), expected, rtol=1e-4, atol=1e-5
  )


@pytest.mark.parametrize(
  ('name', 'literal'),
  [
    (
      'dynamic_routing',
      {'agreement': 'product', 'average': 'gain', 'route_gain': 1.0},
    ),
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
  layers = _layers(4)
  written_out = _module(name, literal)
  params = _params(written_out, layers)
  np.testing.assert_array_equal(
    _apply(_module(name, {'form': 'paper'}), params, layers),
    _apply(written_out, params, layers),
  )
  stable = _apply(_module(name), params, layers)
  assert not np.allclose(stable, _apply(written_out, params, layers), atol=0.1)


def test_em_routing_is_routed_votes():
  options = {
    'capsules': 4,
    'output_norm': False,
    'vote_norm': 'none',
    'residual': 'none',
    'variance_floor': 1e-4,
  }
  layers = _layers(4)
  module = _module('em_routing', options)
  params = _params(module, layers)
  votes, _ = _votes('relu', options, layers[1:], params['votes'], 'em_routing')
  hidden = jnp.concatenate(layers[1:], -1)
  hidden = jax.nn.relu(hidden @ params['activation_hidden']['kernel'])
  logits = hidden @ params['activation_out']['kernel']
  routed = em_routing(
    votes,
    jax.nn.sigmoid(logits)[..., None],
    params['beta_a'],
    params['beta_u'],
  )
  np.testing.assert_allclose(
    _apply(module, params, layers),
    routed.output.reshape(2, 5, 8),
    rtol=1e-4,
    atol=1e-5,
  )


@_NAMES
@pytest.mark.parametrize('residual', ['top', 'all'])
def test_residual_is_added_before_the_norm(name, residual):
  layers = _layers(4)
  options = {'output_norm': False, 'residual': 'none'}
  plain = _module(name, options)
  params = _params(plain, layers)
  expected = _apply(plain, params, layers)
  expected += layers[-1] if residual == 'top' else sum(layers[1:])
  added = _module(name, options | {'residual': residual})
  np.testing.assert_allclose(
    _apply(added, params, layers), expected, rtol=1e-5, atol=1e-5
  )
  normed = _module(name, {'residual': residual})
  params |= {'norm': {'scale': jnp.full(8, 2.0), 'bias': jnp.full(8, 1.0)}}
  y = (np.asarray(_apply(normed, params, layers)) - 1) / 2
  centred = expected - expected.mean(-1, keepdims=True)
  np.testing.assert_allclose(
    y, centred / centred.std(-1, keepdims=True), rtol=1e-3, atol=1e-3
  )


@_NAMES
def test_dropout_is_on_hidden_layers_only(name):
  layers, training = _layers(4), Context(_MASK, False)
  for rate, same in (({'dropout': 0.9}, True), ({}, False)):
    rates = rate or {'activation_dropout': 0.5}
    module = _module(name, **rates)
    params = _params(module, layers)
    y = _apply(module, params, layers, training, rngs={'dropout': _KEY})
    plain = _apply(module, params, layers)
    assert np.allclose(y, plain, atol=1e-5) == same


@_NAMES
def test_telemetry(name):
  options = {'capsules': 4, 'iterations': 2}
  module, layers = _module(name, options), _layers(4)
  params = _params(module, layers)
  tokens = jnp.arange(5) < jnp.array([[5], [2]])

  def seen(layers, tokens):
    context = Context(_MASK, True, tokens)
    _, state = _apply(module, params, layers, context, mutable='telemetry')
    return state['telemetry']

  all_tokens, some = seen(layers, None), seen(layers, tokens)
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
      assert not np.allclose(all_tokens[key], values)


def test_dead_and_saturated_capsules_by_hand():
  # One layer and one iteration: O = squash(V), of length 2e-6 or 0.9999.
  layers = (jnp.zeros((1, 1, 2)), jnp.array([[[1.0, 0.0]]]))
  votes = {
    name: {'kernel': jnp.eye(2), 'bias': jnp.zeros(2)}
    for name in ('hidden', 'out')
  }
  votes['out']['kernel'] = jnp.diag(jnp.array([100.0, 1.0]))
  votes['out']['bias'] = jnp.array([0.0, 1e-3])
  options = {'capsules': 2, 'iterations': 1, 'average': 'mass'}
  options |= {'vote_norm': 'none', 'output_norm': False}
  module = _module(options=options, layers=1, width=2, heads=1)
  _, state = module.apply(
    {'params': {'votes': votes}},
    layers,
    Context(jnp.ones((1, 1, 1, 1), bool), True),
    mutable='telemetry',
  )
  telemetry = state['telemetry']
  assert float(telemetry['dead_capsules']) == 0.5
  assert float(telemetry['saturated_capsules']) == 0.5
  size = math.sqrt((100**2 + 1e-6) / 2)
  assert float(telemetry['vote_size']) == pytest.approx(size)


def test_telemetry_over_inputs_starts_at_the_logarithm_of_their_number():
  module, layers = _module(options={'route_axis': 'input'}), _layers(4)
  _, state = _apply(
    module, _params(module, layers), layers, mutable='telemetry'
  )
  entropy = state['telemetry']['coupling_entropy']
  assert float(entropy[0]) == pytest.approx(math.log(3))


@_NAMES
def test_the_backward_pass_keeps_nothing_of_the_iterations(name):
  layers = _layers(4)

  def kept(iterations):
    module = _module(name, {'iterations': iterations})
    params = _params(module, layers)

    def pull(params, layers):
      return jax.vjp(
        lambda p, x: module.apply({'params': p}, x, _CONTEXT), params, layers
      )[1]

    leaves = jax.tree.leaves(jax.eval_shape(pull, params, layers))
    return sum(math.prod(x.shape) for x in leaves)

  assert kept(1) == kept(5)


@pytest.mark.extended
def test_literal_gain_starves_the_norm():
  # The specification's number: with 512 capsules and g = 1 the norm, of
  # epsilon 1e-6, returns a deviation of 0.04; the votes here have that of 1.
  literal = {'vote_norm': 'none', 'agreement': 'product', 'average': 'gain'}
  for gain, low, high in ((1.0, 0.02, 0.08), (0.0, 0.99, 1.01)):
    options = {'route_gain': gain, 'residual': 'none', **literal}
    module = _module(options=options, layers=6, width=512, filter=4, heads=1)
    keys = jax.random.split(_KEY, 7)
    layers = tuple(jax.random.normal(key, (1, 4, 512)) for key in keys)
    y = _apply(module, _params(module, layers), layers)
    assert low < float(y.std()) < high
