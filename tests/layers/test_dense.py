import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fusion_jax.config import ModelConfig
from fusion_jax.layers.attention import causal_mask
from fusion_jax.layers.context import Context
from fusion_jax.layers.dense import Dense
from fusion_jax.layers.residual import Residual

_CONFIG = ModelConfig(width=4, filter=8, heads=2, dropout=0.0)
_PASS = Context(causal_mask(1), deterministic=True)


@pytest.mark.parametrize('flat', [True, False])
def test_dense_takes_any_batch(flat):
  config = dataclasses.replace(_CONFIG, flatten_positions=flat)
  dense = Dense(config, 3, ('embed', 'mlp'), True)
  x = jnp.arange(24.0).reshape(2, 3, 4)
  variables = {
    'params': {'kernel': jnp.ones((4, 3)), 'bias': jnp.array([0.0, 1.0, 2.0])}
  }
  y = dense.apply(variables, x)
  # Row sums of 0..23 in fours are 6, 22, 38, ...
  sums = np.array([6, 22, 38, 54, 70, 86]).reshape(2, 3, 1)
  np.testing.assert_array_equal(y, sums + np.array([0, 1, 2]))


@pytest.mark.parametrize(
  ('initialization', 'limit'),
  # glorot: sqrt(6 / (300 + 500)); fan_in: 1 / sqrt(300) (Wang et al. 2018).
  [('glorot', math.sqrt(6 / 800)), ('fan_in', 1 / math.sqrt(300))],
)
def test_initial_kernels_fill_their_range(initialization, limit):
  config = dataclasses.replace(_CONFIG, initialization=initialization)
  dense = Dense(config, 500, ('embed', 'mlp'), True)
  params = dense.init(jax.random.key(0), jnp.ones((1, 300)))['params']
  kernel, bias = (np.asarray(params[n].value) for n in ('kernel', 'bias'))
  assert 0.99 * limit < np.abs(kernel).max() <= limit
  assert kernel.mean() == pytest.approx(0, abs=limit / 100)
  if initialization == 'fan_in':
    assert 0.95 * limit < np.abs(bias).max() <= limit
  else:
    assert not bias.any()


def test_norm_statistics_are_float32_in_bfloat16():
  config = dataclasses.replace(_CONFIG, norm='post', compute_dtype='bfloat16')
  residual = Residual(config)
  # In bfloat16 the mean of these would swallow the differences.
  x = jnp.array([[[1000.0, 1008.0, 1016.0, 1024.0]]], jnp.bfloat16)
  zero = jnp.zeros_like(x)
  variables = residual.init(
    jax.random.key(0), x, zero, _PASS, method=residual.after
  )
  y = residual.apply(variables, x, zero, _PASS, method=residual.after)
  # (-12, -4, 4, 12) / sqrt(80)
  expected = np.array([[[-12, -4, 4, 12]]]) / math.sqrt(80)
  np.testing.assert_allclose(y.astype(jnp.float32), expected, atol=0.01)
