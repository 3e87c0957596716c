"""Value residuals against attention over values that are mixed by hand."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawn import drawn, normal
from flax import linen as nn
from numpy_parts import attend, dense

from fusion_jax.config.fusion import SideConfig
from fusion_jax.fusion.value_residual import (
  SharedValueAttention,
  ValueResidualAttention,
  ValueResidualOptions,
  value_attention,
  value_weights,
)
from fusion_jax.layers.attention import MultiHeadAttention, causal_mask
from fusion_jax.layers.context import Context, Keys, KeyValue
from fusion_jax.testing import TINY, assert_close


def _config(kind, start='fresh', **options):
  side, decoder = (
    SideConfig(
      attention='value_residual',
      attention_options={'kind': kind, **others},
      start=start,
    )
    for others in ({}, options)
  )
  return dataclasses.replace(TINY, encoder=side, decoder=decoder)


def _two_layers(modules, x, h):
  """What two self-attentions of a pass give, the second for another h."""
  context = Context(causal_mask(x.shape[1]), True)
  return [
    module.attend(own, own, (), context)
    for module, own in zip(modules, (x, h), strict=True)
  ]


class _Pair(nn.Module):
  """The attentions of two layers, which share the caches of a pass."""

  first: nn.Module
  second: nn.Module

  def __call__(self, x, h):
    return _two_layers((self.first, self.second), x, h)


@pytest.mark.parametrize(
  'kind', ['identity', 'learnable', 'constant', 'sparse']
)
def test_the_second_layer_reads_values_of_both(kind):
  config = _config(kind)
  pair = _Pair(
    ValueResidualAttention(config, 'encoder', 1),
    ValueResidualAttention(config, 'encoder', 3),
  )
  x, h = normal(2, 3, 8), normal(2, 3, 8, seed=1)
  parameters = nn.unbox(pair.init(jax.random.key(0), x, h))['params']
  a, b = {
    'identity': (0.5, 0.5),
    'learnable': (0.75, -1.5),
    'constant': (2, 1),
    'sparse': (5, 1),
  }[kind]
  if kind == 'learnable':
    np.testing.assert_array_equal(
      parameters['second']['value_weights'], [0.5, 0.5]
    )
    parameters['second']['value_weights'] = jnp.array([0.75, -1.5])
  found = pair.apply({'params': parameters}, x, h)

  plain = MultiHeadAttention(config)

  def keys_values(module, x):
    return module.keys_values(x)

  own = {k: v for k, v in parameters['second'].items() if k != 'value_weights'}
  one = plain.apply({'params': parameters['first']}, x, method=keys_values)
  two = plain.apply({'params': own}, h, method=keys_values)
  mixed = KeyValue(two.keys, a * one.values + b * two.values)
  expected = plain.apply({'params': own}, h, mixed, causal_mask(3), True)
  assert_close(found[1], expected)
  first = plain.apply(
    {'params': parameters['first']}, x, one, causal_mask(3), True
  )
  assert_close(found[0], first)


@pytest.mark.parametrize(
  ('layers', 'mixing'), [(6, [5, 6]), (3, [3]), (2, []), (12, [9, 10, 11, 12])]
)
def test_sparse_mixes_in_the_last_third(layers, mixing):
  options = ValueResidualOptions(kind='sparse')
  found = [
    index
    for index in range(2, layers + 1)
    if value_weights(options, index, layers) == (5, 1)
  ]
  assert found == mixing


def _shared(x, h):
  """Attentions of layers 1 and 2 of SVFormer, and parameters drawn for them."""
  config = _config('shared')
  pair = _Pair(*(value_attention(config, 'encoder', n) for n in (1, 2)))
  return pair, drawn(pair.init, x, h, scale=1.0)


def test_shared_values_against_their_equation():
  x, h = normal(2, 3, 8), normal(2, 3, 8, seed=1)
  pair, parameters = _shared(x, h)
  assert set(parameters['first']) == {'query', 'key', 'value', 'out'}
  assert set(parameters['second']) == {'query', 'key', 'out'}
  found = pair.apply({'params': parameters}, x, h)
  one, two = jax.tree.map(
    np.float64, (parameters['first'], parameters['second'])
  )
  values = dense(one['value'], np.float64(x))
  for own, inputs, output in ((one, x, found[0]), (two, h, found[1])):
    inputs = np.float64(inputs)
    attended = attend(
      dense(own['query'], inputs),
      dense(own['key'], inputs),
      values,
      np.tril(np.ones((3, 3), bool)),
      TINY.heads,
    )
    assert_close(output, dense(own['out'], attended), units=64)


def test_the_memory_above_layer_1_has_keys_alone():
  module = SharedValueAttention(_config('shared', where='cross'))
  features = normal(2, 3, 8)
  variables = module.init(
    jax.random.key(0), features, features, method=module.memory
  )
  assert set(variables['params']) == {'key'}
  memory = module.apply(variables, features, features, method=module.memory)
  assert isinstance(memory, Keys)
