"""Value residuals against attention over values that are mixed by hand."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from fusion_jax.config.fusion import SideConfig, ValueResidualOptions
from fusion_jax.fusion.value_residual import (
  ValueResidualAttention,
  value_weights,
)
from fusion_jax.layers.attention import MultiHeadAttention, causal_mask
from fusion_jax.layers.caches import KeyValue
from fusion_jax.layers.context import Context
from fusion_jax.testing import TINY, assert_close


def _config(kind, start='fresh', **options):
  values = ValueResidualOptions(kind=kind, **options)
  side = SideConfig(value_residual=values, start=start)
  return dataclasses.replace(TINY, encoder=side, decoder=side)


def _normal(*shape, seed=0):
  return jnp.float32(np.random.default_rng(seed).normal(size=shape))


def _two_layers(modules, x, h):
  """What two self-attentions of a pass give, the second for another h."""
  context = Context(causal_mask(3), True)
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
  x, h = _normal(2, 3, 8), _normal(2, 3, 8, seed=1)
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


def test_the_baseline_start_is_plain_and_learns():
  config = _config('learnable', 'baseline')
  pair = _Pair(
    ValueResidualAttention(config, 'encoder', 1),
    ValueResidualAttention(config, 'encoder', 2),
  )
  x, h = _normal(2, 3, 8), _normal(2, 3, 8, seed=1)
  parameters = nn.unbox(pair.init(jax.random.key(0), x, h))['params']
  np.testing.assert_array_equal(parameters['second']['value_weights'], [0, 1])
  plain = MultiHeadAttention(config)
  own = {k: v for k, v in parameters['second'].items() if k != 'value_weights'}

  def attend(module, h):
    return module.attend(h, h, (), Context(causal_mask(3), True))

  found = pair.apply({'params': parameters}, x, h)[1]
  assert_close(found, plain.apply({'params': own}, h, method=attend))
  gradient = jax.grad(
    lambda p: (
      pair.apply({'params': p}, x, h)[1] * _normal(2, 3, 8, seed=2)
    ).sum()
  )(parameters)
  assert np.abs(gradient['second']['value_weights']).min() > 0
