import jax
import jax.numpy as jnp
import numpy as np
import pytest
from extremes import assert_finite, extreme_layers
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
from fusion_jax.config.fusion import SideConfig
from fusion_jax.fusion.shortcuts import ShortcutAttention, ShortcutOptions, gate
from fusion_jax.layers.attention import (
  MultiHeadAttention,
  causal_mask,
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


def test_no_later_position_and_no_padding_is_seen():
  module, layers = shortcut_attention(source='lexical'), normal_states(3)
  params = initial_parameters(module, layers)
  other = tuple(layer.at[:, 3:].add(5.0) for layer in layers)
  for mask in (causal_mask(LENGTH), padding_mask(jnp.full((2,), 3), LENGTH)):
    assert_close(
      attend(module, params, other, mask)[:, :3],
      attend(module, params, layers, mask)[:, :3],
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


@pytest.mark.parametrize('feature_fusion', [True, False])
def test_every_input_and_parameter_has_a_gradient(feature_fusion):
  module = shortcut_attention(feature_fusion=feature_fusion)
  layers, weights = normal_states(2), jnp.arange(8.0)
  params = initial_parameters(module, layers)

  @jax.jit
  @jax.grad
  def slopes(arguments):
    params, layers = arguments
    memory = module.apply({'params': params}, *layers, method='memory')
    self_attention = (attend(module, params, layers) * weights).sum()
    return self_attention + (memory.keys**2).sum() + memory.values.sum()

  for path, slope in jax.tree.leaves_with_path(slopes((params, layers))):
    assert np.isfinite(slope).all(), path
    assert np.abs(slope).max() > 1e-6, path


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
@pytest.mark.parametrize('feature_fusion', [True, False])
def test_finite_output_and_gradient_for_extreme_inputs(dtype, feature_fusion):
  module = shortcut_attention(dtype=dtype, feature_fusion=feature_fusion)
  layers = normal_states(3, jnp.dtype(dtype))
  params = initial_parameters(module, layers)

  @jax.jit
  def run(params, layers):
    def loss(params, layers):
      y = attend(module, params, layers)
      return y.astype(jnp.float32).sum(), y

    return jax.value_and_grad(loss, (0, 1), has_aux=True)(params, layers)

  for case in extreme_layers(layers).values():
    (_, y), slopes = run(params, case)
    assert y.dtype == jnp.dtype(dtype)
    assert y.shape == (2, LENGTH, 8)
    assert_finite((y, slopes))


def test_bfloat16_is_near_float32():
  layers, module = normal_states(3), shortcut_attention()
  params = initial_parameters(module, layers)
  y = attend(
    shortcut_attention(dtype='bfloat16'),
    params,
    tuple(layer.astype(jnp.bfloat16) for layer in layers),
  )
  expected = attend(module, params, layers)
  np.testing.assert_allclose(y.astype(jnp.float32), expected, atol=0.03)


# Emelin et al. (2019), Tables 1 and 2: 65,166K becomes 71,470K and 84,053K;
# Big becomes 293,935K with feature fusion from 218,413K. Attention without
# biases, six layers a side.
@pytest.mark.parametrize(
  ('width', 'feature_fusion', 'count'),
  [
    (512, False, 6_303_744),
    (512, True, 18_886_656),
    (1024, True, 75_522_048),
  ],
)
def test_size(width, feature_fusion, count):
  options = ShortcutOptions('lexical', feature_fusion=feature_fusion)
  side = SideConfig(attention='shortcut', attention_options=options)
  config = ModelConfig(
    width=width, attention_bias=False, encoder=side, decoder=side
  )
  x = jax.ShapeDtypeStruct((1, 2, width), jnp.float32)
  context = Context(causal_mask(2), True)

  def size(module):
    def init(x):
      arguments = (x, x, (x,), context)
      made = module.init(jax.random.key(0), *arguments, method='attend')
      return made['params']

    return sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(init, x)))

  plain = size(MultiHeadAttention(config))
  sides = [size(ShortcutAttention(config, s)) for s in ('encoder', 'decoder')]
  assert 6 * sum(sides) - 12 * plain == count
