import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from extremes import assert_finite, extreme_layers
from flax import linen as nn
from flax.core import meta
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.test_util import check_grads

from fusion_jax.config import ModelConfig
from fusion_jax.fusion.shortcuts import ShortcutAttention, fuse, gate
from fusion_jax.fusion_options import ShortcutOptions, SideConfig
from fusion_jax.models.attention import (
  MultiHeadAttention,
  causal_mask,
  padding_mask,
)
from fusion_jax.models.context import CacheWalk, Context
from fusion_jax.models.layers import Residual

_T = 5
_CAUSAL = causal_mask(_T)


def _config(norm='post', attention_bias=False, dtype='float32', **shortcut):
  options = ShortcutOptions(**({'source': 'lexical'} | shortcut))
  return ModelConfig(
    width=8,
    filter=12,
    heads=2,
    decoder_layers=4,
    dropout=0.0,
    norm=norm,
    attention_bias=attention_bias,
    compute_dtype=dtype,
    # Biases that differ from 0.
    initialization='mlrf',
    decoder=SideConfig(shortcut=options),
  )


def _module(**options):
  return ShortcutAttention(_config(**options), 'decoder')


def _states(count, dtype=jnp.float32):
  keys = jax.random.split(jax.random.key(7), count)
  return tuple(jax.random.normal(key, (2, _T, 8)).astype(dtype) for key in keys)


def _attend(module, params, layers, mask=_CAUSAL, h=None):
  x, context = layers[-1], Context(mask, True)
  h = x if h is None else h
  variables = {'params': params}
  return module.apply(variables, x, h, layers, context, method='attend')


def _init(module, layers):
  x, context = layers[-1], Context(_CAUSAL, True)
  boxed = module.init(jax.random.key(3), x, x, layers, context, method='attend')
  return meta.unbox(boxed['params'])


def _memory(module, params, features, embedding):
  variables = {'params': params}
  return module.apply(variables, features, embedding, method='memory')


def _with_gates(params, bias):
  full = jnp.full((8,), bias)
  return params | {'key_gate_bias': full, 'value_gate_bias': full}


def _plain(params):
  return {name: params[name] for name in ('query', 'key', 'value', 'out')}


class _Stack(nn.Module):
  """The self-attention sublayers of a stack, and nothing else."""

  config: ModelConfig

  @nn.compact
  def __call__(self, x, context):
    layers = (x,)
    for _ in range(self.config.decoder_layers):
      residual = Residual(self.config)
      x, h = layers[-1], residual.before(layers[-1])
      attention = ShortcutAttention(self.config, 'decoder')
      y = attention.attend(x, h, layers, context)
      x = attention.residual_input(x, h)
      layers = (*layers, residual.after(x, y, True))
    return layers


def test_gates_by_hand():
  shortcut = jnp.array([[0.0, math.log(3), 1.0, 0.0]])
  hidden = jnp.array([[0.0, 0.0, -1.0, 2e4]])
  bias = jnp.array([0.0, 0.0, -math.log(3), -1e4])
  gates = gate(shortcut, hidden, bias)
  np.testing.assert_allclose(gates, [[0.5, 0.75, 0.25, 1.0]], rtol=1e-6)
  mixed = fuse(gates, jnp.full((1, 4), 10.0), jnp.full((1, 4), 2.0))
  np.testing.assert_allclose(mixed, [[6.0, 8.0, 4.0, 10.0]], rtol=1e-6)


@settings(max_examples=30)
@given(
  st.integers(0, 99),
  st.sampled_from([1e-6, 1.0, 1e3]),
  st.sampled_from(['float32', 'bfloat16']),
)
def test_mixtures_lie_between_their_parts(seed, scale, dtype):
  keys = jax.random.split(jax.random.key(seed), 3)
  shortcut, hidden = (
    (scale * jax.random.normal(key, (3, 8))).astype(dtype) for key in keys[:2]
  )
  gates = gate(shortcut, hidden, jax.random.normal(keys[2], (8,)))
  mixed = fuse(gates, shortcut, hidden)
  assert gates.dtype == jnp.float32
  assert mixed.dtype == jnp.dtype(dtype)
  assert ((gates >= 0) & (gates <= 1)).all()
  slack = 1e-6 * scale
  low, high = jnp.minimum(shortcut, hidden), jnp.maximum(shortcut, hidden)
  assert (mixed >= low - slack).all()
  assert (mixed <= high + slack).all()


def test_the_gradient_of_the_gates_by_finite_differences():
  shortcut, hidden, bias = jax.random.normal(jax.random.key(0), (3, 8))

  def mixed(*arguments):
    shortcut, hidden, bias = map(jnp.asarray, arguments)
    return fuse(gate(shortcut, hidden, bias), shortcut, hidden)

  check_grads(
    mixed,
    (shortcut, hidden, bias),
    order=1,
    eps=1e-2,
    atol=1e-3,
    rtol=1e-2,
  )


def test_gated_attention_against_numpy():
  config = dataclasses.replace(_config(), heads=1)
  module, (embedding, h) = ShortcutAttention(config, 'decoder'), _states(2)
  fresh = _init(module, (embedding, h))
  params = jax.tree.map(np.asarray, fresh)
  e, x = np.asarray(embedding), np.asarray(h)

  def gated(name):
    shortcut = e @ params[f'shortcut_{name}']['kernel']
    hidden = x @ params[name]['kernel']
    total = shortcut + hidden + params[f'{name}_gate_bias']
    r = 1 / (1 + np.exp(-total))
    return r * shortcut + (1 - r) * hidden

  logits = x @ params['query']['kernel'] @ gated('key').swapaxes(1, 2)
  logits = np.where(np.tri(_T), logits / math.sqrt(8), -np.inf)
  weights = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
  expected = weights @ gated('value') @ params['out']['kernel']
  y = _attend(module, fresh, (embedding, h))
  np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize('bias', [True, False])
def test_closed_gates_are_plain_attention(bias):
  module, layers = _module(attention_bias=bias), _states(3)
  plain = MultiHeadAttention(module.config)
  params = _with_gates(_init(module, layers), -1e4)
  np.testing.assert_array_equal(
    _attend(module, params, layers),
    _attend(plain, _plain(params), layers),
  )
  cross = _memory(module, params, layers[1], layers[0])
  expected = _memory(plain, _plain(params), layers[1], layers[0])
  np.testing.assert_array_equal(cross.keys, expected.keys)
  np.testing.assert_array_equal(cross.values, expected.values)


def test_open_gates_attend_to_the_embedding_only():
  module, layers = _module(), _states(3)
  plain = MultiHeadAttention(module.config)
  params = _with_gates(_init(module, layers), 1e4)
  as_plain = _plain(params) | {
    'key': params['shortcut_key'],
    'value': params['shortcut_value'],
  }
  cross = _memory(module, params, layers[1], layers[0])
  expected = _memory(plain, as_plain, layers[0], layers[0])
  np.testing.assert_array_equal(cross.keys, expected.keys)
  np.testing.assert_array_equal(cross.values, expected.values)

  def over_the_embedding(module):
    seen = module.keys_values(layers[0])
    return module(layers[2], seen, _CAUSAL, True)

  np.testing.assert_array_equal(
    _attend(module, params, layers),
    plain.apply({'params': as_plain}, method=over_the_embedding),
  )


def test_gates_do_not_matter_where_both_projections_are_one():
  module, (x,) = _module(), _states(1)
  params = _init(module, (x,))
  params |= {
    'shortcut_key': params['key'],
    'shortcut_value': params['value'],
  }
  expected = _attend(MultiHeadAttention(module.config), _plain(params), (x,))
  np.testing.assert_allclose(
    _attend(module, params, (x,)), expected, rtol=1e-5, atol=1e-6
  )


def test_block_diagonal_feature_fusion_is_a_plain_shortcut():
  module, layers = _module(), _states(3)
  fused = _module(feature_fusion=True)
  params = _init(module, layers)
  blocks = {
    name: params[name]
    for name in ('query', 'out', 'key_gate_bias', 'value_gate_bias')
  }
  for name in ('key', 'value'):
    kernel = jax.scipy.linalg.block_diag(
      params[f'shortcut_{name}']['kernel'], params[name]['kernel']
    )
    blocks[f'fused_{name}'] = {'kernel': kernel}
  shapes = jax.tree.map(jnp.shape, blocks)
  assert shapes == jax.tree.map(jnp.shape, _init(fused, layers))
  np.testing.assert_allclose(
    _attend(fused, blocks, layers),
    _attend(module, params, layers),
    rtol=1e-5,
    atol=1e-6,
  )


def test_feature_fusion_mixes_the_features():
  module, (embedding, h) = _module(feature_fusion=True), _states(2)
  params = _with_gates(_init(module, (h,)), -1e4)
  # With closed gates only the half of K_H is left, and it still reads E.
  ours = _memory(module, params, h, embedding)
  assert not np.allclose(ours.keys, _memory(module, params, h, h).keys)


@pytest.mark.parametrize('feature_fusion', [True, False])
@pytest.mark.parametrize('bias', [True, False])
def test_names_and_shapes_of_parameters(feature_fusion, bias):
  module = _module(feature_fusion=feature_fusion, attention_bias=bias)
  shapes = jax.tree.map(jnp.shape, _init(module, _states(1)))
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


def test_gate_biases_fill_their_range():
  config = dataclasses.replace(_config(), width=3_000)
  module = ShortcutAttention(config, 'decoder')

  def biases(module):
    return module.key_gate_bias, module.value_gate_bias

  (keys, values), _ = module.init_with_output(jax.random.key(0), method=biases)
  limit = math.sqrt(3 / 3_000)
  for bias in (keys, values):
    assert 0.99 * limit < np.abs(bias).max() <= limit
    assert np.mean(bias) == pytest.approx(0, abs=limit / 20)
  assert not np.array_equal(keys, values)


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
  module, layers = _module(source=source), _states(depth)
  params = _init(module, layers)
  slopes = jax.grad(
    lambda layers: _attend(module, params, layers)[0, 0, 0],
  )(layers)
  assert {i for i, slope in enumerate(slopes) if slope.any()} == read


def test_three_layers_do_for_a_scan():
  module, layers = _module(source='non_lexical'), _states(4)
  params = _init(module, layers)
  np.testing.assert_array_equal(
    _attend(module, params, (layers[0], layers[2], layers[3])),
    _attend(module, params, layers),
  )


@pytest.mark.parametrize('author_compat', [True, False])
def test_what_keys_values_and_residual_read(author_compat):
  module = _module(norm='pre', author_compat=author_compat)
  embedding, x, h = _states(3)
  params = _init(module, (embedding, x))

  def expected(module):
    seen = module.memory(x if author_compat else h, embedding)
    return module(h, seen, _CAUSAL, True)

  np.testing.assert_allclose(
    _attend(module, params, (embedding, x), h=h),
    module.apply({'params': params}, method=expected),
    atol=1e-6,
  )
  residual = module.bind({'params': params}).residual_input(x, h)
  assert residual is (h if author_compat else x)


@pytest.mark.parametrize(
  'options',
  [
    {},
    {'norm': 'pre', 'feature_fusion': True, 'attention_bias': True},
    {'norm': 'pre', 'author_compat': True},
    {'norm': 'rezero', 'source': 'non_lexical'},
  ],
)
def test_caches_give_what_the_full_pass_gives(options):
  stack, (x,) = _Stack(_config(**options)), _states(1)
  variables = meta.unbox(
    stack.init(jax.random.key(0), x, Context(_CAUSAL, True))
  )

  @jax.jit
  def full(x):
    context = Context(_CAUSAL, True)
    return stack.apply(variables, x, context)[-1], tuple(context.caches.seen)

  @jax.jit
  def step(one, caches, position):
    walk = CacheWalk(caches, position)
    mask = padding_mask(position[None] + 1, _T)
    layers = stack.apply(variables, one, Context(mask, True, caches=walk))
    return layers[-1], tuple(walk.seen)

  expected, seen = full(x)
  assert len(seen) == 4
  caches = jax.tree.map(jnp.zeros_like, seen)
  for position in range(_T):
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
  module, layers = _module(source='lexical'), _states(3)
  params = _init(module, layers)
  other = tuple(layer.at[:, 3:].add(5.0) for layer in layers)
  for mask in (causal_mask(_T), padding_mask(jnp.full((2,), 3), _T)):
    np.testing.assert_allclose(
      _attend(module, params, other, mask)[:, :3],
      _attend(module, params, layers, mask)[:, :3],
      atol=1e-6,
    )


def test_memory_is_position_wise():
  module, (features, embedding) = _module(), _states(2)
  params = _init(module, (features,))
  order = jnp.array([3, 0, 4, 1, 2])
  mixed = _memory(module, params, features, embedding)
  moved = _memory(module, params, features[:, order], embedding[:, order])
  np.testing.assert_allclose(moved.keys, mixed.keys[..., order], atol=1e-6)
  np.testing.assert_allclose(moved.values, mixed.values[:, :, order], atol=1e-6)


def test_telemetry_is_the_mean_over_tokens():
  module, layers = _module(), _states(3)
  params = _init(module, layers)
  tokens = jnp.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], bool)
  context = Context(_CAUSAL, True, tokens)

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
  module = _module(feature_fusion=feature_fusion)
  layers, weights = _states(2), jnp.arange(8.0)
  params = _init(module, layers)

  @jax.jit
  @jax.grad
  def slopes(arguments):
    params, layers = arguments
    memory = module.apply({'params': params}, *layers, method='memory')
    self_attention = (_attend(module, params, layers) * weights).sum()
    return self_attention + (memory.keys**2).sum() + memory.values.sum()

  for path, slope in jax.tree.leaves_with_path(slopes((params, layers))):
    assert np.isfinite(slope).all(), path
    assert np.abs(slope).max() > 1e-6, path


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
@pytest.mark.parametrize('feature_fusion', [True, False])
def test_finite_output_and_gradient_for_extreme_inputs(dtype, feature_fusion):
  module = _module(dtype=dtype, feature_fusion=feature_fusion)
  layers = _states(3, jnp.dtype(dtype))
  params = _init(module, layers)

  @jax.jit
  def run(params, layers):
    def loss(params, layers):
      y = _attend(module, params, layers)
      return y.astype(jnp.float32).sum(), y

    return jax.value_and_grad(loss, (0, 1), has_aux=True)(params, layers)

  for case in extreme_layers(layers).values():
    (_, y), slopes = run(params, case)
    assert y.dtype == jnp.dtype(dtype)
    assert y.shape == (2, _T, 8)
    assert_finite((y, slopes))


def test_bfloat16_is_near_float32():
  layers, module = _states(3), _module()
  params = _init(module, layers)
  y = _attend(
    _module(dtype='bfloat16'),
    params,
    tuple(layer.astype(jnp.bfloat16) for layer in layers),
  )
  expected = _attend(module, params, layers)
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
  side = SideConfig(shortcut=options)
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
