import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax.core import meta
from tiers import extended_but
from tiny_shortcuts import (
  CAUSAL,
  LENGTH,
  attend,
  initial_parameters,
  memory_of,
  normal_states,
  shortcut_attention,
  shortcut_config,
)

from fusion_jax.config import ModelConfig
from fusion_jax.fusion.shortcuts import ShortcutAttention, gate
from fusion_jax.layers.attention import (
  padding_mask,
)
from fusion_jax.layers.caches import CacheCursor
from fusion_jax.layers.context import Context
from fusion_jax.layers.residual import Residual
from fusion_jax.testing import assert_close


class _Stack(nn.Module):
  """The self-attention sublayers of a stack, and nothing else."""

  config: ModelConfig

  @nn.compact
  def __call__(self, x, context):
    layers = (x,)
    for _ in range(self.config.decoder_layers):
      residual = Residual(self.config)
      x, (h, _) = layers[-1], residual.before(layers[-1], context)
      attention = ShortcutAttention(self.config, 'decoder')
      y = attention.attend(x, h, layers, context)
      x = attention.residual_input(x, h)
      layers = (*layers, residual.after(x, y, context))
    return layers


@pytest.mark.parametrize('feature_fusion', [True, False])
@pytest.mark.parametrize('bias', [True, False])
def test_names_and_shapes_of_parameters(feature_fusion, bias):
  module = shortcut_attention(
    feature_fusion=feature_fusion, attention_bias=bias
  )
  shapes = jax.tree.map(jnp.shape, initial_parameters(module, normal_states(1)))
  plain = {'kernel': (8, 8)} | ({'bias': (8,)} if bias else {})
  expected = {
    'query': plain,
    'out': plain,
    'key_gate_bias': (8,),
    'value_gate_bias': (8,),
  }
  for name in ('key', 'value'):
    if feature_fusion:
      expected[f'fused_{name}'] = {'kernel': (16, 16)}
    else:
      expected[name] = plain
      expected[f'shortcut_{name}'] = {'kernel': (8, 8)}
  assert shapes == expected


@pytest.mark.parametrize(
  ('source', 'depth', 'read'),
  [
    ('lexical', 1, {0}),
    ('lexical', 4, {0, 3}),
    ('non_lexical', 1, {0}),
    ('non_lexical', 2, {0, 1}),
    ('non_lexical', 3, {1, 2}),
    ('non_lexical', 4, {2, 3}),
  ],
)
def test_layers_that_are_read(source, depth, read):
  module, layers = shortcut_attention(source=source), normal_states(depth)
  params = initial_parameters(module, layers)
  slopes = jax.grad(
    lambda layers: attend(module, params, layers)[0, 0, 0],
  )(layers)
  assert {i for i, slope in enumerate(slopes) if slope.any()} == read


def test_three_layers_do_for_a_scan():
  module, layers = shortcut_attention(source='non_lexical'), normal_states(4)
  params = initial_parameters(module, layers)
  np.testing.assert_array_equal(
    attend(module, params, (layers[0], layers[2], layers[3])),
    attend(module, params, layers),
  )


@pytest.mark.parametrize('author_compat', [True, False])
def test_what_keys_values_and_residual_read(author_compat):
  module = shortcut_attention(norm='pre', author_compat=author_compat)
  embedding, x, h = normal_states(3)
  params = initial_parameters(module, (embedding, x))

  def expected(module):
    seen = module.memory(x if author_compat else h, embedding)
    return module(h, seen, CAUSAL, True)

  assert_close(
    attend(module, params, (embedding, x), h=h),
    module.apply({'params': params}, method=expected),
  )
  residual = module.bind({'params': params}).residual_input(x, h)
  assert residual is (h if author_compat else x)


@pytest.mark.parametrize(
  'options',
  extended_but(
    [
      {},
      {'norm': 'pre', 'feature_fusion': True, 'attention_bias': True},
      {'norm': 'pre', 'author_compat': True},
      {'norm': 'rezero', 'source': 'non_lexical'},
    ],
    lambda options: 'attention_bias' in options or 'source' in options,
  ),
)
def test_caches_give_what_the_full_pass_gives(options):
  stack, (x,) = _Stack(shortcut_config(**options)), normal_states(1)
  variables = meta.unbox(
    stack.init(jax.random.key(0), x, Context(CAUSAL, True))
  )

  @jax.jit
  def full(x):
    context = Context(CAUSAL, True)
    return stack.apply(variables, x, context)[-1], tuple(context.caches.seen)

  @jax.jit
  def step(one, caches, position):
    walk = CacheCursor(caches, position)
    mask = padding_mask(position[None] + 1, LENGTH)
    layers = stack.apply(variables, one, Context(mask, True, caches=walk))
    return layers[-1], tuple(walk.seen)

  expected, seen = full(x)
  assert len(seen) == 4
  caches = jax.tree.map(jnp.zeros_like, seen)
  for position in range(LENGTH):
    one = x[:, position : position + 1]
    y, caches = step(one, caches, jnp.int32(position))
    np.testing.assert_allclose(
      y[:, 0], expected[:, position], rtol=1e-4, atol=1e-5
    )
  jax.tree.map(
    lambda ours, theirs: np.testing.assert_allclose(
      ours, theirs, rtol=1e-4, atol=1e-5
    ),
    caches,
    seen,
  )


def test_memory_is_position_wise():
  module, (features, embedding) = shortcut_attention(), normal_states(2)
  params = initial_parameters(module, (features,))
  order = jnp.array([3, 0, 4, 1, 2])
  mixed = memory_of(module, params, features, embedding)
  moved = memory_of(module, params, features[:, order], embedding[:, order])
  assert_close(moved.keys, mixed.keys[..., order])
  assert_close(moved.values, mixed.values[:, :, order])


def test_telemetry_is_the_mean_over_tokens():
  module, layers = shortcut_attention(), normal_states(3)
  params = initial_parameters(module, layers)
  tokens = jnp.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], bool)
  context = Context(CAUSAL, True, tokens)

  def telemetry(layers, context=context):
    _, state = module.apply(
      {'params': params},
      layers[-1],
      layers[-1],
      layers,
      context,
      method='attend',
      mutable=['telemetry'],
    )
    return state['telemetry']

  seen = telemetry(layers)
  for name in ('key', 'value'):
    gates = gate(
      layers[0] @ params[f'shortcut_{name}']['kernel'],
      layers[2] @ params[name]['kernel'],
      params[f'{name}_gate_bias'],
    )
    assert seen[f'{name}_gate'].shape == ()
    np.testing.assert_allclose(
      seen[f'{name}_gate'], gates[tokens].mean(), rtol=1e-5
    )
  padded = tuple(layer.at[0, 3:].set(9.0) for layer in layers)
  np.testing.assert_allclose(
    telemetry(padded)['key_gate'], seen['key_gate'], rtol=1e-6
  )
