import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy_parts import multi_head_attention

from fusion_jax.config import ModelConfig
from fusion_jax.layers.attention import (
  MultiHeadAttention,
  attention_weights,
  causal_mask,
  kernel_attention,
  padding_mask,
)
from fusion_jax.layers.context import KeyValue, append
from fusion_jax.testing import assert_close


def test_masks_written_out():
  np.testing.assert_array_equal(
    causal_mask(3)[0, 0], [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
  )
  np.testing.assert_array_equal(
    padding_mask(jnp.array([2, 0]), 3)[:, 0, 0], [[1, 1, 0], [0, 0, 0]]
  )


def test_a_row_without_keys_is_finite_and_so_is_its_gradient():
  query, keys = jnp.ones((1, 1, 1, 2)), jnp.ones((1, 1, 2, 3))
  mask = padding_mask(jnp.array([0]), 3)
  weights, pull = jax.vjp(lambda q: attention_weights(q, keys, mask), query)
  assert_close(weights.reshape(3), np.full(3, 1 / 3))
  assert np.isfinite(pull(jnp.ones_like(weights))[0]).all()


def _packed_mask(rows: int, queries: int, keys: int, seed: int):
  rng = np.random.default_rng(seed)
  segments = [
    np.sort(rng.integers(0, 3, (rows, n)), axis=1) for n in (queries, keys)
  ]
  return jnp.array(segments[0][:, None, :, None] == segments[1][:, None, None])


@pytest.mark.extended
@settings(max_examples=8)
@given(
  st.sampled_from(['padding', 'causal', 'packed']),
  st.integers(1, 3),
  st.integers(1, 6),
  st.integers(0, 99),
)
def test_the_kernel_has_the_values_and_gradients_of_the_weights(
  kind, heads, size, seed
):
  q, k, v, g = jax.random.split(jax.random.key(seed), 4)
  query = 3 * jax.random.normal(q, (2, heads, size, 4))
  source = KeyValue(
    3 * jax.random.normal(k, (2, heads, 4, size)),
    jax.random.normal(v, (2, heads, size, 4)),
  )
  mask = {
    'padding': padding_mask(jnp.array([size, 1]), size),
    'causal': causal_mask(size),
    'packed': _packed_mask(2, size, size, seed),
  }[kind]

  def plain(query, source):
    weights = attention_weights(query, source.keys, mask)
    return jnp.einsum('BNTS,BNSH->BNTH', weights, source.values)

  def kernel(query, source):
    return kernel_attention(query, source, mask, 'xla')

  expected, pull = jax.vjp(plain, query, source)
  found, pull_kernel = jax.vjp(kernel, query, source)
  assert_close(found, expected)
  gradient = jax.random.normal(g, found.shape)
  jax.tree.map(
    lambda a, b: assert_close(a, b, 256), pull_kernel(gradient), pull(gradient)
  )


def test_append_replaces_one_position():
  cache = KeyValue(jnp.zeros((1, 1, 2, 3)), jnp.ones((1, 1, 3, 2)))
  one = KeyValue(jnp.full((1, 1, 2, 1), 5.0), jnp.full((1, 1, 1, 2), 7.0))
  after = append(cache, one, jnp.int32(1))
  np.testing.assert_array_equal(after.keys[0, 0, 0], [0, 5, 0])
  np.testing.assert_array_equal(after.values[0, 0, :, 0], [1, 7, 1])


@pytest.mark.parametrize('bias', [True, False])
def test_module_against_loops(bias):
  config = ModelConfig(
    width=6, filter=4, heads=3, attention_bias=bias, initialization='fan_in'
  )
  module = MultiHeadAttention(config)
  x = jax.random.normal(jax.random.key(0), (2, 4, 6))
  source = jax.random.normal(jax.random.key(1), (2, 5, 6))
  mask = padding_mask(jnp.array([5, 3]), 5)

  def forward(module, x, source):
    return module(x, module.keys_values(source), mask, True)

  variables = module.init(jax.random.key(2), x, source, method=forward)
  y = module.apply(variables, x, source, method=forward)

  params = jax.tree.map(np.float64, nn.unbox(variables['params']))
  x, source = np.float64(x), np.float64(source)
  assert_close(y, multi_head_attention(params, x, source, np.asarray(mask), 3))
