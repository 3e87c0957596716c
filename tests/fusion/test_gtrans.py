"""Groups of layers, beside their formulas."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import without_unread
from flax import linen as nn

from fusion_jax.config import ModelConfig
from fusion_jax.config.fusion import SideConfig
from fusion_jax.errors import InputError
from fusion_jax.fusion.gtrans import DecoderGroups, EncoderGroups, parse_groups
from fusion_jax.layers.context import Context

_CONTEXT = Context(jnp.ones((1, 1, 1, 1), bool), True)
_KINDS = {'encoder': EncoderGroups, 'decoder': DecoderGroups}


def _layers(count):
  keys = jax.random.split(jax.random.key(0), count + 1)
  return tuple(jax.random.normal(key, (2, 3, 8)) for key in keys)


def _started(side, layers, **options):
  """A module and its initial parameters, with their axes."""
  chosen = without_unread(SideConfig('gtrans', options), side)
  config = ModelConfig(
    width=8, heads=2, **{side: chosen, f'{side}_layers': layers}
  )
  module = _KINDS[side](config, side)
  return module, module.init(jax.random.key(0), _layers(layers), _CONTEXT)


def test_layers_without_a_group_have_no_weight():
  _, started = _started('decoder', 5, last_group='floor')
  shapes = jax.tree.map(jnp.shape, nn.unbox(started['params']))
  assert shapes == {'layer_weights': (4,), 'group_weights': (2,)}
  axes = {name: box.names for name, box in started['params'].items()}
  assert axes == {'layer_weights': ('layers',), 'group_weights': ('groups',)}


@pytest.mark.parametrize(
  ('side', 'weights', 'expected'),
  [
    ('encoder', 'weights', {'group_weights': [1 / 2, 3 / 4]}),
    (
      'decoder',
      'group_weights',
      {'layer_weights': [1 / 2] * 4, 'group_weights': [1 / 4, 3 / 4]},
    ),
  ],
)
def test_telemetry(side, weights, expected):
  own = {'group_size': 2, 'temperature': 1.0}
  module, started = _started(side, 4, **own)
  assert started['params'][weights].names == ('groups',)
  params = nn.unbox(started['params'])
  params[weights] = jnp.array([0.0, math.log(3)])
  _, kept = module.apply(
    {'params': params}, _layers(4), _CONTEXT, mutable=['telemetry']
  )
  assert kept['telemetry'].keys() == expected.keys()
  for key, values in expected.items():
    np.testing.assert_allclose(kept['telemetry'][key], values, rtol=1e-6)


def test_fewer_layers_give_the_groups_that_are_whole():
  module, started = _started('decoder', 6)
  features, log_weights = module.apply(started, _layers(6), _CONTEXT)
  fewer, fewer_weights = module.apply(started, _layers(6)[:5], _CONTEXT)
  np.testing.assert_array_equal(fewer, features[:2])
  np.testing.assert_array_equal(fewer_weights, log_weights[:2])


@pytest.mark.parametrize('text', ['0:1', '2:1', '1', '1:4', 'a:b', '1:2:3'])
def test_bad_groups(text):
  with pytest.raises(InputError, match="'first:last' within 1:3"):
    parse_groups(text, 3, 'f')
