import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from aggregates import (
  WIDTH,
  apply_fusion,
  initial_parameters,
  noise_parameters,
  normal_layers,
  position,
  tiny_config,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from fusion_jax.fusion.linear import Linear, linear_combination


def test_linear_combination_by_hand():
  layers = (position(1, 2), position(3, 4))
  kernel = jnp.array([[[1.0, 0], [0, -1]], [[0, 2], [1, 0]]])
  # (1, -2) + (4, 6) + (0, 1)
  y = linear_combination(layers, kernel, jnp.array([0.0, 1.0]))
  np.testing.assert_array_equal(y, position(5, 5))


def test_factored_by_hand():
  config = tiny_config('linear', 2, {'hidden': 1}, width=2, heads=1)
  params = {
    'hidden': {
      'kernel': jnp.array([[1.0], [-2], [0], [3]]),
      'bias': jnp.array([-20.0]),
    },
    'out': {'kernel': jnp.array([[2.0, -1]]), 'bias': jnp.array([0.0, 0.5])},
  }
  # H[0] is not read. 1 - 2 * 2 + 3 * 4 - 20 = -11, with no activation after.
  layers = (position(9, 9), position(1, 2), position(3, 4))
  y = apply_fusion(Linear(config, 'encoder'), params, layers)
  np.testing.assert_array_equal(y, position(-22, 11.5))


@settings(max_examples=20)
@given(
  a=st.floats(-10, 10),
  b=st.floats(-10, 10),
  factored=st.booleans(),
  seed=st.integers(0, 99),
)
def test_linear_is_linear_but_for_its_biases(a, b, factored, seed):
  options = {'factored': factored}
  module = Linear(tiny_config('linear', options=options), 'encoder')
  x, z = normal_layers(4, seed=seed), normal_layers(4, seed=seed + 100)
  params = jax.tree_util.tree_map_with_path(
    lambda path, leaf: leaf * (path[-1].key == 'kernel'),
    noise_parameters(module, x, 0.3),
  )
  both = tuple(a * p + b * q for p, q in zip(x, z, strict=True))
  expected = a * apply_fusion(module, params, x) + b * apply_fusion(
    module, params, z
  )
  np.testing.assert_allclose(
    apply_fusion(module, params, both), expected, rtol=1e-3, atol=1e-3
  )


@pytest.mark.parametrize('layers', [1, 3, 6])
@pytest.mark.parametrize('factored', [True, False])
@pytest.mark.parametrize(
  ('initialization', 'dtype'), [('glorot', 'bfloat16'), ('fan_in', 'float32')]
)
def test_linear_baseline_start_is_the_last_layer(
  layers, factored, initialization, dtype
):
  config = tiny_config(
    'linear',
    layers,
    {'factored': factored},
    'baseline',
    initialization=initialization,
    compute_dtype=dtype,
    dropout=0.5,
    activation_dropout=0.5,
  )
  module, x = Linear(config, 'decoder'), normal_layers(layers + 1, dtype=dtype)
  y = apply_fusion(
    module, initial_parameters(module, x), x, deterministic=False
  )
  assert y.dtype == dtype
  np.testing.assert_array_equal(
    y.astype(jnp.float32), x[-1].astype(jnp.float32)
  )


def test_linear_baseline_start_leaves_nothing_dead():
  module, x = (
    Linear(tiny_config('linear', start='baseline'), 'encoder'),
    normal_layers(4),
  )
  params = initial_parameters(module, x)

  def loss(params):
    return (apply_fusion(module, params, x) * x[1]).sum()

  gradient_of = jax.jit(jax.grad(loss))
  gradient = gradient_of(params)
  assert (np.abs(gradient['hidden']['kernel'][:, :WIDTH]) > 0).all()
  assert (np.abs(gradient['out']['kernel']) > 0).all()
  moved = jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient)
  assert (np.abs(gradient_of(moved)['hidden']['kernel']) > 0).all()


def test_plain_starts_as_one_matrix_over_all_layers():
  config = tiny_config('linear', 3, {'factored': False}, width=64)
  kernel = initial_parameters(Linear(config, 'encoder'), normal_layers(4, 64))[
    'kernel'
  ]
  limit = math.sqrt(6 / (3 * 64 + 64))
  assert 0.99 * limit < np.abs(kernel).max() <= limit
