import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import reading
from flax import linen as nn
from flax.core import meta
from tiers import extended_but

from fusion_jax.config import ModelConfig
from fusion_jax.fusion.multi_layer import (
  MultiLayerAttention,
  layers_read,
)
from fusion_jax.layers.attention import (
  MultiHeadAttention,
  causal_mask,
  padding_mask,
)
from fusion_jax.layers.caches import CacheCursor, KeyValue
from fusion_jax.layers.context import Context
from fusion_jax.layers.residual import Residual

_T = 5
_CAUSAL = causal_mask(_T)


def _config(read=2, partial=False, options=None, **changes):
  options = {'hidden': 12, 'layers': read, 'partial': partial} | (options or {})
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


class _Stack(nn.Module):
  """The self-attention sublayers of a stack, and nothing else."""

  config: ModelConfig

  @nn.compact
  def __call__(self, x, context):
    layers = (x,)
    for index in range(1, self.config.decoder_layers + 1):
      residual = Residual(self.config)
      h, _ = residual.before(layers[-1], context)
      attention = MultiLayerAttention(self.config, 'decoder', index)
      y = attention.attend(layers[-1], h, layers, context)
      layers = (*layers, residual.after(layers[-1], y, context))
    return layers


@pytest.mark.parametrize(
  ('index', 'most', 'partial', 'expected'),
  [
    (1, 3, False, 1),
    (3, 3, False, 1),
    (4, 3, False, 3),
    (6, 3, False, 3),
    (1, 3, True, 1),
    # The layers below layer 2 are H[0], which is no source, and H[1].
    (2, 3, True, 1),
    (3, 3, True, 2),
    (4, 3, True, 3),
    (6, 6, True, 5),
  ],
)
def test_layers_read(index, most, partial, expected):
  assert layers_read(index, most, partial) == expected


@pytest.mark.parametrize('most', [2, 3])
@pytest.mark.parametrize('partial', [True, False])
def test_layers_with_one_source_are_plain_attention(most, partial):
  config = _config(read=most, partial=partial, norm='pre')
  layers = _states(1)
  module = MultiLayerAttention(config, 'encoder', 1)
  params = _init(module, layers)
  plain = MultiHeadAttention(config)
  assert _shapes(module, layers) == _shapes(plain, layers)
  np.testing.assert_array_equal(
    _attend(module, params, layers), _attend(plain, params, layers)
  )


@pytest.mark.parametrize(
  ('read', 'partial', 'index', 'extra'),
  [
    (2, False, 2, []),
    (2, False, 3, ['2']),
    (3, False, 3, []),
    (3, True, 3, ['2']),
    (3, False, 4, ['2', '3']),
  ],
)
@pytest.mark.parametrize('norm', ['pre', 'post', 'rezero'])
def test_names_of_parameters(read, partial, index, extra, norm):
  config = _config(read=read, partial=partial, norm=norm)
  module = MultiLayerAttention(config, 'decoder', index)
  names = {f'source_{i}' for i in extra}
  if norm == 'pre':
    names |= {f'source_norm_{i}' for i in extra}
  names |= {'agg'} if extra else set()
  assert set(_shapes(module, _states(index))) == names | {
    'query',
    'key',
    'value',
    'out',
  }


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


@pytest.mark.parametrize('norm', ['pre', 'post'])
def test_only_the_layers_named_are_read(norm):
  config = _config(read=2, norm=norm)
  module, layers = MultiLayerAttention(config, 'encoder', 4), _states(4)
  params = _init(module, layers)

  def total(layers):
    y = _attend(module, params, layers, h=layers[-1])
    return (y * jnp.arange(8)).sum()

  slopes = jax.grad(total)(layers)
  assert [bool(jnp.any(slope != 0)) for slope in slopes] == [
    False,
    False,
    True,
    True,
  ]


@pytest.mark.parametrize(
  ('activation', 'norm', 'read', 'partial'),
  extended_but(
    [
      ('sigmoid', 'post', 2, False),
      ('relu', 'pre', 3, True),
      ('attention', 'pre', 2, False),
      ('attention', 'post', 3, True),
    ],
    [('sigmoid', 'post', 2, False), ('attention', 'post', 3, True)],
  ),
)
def test_caches_give_what_the_full_pass_gives(activation, norm, read, partial):
  config = _config(
    options={'activation': activation},
    norm=norm,
    read=read,
    partial=partial,
    decoder_layers=4,
  )
  stack, (x,) = _Stack(config), _states(1)
  variables = meta.unbox(
    stack.init(jax.random.key(0), x, Context(_CAUSAL, True))
  )

  @jax.jit
  def full(x):
    context = Context(_CAUSAL, True)
    layers = stack.apply(variables, x, context)
    return layers[-1], tuple(context.caches.seen)

  @jax.jit
  def step(one, caches, position):
    walk = CacheCursor(caches, position)
    mask = padding_mask(position[None] + 1, _T)
    layers = stack.apply(variables, one, Context(mask, True, caches=walk))
    return layers[-1], tuple(walk.seen)

  expected, seen = full(x)
  sources = [layers_read(i, read, partial) for i in (1, 2, 3, 4)]
  nodes = sum(s > 1 for s in sources) if activation == 'attention' else 0
  assert len(seen) == sum(sources) + nodes

  caches = jax.tree.map(jnp.zeros_like, seen)
  for position in range(_T):
    y, caches = step(x[:, position : position + 1], caches, jnp.int32(position))
    np.testing.assert_allclose(
      y[:, 0], expected[:, position], rtol=1e-4, atol=1e-5
    )
  for ours, theirs in zip(caches, seen, strict=True):
    assert isinstance(ours, KeyValue)
    np.testing.assert_allclose(ours.keys, theirs.keys, rtol=1e-4, atol=1e-5)
