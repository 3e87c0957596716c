import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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


def test_weights_by_hand():
  # Head width 4, so logits are q.k / 2: keys give 0, ln 3 and a masked 100.
  query = jnp.array([2.0, 0, 0, 0]).reshape(1, 1, 1, 4)
  keys = jnp.array([0.0, np.log(3.0), 100.0]) * jnp.eye(4, 1)
  keys = keys.reshape(1, 1, 4, 3)
  weights = attention_weights(query, keys, padding_mask(jnp.array([2]), 3))
  assert_close(weights.reshape(3), np.array([0.25, 0.75, 0.0]))


def test_a_row_without_keys_is_finite_and_so_is_its_gradient():
  query, keys = jnp.ones((1, 1, 1, 2)), jnp.ones((1, 1, 2, 3))
  mask = padding_mask(jnp.array([0]), 3)
  weights, pull = jax.vjp(lambda q: attention_weights(q, keys, mask), query)
  assert_close(weights.reshape(3), np.full(3, 1 / 3))
  assert np.isfinite(pull(jnp.ones_like(weights))[0]).all()


@settings(max_examples=8)
@given(
  st.integers(1, 4), st.integers(1, 5), st.integers(1, 5), st.integers(0, 99)
)
def test_weights_are_a_distribution_over_the_kept_keys(heads, t, s, seed):
  q, k, m = jax.random.split(jax.random.key(seed), 3)
  query = 10 * jax.random.normal(q, (2, heads, t, 4))
  keys = 10 * jax.random.normal(k, (2, heads, 4, s))
  mask = jax.random.bernoulli(m, 0.5, (2, 1, t, s)).at[..., 0].set(True)
  weights = attention_weights(query, keys, mask)
  np.testing.assert_allclose(weights.sum(-1), 1.0, rtol=1e-5)
  assert not np.asarray(weights)[
    np.broadcast_to(~np.asarray(mask), weights.shape)
  ].any()


def _packed_mask(rows: int, queries: int, keys: int, seed: int):
  rng = np.random.default_rng(seed)
  segments = [
    np.sort(rng.integers(0, 3, (rows, n)), axis=1) for n in (queries, keys)
  ]
  return jnp.array(segments[0][:, None, :, None] == segments[1][:, None, None])


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
def test_module_against_a_loop_over_heads(bias):
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

  params = jax.tree.map(
    np.asarray,
    jax.tree.map(
      lambda box: box.value,
      variables['params'],
      is_leaf=lambda box: hasattr(box, 'value'),
    ),
  )

  def project(name, v):
    p = params[name]
    return np.asarray(v) @ p['kernel'] + p.get('bias', 0)

  query, key, value = (
    project(n, v) for n, v in (('query', x), ('key', source), ('value', source))
  )
  heads = []
  for h in range(3):
    part = slice(2 * h, 2 * h + 2)
    logits = query[..., part] @ key[..., part].swapaxes(1, 2) / np.sqrt(2)
    logits = np.where(np.asarray(mask)[:, 0], logits, -np.inf)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    heads.append(weights @ value[..., part])
  expected = project('out', np.concatenate(heads, -1))
  assert_close(y, expected)
