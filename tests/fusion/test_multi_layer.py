import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import reading
from flax.core import meta

from fusion_jax.config import ModelConfig
from fusion_jax.fusion.multi_layer import MultiLayerAttention, layers_read
from fusion_jax.layers.attention import MultiHeadAttention, causal_mask
from fusion_jax.layers.context import Context

_T = 5
_CAUSAL = causal_mask(_T)


def _config(read=2, options=None, **changes):
  options = {'hidden': 12, 'layers': read} | (options or {})
  side = reading('multi_layer', **options)
  values = {'width': 8, 'filter': 12, 'heads': 2, 'dropout': 0.0}
  return ModelConfig(encoder=side, decoder=side, **(values | changes))


def _states(count, dtype=jnp.float32, batch=2):
  keys = jax.random.split(jax.random.key(7), count)
  return tuple(
    jax.random.normal(key, (batch, _T, 8)).astype(dtype) for key in keys
  )


def _attend(module, params, layers, mask=_CAUSAL, h=None):
  x, context = layers[-1], Context(mask, True)
  h = x if h is None else h
  variables = {'params': params}
  return module.apply(variables, x, h, layers, context, method='attend')


def _init(module, layers):
  x, context = layers[-1], Context(_CAUSAL, True)
  boxed = module.init(jax.random.key(3), x, x, layers, context, method='attend')
  return meta.unbox(boxed['params'])


def _shapes(module, layers):
  return jax.tree.map(jnp.shape, jax.eval_shape(lambda: _init(module, layers)))


@pytest.mark.parametrize(
  ('index', 'most', 'expected'),
  # The layers below layer 3 are H[0], which is no source, H[1] and H[2].
  [(1, 3, 1), (3, 3, 1), (4, 3, 3), (6, 3, 3), (6, 5, 5)],
)
def test_layers_read(index, most, expected):
  assert layers_read(index, most) == expected


@pytest.mark.parametrize('most', [2, 3])
def test_layers_with_one_source_are_plain_attention(most):
  config = _config(read=most, norm='pre')
  layers = _states(1)
  module = MultiLayerAttention(config, 'encoder', 1)
  params = _init(module, layers)
  plain = MultiHeadAttention(config)
  assert _shapes(module, layers) == _shapes(plain, layers)
  np.testing.assert_array_equal(
    _attend(module, params, layers), _attend(plain, params, layers)
  )
