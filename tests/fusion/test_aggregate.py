import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from extremes import assert_finite, extreme_layers
from flax import linen as nn
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.test_util import check_grads

from fusion_jax.config import PRESETS, ModelConfig
from fusion_jax.errors import InputError
from fusion_jax.fusion.aggregate import (
  Average,
  FeedForwardFusion,
  Hops,
  LayerEmbedding,
  Linear,
  average,
  hop_scores,
  hop_sums,
  linear_combination,
)
from fusion_jax.fusion_options import LinearOptions, MlrfOptions, SideConfig
from fusion_jax.models.context import Context

_WIDTH = 8
_KEY = jax.random.key(0)
_MASK = jnp.ones((1, 1, 1, 5), bool)
_CONTEXT = Context(_MASK, True)


def _config(layers=3, start='fresh', linear=None, mlrf=None, **changes):
  side = SideConfig(
    fusion='linear' if start == 'baseline' else 'none',
    start=start,
    linear=linear or LinearOptions(),
    mlrf=mlrf or MlrfOptions(hidden=12, scorer_width=6, hops=2),
  )
  values = {'width': _WIDTH, 'filter': 20, 'heads': 2}
  return ModelConfig(
    encoder=side,
    decoder=side,
    encoder_layers=layers,
    decoder_layers=layers,
    **(values | changes),
  )


def _mlrf(**options):
  return MlrfOptions(**({'hidden': 12, 'scorer_width': 6} | options))


def _layers(count, width=_WIDTH, dtype='float32', seed=1):
  states = np.random.default_rng(seed).normal(size=(count, 2, 5, width))
  return tuple(jnp.asarray(state, dtype) for state in states)


def _params(module, layers):
  """As they start."""
  start = jax.jit(lambda: module.init(_KEY, layers, _CONTEXT))
  return nn.unbox(start().get('params', {}))


def _random(module, layers, scale=1.0):
  """Where nothing is 0 or 1 because it starts so."""
  random = np.random.default_rng(2)
  shapes = jax.eval_shape(lambda: module.init(_KEY, layers, _CONTEXT))
  return jax.tree.map(
    lambda x: jnp.asarray(scale * random.normal(size=x.shape), jnp.float32),
    nn.unbox(shapes.get('params', {})),
  )


@functools.partial(jax.jit, static_argnums=0, static_argnames='deterministic')
def _run(module, params, layers, tokens=None, deterministic=True):
  """The fusion and its telemetry."""
  return module.apply(
    {'params': params},
    layers,
    Context(_MASK, deterministic, tokens),
    rngs={'dropout': _KEY},
    mutable=['telemetry'],
  )


def _apply(module, params, layers, **options):
  return _run(module, params, layers, **options)[0]


@functools.partial(jax.jit, static_argnums=0)
def _attention(module, params, layers):
  return module.apply({'params': params}, layers, method='attention')


@functools.partial(jax.jit, static_argnums=0)
def _network(module, params, z):
  return module.apply({'params': params}, z, _CONTEXT, method='network')


def _count(module, layers, width):
  """Parameters, by shape alone."""
  layers = (jax.ShapeDtypeStruct((1, 1, width), jnp.float32),) * (layers + 1)
  context = Context(jnp.ones((1, 1, 1, 1), bool), True)
  shapes = jax.eval_shape(lambda x: module.init(_KEY, x, context), layers)
  return sum(x.size for x in jax.tree.leaves(shapes.get('params', {})))


def _normalised(x):
  x = np.asarray(x, np.float64)
  return (x - x.mean(-1, keepdims=True)) / np.sqrt(
    x.var(-1, keepdims=True) + 1e-6
  )


def _row(*values):
  """One position."""
  return jnp.array(values, jnp.float32)[None, None]


# Linear combination.


def test_linear_combination_by_hand():
  layers = (_row(1, 2), _row(3, 4))
  kernel = jnp.array([[[1.0, 0], [0, -1]], [[0, 2], [1, 0]]])
  # (1, -2) + (4, 6) + (0, 1)
  y = linear_combination(layers, kernel, jnp.array([0.0, 1.0]))
  np.testing.assert_array_equal(y, _row(5, 5))


def test_factored_by_hand():
  config = _config(2, width=2, heads=1, linear=LinearOptions(hidden=1))
  params = {
    'hidden': {
      'kernel': jnp.array([[1.0], [-2], [0], [3]]),
      'bias': jnp.array([-20.0]),
    },
    'out': {
      'kernel': jnp.array([[2.0, -1]]),
      'bias': jnp.array([0.0, 0.5]),
    },
  }
  # H[0] is not read. 1 - 2 * 2 + 3 * 4 - 20 = -11, with no activation after.
  layers = (_row(9, 9), _row(1, 2), _row(3, 4))
  y = _apply(Linear(config, 'encoder'), params, layers)
  np.testing.assert_array_equal(y, _row(-22, 11.5))


@pytest.mark.parametrize('layers', [1, 3, 6])
def test_factored_is_plain_with_the_products_of_its_blocks(layers):
  factored = Linear(_config(layers), 'decoder')
  plain = Linear(
    _config(layers, linear=LinearOptions(factored=False)), 'decoder'
  )
  x = _layers(layers + 1)
  params = _random(factored, x)
  rows, out = params['hidden']['kernel'], params['out']['kernel']
  products = {
    'kernel': (rows @ out).reshape(layers, _WIDTH, _WIDTH),
    'bias': params['hidden']['bias'] @ out + params['out']['bias'],
  }
  np.testing.assert_allclose(
    _apply(factored, params, x),
    _apply(plain, products, x),
    rtol=1e-4,
    atol=1e-4,
  )


@settings(max_examples=20)
@given(
  a=st.floats(-10, 10),
  b=st.floats(-10, 10),
  factored=st.booleans(),
  seed=st.integers(0, 99),
)
def test_linear_without_biases_is_linear(a, b, factored, seed):
  options = LinearOptions(factored=factored, bias=False)
  module = Linear(_config(linear=options), 'encoder')
  x, z = _layers(4, seed=seed), _layers(4, seed=seed + 100)
  params = _random(module, x, 0.3)
  both = tuple(a * p + b * q for p, q in zip(x, z, strict=True))
  expected = a * _apply(module, params, x) + b * _apply(module, params, z)
  np.testing.assert_allclose(
    _apply(module, params, both), expected, rtol=1e-3, atol=1e-3
  )


@pytest.mark.parametrize('layers', [1, 3, 6])
@pytest.mark.parametrize('factored', [True, False])
@pytest.mark.parametrize(
  ('initialization', 'dtype'), [('glorot', 'bfloat16'), ('mlrf', 'float32')]
)
def test_linear_baseline_start_is_the_last_layer(
  layers, factored, initialization, dtype
):
  config = _config(
    layers,
    start='baseline',
    linear=LinearOptions(factored),
    initialization=initialization,
    compute_dtype=dtype,
    dropout=0.5,
    activation_dropout=0.5,
  )
  module, x = Linear(config, 'decoder'), _layers(layers + 1, dtype=dtype)
  y = _apply(module, _params(module, x), x, deterministic=False)
  assert y.dtype == dtype
  np.testing.assert_array_equal(
    y.astype(jnp.float32), x[-1].astype(jnp.float32)
  )


def test_linear_baseline_start_leaves_nothing_dead():
  module, x = Linear(_config(3, start='baseline'), 'encoder'), _layers(4)
  params = _params(module, x)

  def loss(params):
    return (_apply(module, params, x) * x[1]).sum()

  gradient_of = jax.jit(jax.grad(loss))
  gradient = gradient_of(params)
  assert (np.abs(gradient['hidden']['kernel'][:, :_WIDTH]) > 0).all()
  assert (np.abs(gradient['out']['kernel']) > 0).all()
  moved = jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient)
  assert (np.abs(gradient_of(moved)['hidden']['kernel']) > 0).all()


def test_linear_baseline_start_needs_as_many_columns_as_features():
  with pytest.raises(InputError, match=r'model\.encoder\.linear\.hidden'):
    _config(start='baseline', linear=LinearOptions(hidden=_WIDTH - 1))


def test_plain_starts_as_one_matrix_over_all_layers():
  config = _config(3, width=64, linear=LinearOptions(factored=False))
  kernel = _params(Linear(config, 'encoder'), _layers(4, 64))['kernel']
  limit = math.sqrt(6 / (3 * 64 + 64))
  assert 0.99 * limit < np.abs(kernel).max() <= limit


def test_linear_output_norm():
  config = _config(linear=LinearOptions(output_norm=True))
  module, x = Linear(config, 'encoder'), _layers(4)
  params = _params(module, x)
  raw = {name: params[name] for name in ('hidden', 'out')}
  np.testing.assert_allclose(
    _apply(module, params, x),
    _normalised(_apply(Linear(_config(), 'encoder'), raw, x)),
    rtol=1e-4,
    atol=1e-5,
  )


@pytest.mark.parametrize(
  ('options', 'expected'),
  [
    # Dou et al. (2018), Table 1: 14.7M for both sides; U = 512 * 512.
    (LinearOptions(), 28 * 512**2 + 2_560),
    (LinearOptions(bias=False), 28 * 512**2),
    (LinearOptions(hidden=512, output_norm=True), 7 * 512**2 + 1_024 + 1_024),
    (LinearOptions(factored=False), 6 * 512**2 + 512),
    (LinearOptions(factored=False, bias=False), 6 * 512**2),
  ],
)
def test_linear_parameters(options, expected):
  side = SideConfig(linear=options)
  config = dataclasses.replace(PRESETS['base'], encoder=side, decoder=side)
  for name in ('encoder', 'decoder'):
    assert _count(Linear(config, name), 6, 512) == expected


# Average.


def test_average_by_hand():
  layers = (_row(1, 2), _row(3, 4), _row(8, 0))
  np.testing.assert_array_equal(average(layers), _row(4, 2))


def test_average_adds_in_float32():
  # 256 + 1 = 256 in bfloat16: adding one after the other would lose the ones.
  layers = tuple(_row(x).astype('bfloat16') for x in (256, *(1,) * 16))
  np.testing.assert_array_equal(average(layers).astype('float32'), _row(16))


@pytest.mark.parametrize('include', [True, False])
@pytest.mark.parametrize('layers', [1, 3, 6])
def test_average_of_equal_layers_is_that_layer(include, layers):
  options = _mlrf(norm='none', include_embedding=include)
  module = Average(_config(layers, mlrf=options), 'encoder')
  x = _layers(1) * (layers + 1)
  assert not _random(module, x)
  np.testing.assert_allclose(_apply(module, {}, x), x[0], rtol=1e-6)


def test_average_without_the_embedding():
  options = _mlrf(norm='none', include_embedding=False)
  module = Average(_config(2, mlrf=options), 'encoder')
  layers = (_row(100, 100), _row(1, 2), _row(3, 4))
  np.testing.assert_array_equal(_apply(module, {}, layers), _row(2, 3))


@pytest.mark.parametrize('norm', ['affine', 'plain'])
def test_norm_of_the_average(norm):
  module, x = Average(_config(mlrf=_mlrf(norm=norm)), 'decoder'), _layers(4)
  params = {}
  if norm == 'affine':
    params = {'norm': {'scale': jnp.full(8, 2.0), 'bias': jnp.full(8, 3.0)}}
  scale, offset = (2, 3) if norm == 'affine' else (1, 0)
  np.testing.assert_allclose(
    _apply(module, params, x),
    scale * _normalised(sum(x) / 4) + offset,
    rtol=1e-4,
    atol=1e-5,
  )


# Feed-forward fusion and the layer embedding.


def _with_table(kind, config, side='encoder'):
  return kind(config, side, LayerEmbedding(config))


def test_feed_forward_by_hand():
  options = MlrfOptions(hidden=2, norm='none')
  config = _config(1, width=2, heads=1, mlrf=options)
  params = {
    'embedding': {'embedding': jnp.array([[0.0, 1], [-1, 0]])},
    'hidden': {
      'kernel': jnp.array([[1.0, 0], [1, 0], [0, 1], [0, -1]]),
      'bias': jnp.array([0.0, -1]),
    },
    'out': {
      'kernel': jnp.array([[1.0, 2], [5, 5]]),
      'bias': jnp.array([0.0, 1]),
    },
  }
  # With E: (1, 3), (2, 4). relu(4, 2 - 4 - 1) = (4, 0) -> (4, 8 + 1).
  layers = (_row(1, 2), _row(3, 4))
  y = _apply(_with_table(FeedForwardFusion, config), params, layers)
  np.testing.assert_array_equal(y, _row(4, 9))


def test_layer_embedding_fits_the_deeper_stack():
  config = _config()
  config = dataclasses.replace(config, encoder_layers=5, width=64)
  table = nn.unbox(LayerEmbedding(config).init(_KEY))['params']['embedding']
  assert table.shape == (6, 64)
  assert 0.09 < np.abs(table).max() <= 0.1
  assert abs(table.mean()) < 0.01


@pytest.mark.parametrize('kind', [FeedForwardFusion, Hops])
def test_a_shallow_side_reads_the_first_rows(kind):
  config = dataclasses.replace(_config(2), encoder_layers=5)
  module, x = _with_table(kind, config, 'decoder'), _layers(3)
  params = _random(module, x)
  table = params['embedding']['embedding']
  assert table.shape == (6, _WIDTH)
  added = tuple(z + row for z, row in zip(x, table, strict=False))
  rest = {k: v for k, v in params.items() if k != 'embedding'}
  np.testing.assert_allclose(
    _apply(module, params, x),
    _apply(kind(config, 'decoder'), rest, added),
    rtol=1e-5,
    atol=1e-6,
  )


@pytest.mark.parametrize('kind', [FeedForwardFusion, Hops])
def test_without_layer_embedding_the_table_is_not_read(kind):
  config = _config(mlrf=_mlrf(layer_embedding=False))
  assert 'embedding' not in _random(_with_table(kind, config), _layers(4))


@pytest.mark.parametrize('kind', [FeedForwardFusion, Hops])
def test_without_the_embedding_its_row_is_not_read(kind):
  config = _config(mlrf=_mlrf(include_embedding=False))
  module, x = _with_table(kind, config), _layers(4)
  params = _random(module, x)

  def loss(params, x):
    return (_apply(module, params, x) * x[1]).sum()

  by_params, by_layers = jax.jit(jax.grad(loss, (0, 1)))(params, x)
  table = np.abs(by_params['embedding']['embedding']).sum(1)
  assert table[0] == 0
  assert (table[1:] > 0).all()
  assert not np.any(by_layers[0])


def test_feed_forward_with_equal_row_blocks_is_symmetric():
  config = _config(3)
  module, x = _with_table(FeedForwardFusion, config), _layers(4)
  params = _random(module, x)
  block = params['hidden']['kernel'][:_WIDTH]
  params['hidden']['kernel'] = jnp.tile(block, (4, 1))
  params['embedding']['embedding'] = jnp.full((4, _WIDTH), 0.3)
  np.testing.assert_allclose(
    _apply(module, params, x),
    _apply(module, params, x[::-1]),
    rtol=1e-4,
    atol=1e-5,
  )


def test_activation_dropout_reaches_the_hidden_layer():
  config = _config(activation_dropout=0.5)
  module, x = _with_table(FeedForwardFusion, config), _layers(4)
  params = _random(module, x)
  y, z = (_apply(module, params, x, deterministic=d) for d in (True, False))
  assert np.abs(y - z).max() > 0.1


# Multi-hop attention.


def test_hop_scores_by_hand():
  z = _row(1, -1)
  first = jnp.array([[[1.0, 2], [3, 0]]])
  second = jnp.array([[[1.0], [2]], [[3], [-1]]])
  # relu(1 - 3, 2) = (0, 2); times the columns (1, 3) and (2, -1).
  np.testing.assert_array_equal(
    hop_scores(z, first, second, jax.nn.relu), _row([6], [-2])
  )
  # A W1 each: hop 1 as before; hop 2 has relu(1, 1) = (1, 1) -> 2 - 1.
  both = jnp.concatenate([first, jnp.array([[[1.0, 1], [0, 0]]])])
  np.testing.assert_array_equal(
    hop_scores(z, both, second, jax.nn.relu), _row([6], [1])
  )


def test_hop_sums_by_hand():
  layers = (_row(1, 2), _row(10, 20))
  # [layer, hop, 1]
  attention = jnp.array([[[0.25], [1.0]], [[0.75], [0.0]]])[None, None]
  np.testing.assert_array_equal(
    hop_sums(attention, layers), _row(7.75, 15.5, 1, 2)
  )
  # A weight for each feature of the only hop.
  attention = jnp.array([[[0.5, 0.0]], [[0.5, 1.0]]])[None, None]
  np.testing.assert_array_equal(hop_sums(attention, layers), _row(5.5, 20))


@pytest.mark.parametrize('activation', ['tanh', 'relu'])
def test_hops_by_hand(activation):
  options = MlrfOptions(
    hops=1, scorer_width=1, hidden=1, scorer_activation=activation, norm='none'
  )
  config = _config(1, width=2, heads=1, mlrf=options)
  params = {
    'scorer_hidden': {'kernel': jnp.array([[1.0], [0]])},
    'scorer_out': {'kernel': jnp.array([[2.0]])},
    'hidden': {'kernel': jnp.array([[1.0], [1]]), 'bias': jnp.array([0.0])},
    'out': {'kernel': jnp.array([[1.0, -1]]), 'bias': jnp.array([0.0, 0.0])},
  }
  layers = (_row(1, 2), _row(-1, 6))
  # Scores 2 f(1) and 2 f(-1); sums of the two layers 3 and 5.
  f = math.tanh if activation == 'tanh' else lambda x: max(x, 0)
  first = 1 / (1 + math.exp(2 * f(-1) - 2 * f(1)))
  expected = 3 * first + 5 * (1 - first)
  y = _apply(Hops(config, 'encoder'), params, layers)
  np.testing.assert_allclose(y, _row(expected, -expected), rtol=1e-6)


_INDEPENDENT = ['none', 'per_layer', 'per_hop']


@pytest.mark.parametrize('independent', _INDEPENDENT)
@pytest.mark.parametrize(('feature_wise', 'layers'), [(True, 3), (False, 6)])
def test_attention_sums_to_one_over_the_layers(
  independent, feature_wise, layers
):
  options = _mlrf(independent=independent, feature_wise=feature_wise, hops=3)
  config = _config(layers, mlrf=options)
  module, x = _with_table(Hops, config), _layers(layers + 1)
  params = _random(module, x)
  attention = _attention(module, params, x)
  assert attention.shape == (2, 5, layers + 1, 3, 8 if feature_wise else 1)
  assert attention.dtype == jnp.float32
  assert (attention >= 0).all()
  np.testing.assert_allclose(attention.sum(2), 1, rtol=1e-6)


@settings(max_examples=25)
@given(
  count=st.integers(1, 7),
  scale=st.sampled_from([1e-6, 1.0, 1e3]),
  seed=st.integers(0, 999),
)
def test_hop_sums_lie_among_the_layers(count, scale, seed):
  layers = tuple(scale * z for z in _layers(count, seed=seed))
  odds = np.random.default_rng(seed).exponential(size=(2, 5, count, 3, 1)) ** 3
  attention = jnp.asarray(odds / odds.sum(2, keepdims=True), jnp.float32)
  sums = np.asarray(hop_sums(attention, layers)).reshape(2, 5, 3, _WIDTH)
  stacked = np.stack(layers)[..., None, :]
  slack = 1e-5 * scale
  assert (sums >= stacked.min(0) - slack).all()
  assert (sums <= stacked.max(0) + slack).all()


@pytest.mark.parametrize('independent', _INDEPENDENT)
def test_equal_scores_give_the_mean_in_every_hop(independent):
  config = _config(mlrf=_mlrf(independent=independent, hops=2))
  module, x = _with_table(Hops, config), _layers(4)
  params = _random(module, x)
  params['scorer_out']['kernel'] = jnp.zeros((6, 2))
  table = params['embedding']['embedding']
  mean = sum(z + row for z, row in zip(x, table, strict=True)) / 4
  expected = _network(module, params, jnp.concatenate([mean, mean], -1))
  np.testing.assert_allclose(
    _apply(module, params, x), expected, rtol=1e-5, atol=1e-5
  )


def test_a_single_layer_gets_all_attention():
  config = _config(1, mlrf=_mlrf(hops=2, include_embedding=False))
  module, x = _with_table(Hops, config), _layers(2)
  params = _random(module, x)
  only = x[1] + params['embedding']['embedding'][1]
  expected = _network(module, params, jnp.concatenate([only, only], -1))
  np.testing.assert_allclose(_apply(module, params, x), expected, rtol=1e-6)


@pytest.mark.parametrize('kind', [FeedForwardFusion, Hops])
@pytest.mark.parametrize('independent', _INDEPENDENT)
def test_layers_change_places_together_with_what_is_theirs(kind, independent):
  config = _config(mlrf=_mlrf(hops=3, independent=independent))
  module, x = _with_table(kind, config), _layers(4)
  params = _random(module, x)
  order = np.array([2, 0, 3, 1])
  moved = jax.tree.map(lambda leaf: leaf, params)
  moved['embedding']['embedding'] = params['embedding']['embedding'][order]
  if kind is FeedForwardFusion:
    blocks = params['hidden']['kernel'].reshape(4, _WIDTH, -1)
    moved['hidden']['kernel'] = blocks[order].reshape(4 * _WIDTH, -1)
  elif independent == 'per_layer':
    kernel = params['scorer_hidden']['kernel']
    moved['scorer_hidden']['kernel'] = kernel[order]
  np.testing.assert_allclose(
    _apply(module, params, x),
    _apply(module, moved, tuple(x[i] for i in order)),
    rtol=1e-4,
    atol=1e-5,
  )


@pytest.mark.parametrize('independent', ['per_layer', 'per_hop'])
@pytest.mark.parametrize('feature_wise', [True, False])
def test_equal_independent_matrices_are_one_shared(independent, feature_wise):
  options = _mlrf(hops=3, feature_wise=feature_wise)
  shared = Hops(_config(mlrf=options), 'encoder')
  options = dataclasses.replace(options, independent=independent)
  own, x = Hops(_config(mlrf=options), 'encoder'), _layers(4)
  params = _random(shared, x)
  copies = jnp.stack(
    [params['scorer_hidden']['kernel']]
    * (4 if independent == 'per_layer' else 3)
  )
  assert copies.shape == _random(own, x)['scorer_hidden']['kernel'].shape
  np.testing.assert_allclose(
    _apply(shared, params, x),
    _apply(own, params | {'scorer_hidden': {'kernel': copies}}, x),
    rtol=1e-4,
    atol=1e-5,
  )


def test_feature_wise_with_equal_columns_is_one_weight_a_layer():
  wise = Hops(_config(mlrf=_mlrf(hops=3, feature_wise=True)), 'encoder')
  plain, x = Hops(_config(mlrf=_mlrf(hops=3)), 'encoder'), _layers(4)
  params = _random(plain, x)
  repeated = jnp.repeat(params['scorer_out']['kernel'], _WIDTH, 1)
  np.testing.assert_allclose(
    _apply(plain, params, x),
    _apply(wise, params | {'scorer_out': {'kernel': repeated}}, x),
    rtol=1e-4,
    atol=1e-5,
  )


@pytest.mark.parametrize('independent', _INDEPENDENT)
def test_scorer_matrices_start_as_if_alone(independent):
  options = _mlrf(scorer_width=100, independent=independent)
  config = _config(width=64, initialization='mlrf', mlrf=options)
  params = _params(Hops(config, 'encoder'), _layers(4, 64))
  kernels = params['scorer_hidden']['kernel'].reshape(-1, 64, 100)
  # U(-1 / sqrt(fan_in), 1 / sqrt(fan_in)), Wang et al. (2018), section 4.2.
  largest = np.abs(kernels).max((1, 2))
  assert (largest > 0.99 / 8).all()
  assert (largest <= 1 / 8).all()
  assert len(np.unique(largest)) == len(kernels)
  assert 0.09 < np.abs(params['scorer_out']['kernel']).max() <= 0.1


@pytest.mark.parametrize('include', [True, False])
def test_recorded_attention_is_the_mean_over_tokens(include):
  config = _config(mlrf=_mlrf(hops=2, include_embedding=include))
  module, x = Hops(config, 'encoder'), _layers(4)
  params = _random(module, x)
  fused = x if include else x[1:]
  attention = _attention(module, params, fused)
  tokens = jnp.arange(5) < jnp.array([[5], [2]])
  _, state = _run(module, params, x, tokens)
  recorded = state['telemetry']['hop_attention']
  kept = np.asarray(attention)[np.asarray(tokens)]
  np.testing.assert_allclose(recorded, kept.mean(0)[..., 0].T, rtol=1e-5)
  np.testing.assert_allclose(recorded.sum(1), 1, rtol=1e-5)


_SMALL = PRESETS['small']


@pytest.mark.parametrize(
  ('kind', 'options', 'expected'),
  [
    # Wang et al. (2018), Table 2: D = 256, n = 4; without a norm that has
    # parameters, with one + 512, with E + 4 * 256 once.
    (Average, {}, 512),
    (Average, {'norm': 'plain'}, 0),
    (Average, {'norm': 'none'}, 0),
    (FeedForwardFusion, {'norm': 'none'}, 656_128),
    (FeedForwardFusion, {'norm': 'plain'}, 656_128),
    (FeedForwardFusion, {}, 656_640),
    (FeedForwardFusion, {'include_embedding': False}, 656_640 - 256 * 512),
    (Hops, {'norm': 'plain'}, 922_368),
    (Hops, {'norm': 'none'}, 922_368),
    (Hops, {}, 922_880),
    (Hops, {'norm': 'plain', 'hops': 6}, 1_186_560),
    # The 13.47M of its Dec-SA with 6 hops: five more W1.
    (
      Hops,
      {'norm': 'plain', 'hops': 6, 'independent': 'per_hop'},
      1_186_560 + 5 * 256 * 1_024,
    ),
    (Hops, {'independent': 'per_layer'}, 922_880 + 3 * 256 * 1_024),
    (
      Hops,
      {'independent': 'per_layer', 'include_embedding': False},
      922_880 + 2 * 256 * 1_024,
    ),
    (Hops, {'feature_wise': True}, 922_880 + 255 * 4 * 1_024),
  ],
)
def test_mlrf_parameters(kind, options, expected):
  side = SideConfig(mlrf=MlrfOptions(**options))
  config = dataclasses.replace(_SMALL, encoder=side, decoder=side)
  assert _count(kind(config, 'decoder'), 3, 256) == expected
  if kind is not Average:
    module = kind(config, 'decoder', LayerEmbedding(config))
    assert _count(module, 3, 256) == expected + 4 * 256


# All of them.

_ALL = [
  (Linear, LinearOptions(), None),
  (Linear, LinearOptions(factored=False, output_norm=True), None),
  (Average, None, _mlrf()),
  (Average, None, _mlrf(norm='plain', include_embedding=False)),
  (FeedForwardFusion, None, _mlrf()),
  (FeedForwardFusion, None, _mlrf(norm='plain', include_embedding=False)),
  (Hops, None, _mlrf(hops=3)),
  (Hops, None, _mlrf(independent='per_layer', norm='plain')),
  (
    Hops,
    None,
    _mlrf(independent='per_hop', feature_wise=True, scorer_activation='relu'),
  ),
]


def _module(kind, linear, mlrf, layers=3, **changes):
  config = _config(layers, linear=linear, mlrf=mlrf, **changes)
  if kind in (FeedForwardFusion, Hops):
    return _with_table(kind, config)
  return kind(config, 'encoder')


@pytest.mark.parametrize(('kind', 'linear', 'mlrf'), _ALL)
def test_positions_are_fused_one_by_one(kind, linear, mlrf):
  module, x = _module(kind, linear, mlrf), _layers(4)
  params = _random(module, x, 0.5)
  order = np.array([3, 1, 4, 0, 2])
  np.testing.assert_allclose(
    _apply(module, params, tuple(z[:, order] for z in x)),
    _apply(module, params, x)[:, order],
    rtol=1e-4,
    atol=1e-5,
  )


@functools.partial(jax.jit, static_argnums=0)
def _gradients(module, params, layers):
  """Of a generic loss; and the fusion."""

  def loss(params, layers):
    y = _apply(module, params, layers)
    return jnp.sin(y.astype(jnp.float32) * jnp.arange(1, 9)).sum(), y

  return jax.grad(loss, (0, 1), has_aux=True)(params, layers)


@pytest.mark.parametrize(
  ('layers', 'dtype'), [(1, 'float32'), (3, 'bfloat16'), (6, 'float32')]
)
@pytest.mark.parametrize(('kind', 'linear', 'mlrf'), _ALL)
def test_gradients_reach_everything_and_stay_finite(
  kind, linear, mlrf, layers, dtype
):
  module = _module(kind, linear, mlrf, layers, compute_dtype=dtype)
  x = _layers(layers + 1, dtype=dtype)
  params = _random(module, x, 0.3)
  for inputs in extreme_layers(x).values():
    gradients, y = _gradients(module, params, inputs)
    assert (y.shape, y.dtype) == (x[0].shape, dtype)
    assert_finite((y, gradients))
  (by_params, by_layers), _ = _gradients(module, params, x)
  first = 0 if mlrf is not None and mlrf.include_embedding else 1
  if layers + 1 - first == 1:
    # The attention over one layer is 1 whatever the scorer says.
    by_params.pop('scorer_hidden', None)
    by_params.pop('scorer_out', None)
  for leaf in jax.tree.leaves((by_params, by_layers[first:])):
    assert np.abs(leaf).max() > 0


@pytest.mark.parametrize(('kind', 'linear', 'mlrf'), _ALL)
def test_bfloat16_is_near_float32(kind, linear, mlrf):
  module = _module(kind, linear, mlrf)
  half = _module(kind, linear, mlrf, compute_dtype='bfloat16')
  x = _layers(4, dtype='bfloat16')
  params = _random(module, x, 0.3)
  np.testing.assert_allclose(
    _apply(half, params, x).astype('float32'),
    _apply(module, params, tuple(z.astype('float32') for z in x)),
    rtol=0.05,
    atol=0.1,
  )


@pytest.mark.parametrize('shared', [True, False])
def test_gradients_of_attention_are_the_differences(shared):
  x, random = _layers(3, width=4), np.random.default_rng(5)
  first = random.normal(size=(1 if shared else 2, 4, 3)).astype('float32') / 2
  second = random.normal(size=(3, 2, 4)).astype('float32') / 2

  @jax.jit
  def fused(x, first, second):
    scores = [hop_scores(z, first, second, jnp.tanh) for z in x]
    return hop_sums(jax.nn.softmax(jnp.stack(scores, 2), 2), x).mean(0)

  check_grads(fused, (x, first, second), 1, ['rev'], 1e-2, 1e-2, 1e-2)
