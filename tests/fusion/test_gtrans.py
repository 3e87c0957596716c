import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import without_unread
from flax import linen as nn
from hypothesis import given
from hypothesis import strategies as st

from fusion_jax.config import ModelConfig
from fusion_jax.config.fusion import SideConfig
from fusion_jax.errors import InputError
from fusion_jax.fusion.gtrans import (
  DecoderGroups,
  EncoderGroups,
  parse_groups,
  partition,
)
from fusion_jax.layers.context import Context

_CONTEXT = Context(jnp.ones((1, 1, 1, 1), bool), True)
_WIDTH = 8


def _config(layers=6, width=_WIDTH, **options):
  side = SideConfig('gtrans', options)
  sides = {name: without_unread(side, name) for name in ('encoder', 'decoder')}
  return ModelConfig(
    width=width,
    filter=16,
    heads=2,
    encoder_layers=layers,
    decoder_layers=layers,
    **sides,
  )


def _layers(count, width=_WIDTH):
  keys = jax.random.split(jax.random.key(0), count + 1)
  return tuple(jax.random.normal(key, (2, 3, width)) for key in keys)


def _module(config, side):
  groups = EncoderGroups if side == 'encoder' else DecoderGroups
  return groups(config, side)


def _start(config, side):
  """A module and its initial parameters."""
  module = _module(config, side)
  layers = _layers(config.layers(side), width=config.width)
  params = module.init(jax.random.key(0), layers, _CONTEXT)['params']
  return module, nn.unbox(params)


def _run(module, params, layers):
  return module.apply({'params': params}, layers, _CONTEXT)


def _names(params):
  flat = jax.tree_util.tree_flatten_with_path(params)[0]
  return {
    jax.tree_util.keystr(path, simple=True, separator='/'): leaf.shape
    for path, leaf in flat
  }


@pytest.mark.parametrize(
  ('layers', 'size', 'last_group', 'expected'),
  [
    (6, 3, 'ceil', [[1, 2, 3], [4, 5, 6]]),
    (5, 2, 'ceil', [[1, 2], [3, 4], [5]]),
    (5, 2, 'floor', [[1, 2], [3, 4]]),
    (2, 3, 'ceil', [[1, 2]]),
    (2, 3, 'floor', []),
    (1, 1, 'floor', [[1]]),
  ],
)
def test_partition_by_hand(layers, size, last_group, expected):
  groups = partition(layers, size, last_group)
  assert [list(group) for group in groups] == expected


@given(st.integers(1, 60), st.integers(1, 70))
def test_partition_has_every_layer_once(layers, size):
  groups = partition(layers, size, 'ceil')
  assert [n for group in groups for n in group] == list(range(1, layers + 1))
  assert all(len(group) == size for group in groups[:-1])
  assert [group[-1] for group in groups] == [
    min(k * size, layers) for k in range(1, math.ceil(layers / size) + 1)
  ]
  whole = tuple(group for group in groups if len(group) == size)
  assert partition(layers, size, 'floor') == whole


def test_encoder_groups_by_hand():
  config = _config(3, group_size=2, width=2)
  module, params = _start(config, 'encoder')
  # sigmoid(ln 3) = 3/4 and sigmoid(-ln 3) = 1/4; layers 2 and 3 end groups.
  params['weights'] = jnp.array([math.log(3), -math.log(3)])
  layers = tuple(
    jnp.array([[v]]) for v in ([9.0, 9], [7.0, 7], [4.0, 0], [0.0, 8])
  )
  # (3/4 (4, 0) + 1/4 (0, 8)) / 2 = (1.5, 1): the norm gives (1, -1).
  y = _run(module, params, layers)
  np.testing.assert_allclose(y, [[[1, -1]]], atol=1e-4)


def test_the_last_layer_alone_is_the_baseline():
  module, params = _start(_config(4, group_size=4, mode='last'), 'decoder')
  h = _layers(4)
  features, log_weights = _run(module, params, h)
  np.testing.assert_array_equal(features[0], h[4])
  np.testing.assert_array_equal(log_weights, [0])


def test_layers_without_a_group_have_no_weight():
  _, params = _start(_config(5, last_group='floor'), 'decoder')
  assert _names(params) == {'layer_weights': (4,), 'group_weights': (2,)}


def test_parameters_have_logical_axes():
  for side, axes in (
    ('encoder', {'weights': ('groups',)}),
    ('decoder', {'layer_weights': ('layers',), 'group_weights': ('groups',)}),
  ):
    module = _module(_config(6), side)
    params = module.init(jax.random.key(0), _layers(6), _CONTEXT)['params']
    for name, expected in axes.items():
      assert params[name].names == expected


def test_telemetry():
  config = _config(4, temperature=1.0)
  for side, expected in (
    ('encoder', {'group_weights': [1 / 2, 3 / 4]}),
    (
      'decoder',
      {'layer_weights': [1 / 2] * 4, 'group_weights': [1 / 4, 3 / 4]},
    ),
  ):
    module, params = _start(config, side)
    name = 'weights' if side == 'encoder' else 'group_weights'
    params[name] = jnp.array([0.0, math.log(3)])
    _, kept = module.apply(
      {'params': params}, _layers(4), _CONTEXT, mutable=['telemetry']
    )
    assert kept['telemetry'].keys() == expected.keys()
    for key, values in expected.items():
      np.testing.assert_allclose(kept['telemetry'][key], values, rtol=1e-6)


def test_fewer_layers_give_the_groups_that_are_whole():
  config = ModelConfig(
    width=4, heads=2, decoder_layers=6, decoder=SideConfig(fusion='gtrans')
  )
  module = DecoderGroups(config, 'decoder')
  layers = tuple(jnp.full((1, 2, 4), n, jnp.float32) for n in range(7))
  context = Context(jnp.ones((1, 1, 2, 2), bool), True)
  variables = module.init(jax.random.key(0), layers, context)
  features, log_weights = module.apply(variables, layers, context)
  fewer, fewer_weights = module.apply(variables, layers[:5], context)
  np.testing.assert_array_equal(fewer, features[:2])
  np.testing.assert_array_equal(fewer_weights, log_weights[:2])


@pytest.mark.parametrize(
  ('text', 'expected'), [('1:1', (0, 1)), ('2:3', (1, 3)), ('1:3', (0, 3))]
)
def test_groups_are_counted_from_one(text, expected):
  assert parse_groups(text, 3, 'f') == expected


@pytest.mark.parametrize('text', ['0:1', '2:1', '1', '1:4', 'a:b', '1:2:3'])
def test_bad_groups(text):
  with pytest.raises(InputError, match="'first:last' within 1:3"):
    parse_groups(text, 3, 'f')
