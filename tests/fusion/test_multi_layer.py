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


def _baseline(params):
  return {name: params[name] for name in ('query', 'key', 'value', 'out')}


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


@pytest.mark.parametrize('norm', ['pre', 'post'])
def test_sources_one_by_one(norm):
  config = _config(
    read=3, norm=norm, options={'zero_out': True, 'residual': 'all'}
  )
  module = MultiLayerAttention(config, 'encoder', 4)
  layers = tuple(4 * layer + 1 for layer in _states(4))
  h = layers[-1] * 0.3
  params = _init(module, layers)
  plain = MultiHeadAttention(config)

  def one(params, source):
    def method(module):
      seen = module.keys_values(source)
      return module(h, seen, _CAUSAL, True)

    return plain.apply({'params': params}, method=method)

  def normalised(x):
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + config.norm_epsilon)

  extra = normalised if norm == 'pre' else lambda x: x
  total = one(_baseline(params), h)
  total += one(params['source_2'], extra(layers[2]))
  total += one(params['source_3'], extra(layers[1]))
  # W2 = 0, so the node is the norm of the sum of its inputs.
  np.testing.assert_allclose(
    _attend(module, params, layers, h=h),
    normalised(total),
    rtol=1e-4,
    atol=1e-5,
  )


def test_the_input_of_the_layer_is_the_top_of_the_node():
  config = _config(options={'zero_out': True, 'residual': 'top'})
  module, layers = MultiLayerAttention(config, 'encoder', 3), _states(3)
  params = _init(module, layers)
  plain = _attend(MultiHeadAttention(config), _baseline(params), layers)
  expected = plain - plain.mean(-1, keepdims=True)
  expected /= jnp.sqrt(plain.var(-1, keepdims=True) + config.norm_epsilon)
  np.testing.assert_allclose(
    _attend(module, params, layers), expected, rtol=1e-4, atol=1e-5
  )
