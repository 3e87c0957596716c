import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.test_util import check_grads

from fusion_jax.config import ModelConfig
from fusion_jax.config.fusion import SideConfig
from fusion_jax.fusion.dynamic_combination import DynamicCombination
from fusion_jax.layers.context import Context
from fusion_jax.testing import assert_close

_WIDTH = 8
_KEY = jax.random.key(0)
_MASK = jnp.ones((1, 1, 1, 5), bool)
_CONTEXT = Context(_MASK, True)


def _module(layers=3, start='fresh', options=None, **changes):
  side = SideConfig('dynamic_combination', options or {}, start=start)
  values = {'width': _WIDTH, 'filter': 20, 'heads': 2}
  config = ModelConfig(
    encoder=side, encoder_layers=layers, **(values | changes)
  )
  return DynamicCombination(config, 'encoder')


def _layers(count, dtype='float32', seed=1):
  states = np.random.default_rng(seed).normal(size=(count, 2, 5, _WIDTH))
  return tuple(jnp.asarray(state, dtype) for state in states)


def _params(module, layers):
  start = jax.jit(lambda: module.init(_KEY, layers, _CONTEXT)['params'])
  return nn.unbox(start())


def _random(module, layers, scale=1.0, seed=2):
  """Where nothing is 0 or 1 because it starts so."""
  random = np.random.default_rng(seed)
  shapes = jax.eval_shape(lambda: module.init(_KEY, layers, _CONTEXT)['params'])
  return jax.tree.map(
    lambda x: jnp.asarray(scale * random.normal(size=x.shape), jnp.float32),
    nn.unbox(shapes),
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
def _weights(module, params, layers):
  return module.apply(
    {'params': params}, layers[1:], _CONTEXT, method='weights'
  )


def _row(*values):
  """One position."""
  return jnp.array(values, jnp.float32)[None, None]


def test_dynamic_combination_by_hand():
  module = _module(2, options={'hidden': 1}, width=2, heads=1)
  params = {
    'hidden': {
      'kernel': jnp.array([[1.0], [0], [0], [1]]),
      'bias': jnp.array([-3.0]),
    },
    'out': {
      'kernel': jnp.array([[1.0, 0, -1, 2]]),
      'bias': jnp.array([0.0, 1, 0, 0]),
    },
  }
  # H[0] is not read. relu(1 + 4 - 3) = 2: weights (2, 1), (-2, 4).
  # (2 * 1, 1 * 2) + (-2 * 3, 4 * 4)
  layers = (_row(9, 9), _row(1, 2), _row(3, 4))
  np.testing.assert_array_equal(_apply(module, params, layers), _row(-4, 18))
  # relu(1 - 6 - 3) = 0: weights (0, 1), (0, 0).
  layers = (_row(9, 9), _row(1, 2), _row(3, -6))
  np.testing.assert_array_equal(_apply(module, params, layers), _row(0, 2))


@pytest.mark.parametrize('layers', [1, 3, 6])
@pytest.mark.parametrize(
  ('initialization', 'dtype'), [('glorot', 'bfloat16'), ('mlrf', 'float32')]
)
def test_baseline_start_is_the_last_layer(layers, initialization, dtype):
  module = _module(
    layers,
    start='baseline',
    initialization=initialization,
    compute_dtype=dtype,
    dropout=0.5,
    activation_dropout=0.5,
  )
  x = _layers(layers + 1, dtype)
  y = _apply(module, _params(module, x), x, deterministic=False)
  assert y.dtype == dtype
  np.testing.assert_array_equal(
    y.astype(jnp.float32), x[-1].astype(jnp.float32)
  )


def test_baseline_start_trains_both_matrices():
  module, x = _module(start='baseline'), _layers(4)
  params = _params(module, x)

  def loss(params):
    return (_apply(module, params, x) * x[0]).sum()

  gradient_of = jax.jit(jax.grad(loss))
  gradient = gradient_of(params)
  assert np.abs(gradient['out']['kernel']).max() > 0
  moved = jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient)
  assert np.abs(gradient_of(moved)['hidden']['kernel']).max() > 0


def test_weights_differ_from_position_to_position():
  module, x = _module(), _layers(4)
  weights = _weights(module, _random(module, x), x)
  assert weights.shape == (2, 5, 3, _WIDTH)
  assert np.std(weights, axis=(0, 1)).min() > 0.01


def test_constant_weights_are_a_diagonal_combination():
  module, x = _module(), _layers(4)
  params = _random(module, x)
  params['out']['kernel'] = jnp.zeros_like(params['out']['kernel'])
  diagonal = jax.random.normal(jax.random.key(3), (3, _WIDTH))
  params['out']['bias'] = diagonal.reshape(-1)
  expected = sum(w * z for w, z in zip(diagonal, x[1:], strict=True))
  assert_close(_apply(module, params, x), expected)


@settings(max_examples=20)
@given(layers=st.sampled_from([1, 3, 6]), seed=st.integers(0, 999))
def test_softmax_weights_keep_the_sum_among_the_layers(layers, seed):
  module = _module(layers, options={'normalize': 'softmax'})
  x = _layers(layers + 1, seed=seed)
  params = _random(module, x, seed=seed)
  weights = _weights(module, params, x)
  assert weights.dtype == jnp.float32
  assert (weights >= 0).all()
  np.testing.assert_allclose(weights.sum(2), 1, rtol=1e-5)
  y, stacked = _apply(module, params, x), jnp.stack(x[1:])
  assert (y >= stacked.min(0) - 1e-5).all()
  assert (y <= stacked.max(0) + 1e-5).all()


def test_output_norm():
  module = _module(options={'output_norm': True})
  x = _layers(4)
  params = _random(module, x)
  norm = params['norm']
  y = np.asarray(_apply(_module(), params, x), np.float64)
  y = y - y.mean(-1, keepdims=True)
  y = y / np.sqrt((y**2).mean(-1, keepdims=True) + 1e-6)
  np.testing.assert_allclose(
    _apply(module, params, x),
    y * norm['scale'] + norm['bias'],
    rtol=1e-4,
    atol=1e-4,
  )


def test_recorded_weights_are_means_over_tokens():
  module, x = _module(), _layers(4)
  params = _random(module, x)
  tokens = jnp.arange(5) < jnp.array([[5], [2]])
  _, state = _run(module, params, x, tokens)
  kept = np.asarray(_weights(module, params, x))[np.asarray(tokens)]
  np.testing.assert_allclose(
    state['telemetry']['layer_weights'],
    kept.mean((0, 2)),
    rtol=1e-5,
    atol=1e-6,
  )


def test_gradients_are_the_differences():
  module = _module(2, options={'hidden': 3, 'normalize': 'softmax'})
  x = _layers(3)
  params = _random(module, x)
  check_grads(
    jax.jit(lambda params, x: _apply(module, params, x).mean(0)),
    (params, x),
    order=1,
    modes=['rev'],
    atol=1e-2,
    rtol=1e-2,
    eps=1e-3,
  )
