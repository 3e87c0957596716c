import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from hypothesis import given, settings
from hypothesis import strategies as st

from fusion_jax.config import PRESETS, ModelConfig
from fusion_jax.fusion.tree import (
  AggNode,
  Hierarchical,
  Iterative,
  add_residual,
  exploitation_scores,
  tree_groups,
)
from fusion_jax.fusion_options import AggOptions, SideConfig
from fusion_jax.models.attention import causal_mask, padding_mask
from fusion_jax.models.context import CacheWalk, Context, KeyValue

_WIDTH, _LENGTH, _HEADS = 8, 4, 2


def _context(mask=None, deterministic=True, caches=None):
  mask = causal_mask(_LENGTH) if mask is None else mask
  return Context(mask, deterministic, caches=caches or CacheWalk())


def _config(layers=3, norm='post', agg=None, **changes):
  side = SideConfig(agg=AggOptions(**(agg or {})))
  return ModelConfig(
    width=_WIDTH,
    filter=12,
    heads=_HEADS,
    encoder_layers=layers,
    norm=norm,
    encoder=side,
    **changes,
  )


def _x(seed=0, scale=1.0, dtype=jnp.float32):
  x = np.random.default_rng(seed).normal(size=(2, _LENGTH, _WIDTH))
  return jnp.asarray(scale * x, dtype)


def _states(count, seed=0, scale=1.0, dtype=jnp.float32):
  return tuple(_x(seed + n, scale, dtype) for n in range(count))


def _ln(x, scale=1.0, bias=0.0):
  x = np.asarray(x, np.float64)
  variance = x.var(-1, keepdims=True)
  return (x - x.mean(-1, keepdims=True)) / np.sqrt(
    variance + 1e-6
  ) * scale + bias


def _close(a, b, tolerance=1e-5):
  np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def _node(module, inputs, context):
  return module(inputs, 0, context)


def _read_out(module, layers, context):
  return module(layers, context)


def _layer(number, x):
  """Stands for layer `number` of a stack."""
  return jnp.tanh(x) * number + 0.3 * jnp.roll(x, number, axis=-1)


def _stack(module, layers, context):
  """H[0..L] and the output, from H[0], as a stack runs a connection."""
  carried = ()
  for number in range(1, module.config.encoder_layers + 1):
    h, carried = module.layer_input(layers, carried, context)
    y = module.layer_output(layers, _layer(number, h))
    layers = (*layers, y)
  return layers, module.layer_input(layers, carried, context)[0]


_METHODS = {AggNode: _node, Iterative: _read_out, Hierarchical: _stack}


def _init(module):
  method = _METHODS[type(module)]
  return lambda *inputs: nn.unbox(
    module.init(jax.random.key(0), inputs, _context(), method=method)
  ).get('params', {})


def _initial(module, inputs):
  return jax.jit(_init(module))(*inputs)


def _generic(module, inputs):
  """Parameters at a generic point."""
  rng = np.random.default_rng(9)

  def draw(path, leaf):
    mean = float(path[-1].key == 'scale')
    return jnp.asarray(rng.normal(mean, 0.3, leaf.shape), jnp.float32)

  shapes = jax.eval_shape(_init(module), *inputs)
  return jax.tree_util.tree_map_with_path(draw, shapes)


def _apply(module, params, inputs, mask=None):
  """Without dropout, compiled; and what was recorded."""
  method = _METHODS[type(module)]

  @jax.jit
  def apply(params, inputs):
    return module.apply(
      {'params': params},
      inputs,
      _context(mask),
      method=method,
      mutable=['telemetry'],
    )

  return apply(params, inputs)


def _agg(agg=None, **changes):
  return AggNode(_config(agg=agg, **changes), 'encoder')


def _silenced(params):
  """W2 = 0, b2 = 0."""
  return {**params, 'out': jax.tree.map(jnp.zeros_like, params['out'])}


# Scores, residuals and groups.


def test_exploitation_scores_by_hand():
  # Three inputs of width 2: |W1| sums to 2 + 1 | 1 + 0 | 3 + 3.
  kernel = jnp.array([[1, -1], [0.5, 0.5], [-1, 0], [0, 0], [3, 0], [1, -2]])
  _close(exploitation_scores(kernel, 3), [0.3, 0.1, 0.6])
  np.testing.assert_array_equal(
    exploitation_scores(jnp.zeros((4, 3)), 2), [0, 0]
  )


@settings(max_examples=10)
@given(st.integers(1, 5), st.floats(1e-3, 1e3), st.integers(0, 99))
def test_exploitation_scores_are_shares(inputs, scale, seed):
  kernel = np.random.default_rng(seed).normal(size=(inputs * 4, 3))
  scores = exploitation_scores(jnp.float32(kernel), inputs)
  assert scores.shape == (inputs,)
  assert (np.asarray(scores) > 0).all()
  assert float(scores.sum()) == pytest.approx(1, rel=1e-5)
  _close(exploitation_scores(jnp.float32(-scale * kernel), inputs), scores)
  blocks = kernel.reshape(inputs, 4, 3)[::-1].reshape(-1, 3)
  _close(exploitation_scores(jnp.float32(blocks), inputs), scores[::-1])


def test_residuals_by_hand():
  y, *inputs = (jnp.full((1, 1, 2), n) for n in (1000.0, 1.0, 10.0, 100.0))
  inputs = tuple(inputs)
  for residual, total in (('all', 1111), ('top', 1010), ('none', 1000)):
    added = add_residual(y, inputs, 1, residual)
    np.testing.assert_array_equal(added, jnp.full((1, 1, 2), total))


@pytest.mark.parametrize(
  ('layers', 'size', 'groups'),
  [
    (6, 2, {1: [1, 2], 2: [3, 4], 3: [5, 6]}),
    (5, 2, {1: [1, 2], 2: [3, 4], 3: [5]}),
    (5, 3, {1: [1, 2, 3], 2: [4, 5]}),
    (2, 3, {1: [1, 2]}),
    (3, 1, {2: [2], 3: [3]}),
    (1, 1, {}),
    (1, 2, {}),
  ],
)
def test_groups_written_out(layers, size, groups):
  found = tree_groups(layers, size)
  assert {n: list(group) for n, group in found.items()} == groups


@given(st.integers(1, 40), st.integers(2, 10))
def test_groups_cover_every_layer_once(layers, size):
  groups = tree_groups(layers, size)
  assert list(groups) == list(range(1, -(-layers // size) + (layers > 1)))
  if layers > 1:
    covered = [n for group in groups.values() for n in group]
    assert covered == list(range(1, layers + 1))
    assert all(len(group) == size for group in list(groups.values())[:-1])


# The node.


@pytest.mark.parametrize(
  ('activation', 'residual', 'hidden'),
  [('sigmoid', 'all', 0), ('relu', 'top', 5), ('sigmoid', 'none', 0)],
)
def test_node_against_its_formula(activation, residual, hidden):
  agg = {'activation': activation, 'residual': residual, 'hidden': hidden}
  node, inputs = _agg(agg), _states(3)
  params = _generic(node, inputs)
  width = hidden or 12
  assert params['hidden']['kernel'].shape == (3 * _WIDTH, width)
  assert params['out']['kernel'].shape == (width, _WIDTH)
  z = np.concatenate(inputs, -1)
  h = z @ params['hidden']['kernel'] + params['hidden']['bias']
  h = 1 / (1 + np.exp(-h)) if activation == 'sigmoid' else np.maximum(h, 0)
  y = h @ params['out']['kernel'] + params['out']['bias']
  y = y + {'all': sum(inputs), 'top': inputs[0], 'none': 0}[residual]
  output, recorded = _apply(node, params, inputs)
  _close(output, _ln(y, **params['norm']), 1e-4)
  _close(
    recorded['telemetry']['exploitation'],
    exploitation_scores(params['hidden']['kernel'], 3),
  )


@pytest.mark.parametrize('activation', ['sigmoid', 'relu', 'attention'])
@pytest.mark.parametrize('initialization', ['glorot', 'mlrf'])
def test_a_silent_node_is_the_norm_of_its_residuals(activation, initialization):
  agg = {'activation': activation, 'zero_out': True}
  node = _agg(agg, initialization=initialization)
  inputs = _states(3)
  params = _initial(node, inputs)
  assert not any(np.asarray(leaf).any() for leaf in params['out'].values())
  output, _ = _apply(node, params, inputs)
  _close(output, _ln(sum(inputs)))


@pytest.mark.parametrize('activation', ['sigmoid', 'attention'])
def test_a_silent_node_is_symmetric_and_trains(activation):
  node, inputs = _agg({'activation': activation}), _states(3)
  params = _silenced(_initial(node, inputs))
  output, _ = _apply(node, params, inputs)
  _close(_apply(node, params, inputs[::-1])[0], output)

  def loss(params):
    out = node.apply({'params': params}, inputs, 0, _context())
    return (out * _x(7)).sum()

  gradient = jax.jit(jax.grad(loss))(params)
  assert np.asarray(gradient['out']['kernel']).any()


@pytest.mark.parametrize('residual', ['all', 'none'])
@pytest.mark.parametrize('activation', ['sigmoid', 'attention'])
def test_inputs_swap_with_the_blocks_of_the_kernel(activation, residual):
  node = _agg({'activation': activation, 'residual': residual})
  inputs = _states(3)
  params = _generic(node, inputs)
  order = (2, 0, 1)
  swapped = jax.tree.map(lambda leaf: leaf, params)
  for name in ('hidden', 'query', 'key', 'value'):
    if name in params:
      blocks = params[name]['kernel'].reshape(3, _WIDTH, -1)
      kernel = blocks[np.array(order)].reshape(3 * _WIDTH, -1)
      swapped[name]['kernel'] = kernel
  moved = tuple(inputs[n] for n in order)
  _close(_apply(node, swapped, moved)[0], _apply(node, params, inputs)[0], 1e-4)


@pytest.mark.parametrize('residual', ['all', 'top', 'none'])
def test_a_fresh_node_is_standardised(residual):
  node, inputs = _agg({'residual': residual}), _states(2, scale=100.0)
  output, _ = _apply(node, _initial(node, inputs), inputs)
  _close(output.mean(-1), np.zeros((2, _LENGTH)), 1e-5)
  _close(output.var(-1), np.ones((2, _LENGTH)), 1e-3)


@pytest.mark.parametrize('bias', [True, False])
def test_attention_node_against_a_loop_over_heads(bias):
  node = _agg({'activation': 'attention'}, attention_bias=bias)
  inputs = _states(2)
  params = _generic(node, inputs)
  assert ('bias' in params['query']) == bias
  z = np.concatenate(inputs, -1)

  def project(name, x):
    return x @ params[name]['kernel'] + params[name].get('bias', 0)

  query, key, value = (project(name, z) for name in ('query', 'key', 'value'))
  mask, heads, size = np.asarray(causal_mask(_LENGTH))[0, 0], [], _WIDTH // 2
  for head in range(_HEADS):
    part = slice(head * size, (head + 1) * size)
    logits = query[..., part] @ key[..., part].swapaxes(1, 2) / np.sqrt(size)
    weights = np.exp(np.where(mask, logits, -np.inf))
    weights /= weights.sum(-1, keepdims=True)
    heads.append(weights @ value[..., part])
  y = project('out', np.concatenate(heads, -1)) + sum(inputs)
  output, recorded = _apply(node, params, inputs)
  _close(output, _ln(y, **params['norm']), 1e-4)
  readers = [params[name]['kernel'] for name in ('query', 'key', 'value')]
  _close(
    recorded['telemetry']['exploitation'],
    exploitation_scores(jnp.concatenate(readers, 1), 2),
  )


def test_attention_node_sees_neither_the_future_nor_padding():
  node, inputs = _agg({'activation': 'attention'}), _states(2)
  params = _generic(node, inputs)
  changed = tuple(x.at[:, 2:].set(9.0) for x in inputs)
  _close(
    _apply(node, params, changed)[0][:, :2],
    _apply(node, params, inputs)[0][:, :2],
  )
  mask = padding_mask(jnp.array([2, 2]), _LENGTH)
  _close(
    _apply(node, params, changed, mask)[0][:, :2],
    _apply(node, params, inputs, mask)[0][:, :2],
  )
  assert not np.allclose(
    _apply(node, params, changed)[0][:, 3],
    _apply(node, params, inputs)[0][:, 3],
  )


@pytest.mark.parametrize('module', [AggNode, Iterative, Hierarchical])
def test_one_position_at_a_time_equals_all_at_once(module):
  agg = {'activation': 'attention', 'residual': 'top'}
  module = module(_config(3, agg=agg), 'encoder')
  inputs = _states(1 if isinstance(module, Hierarchical) else 4)
  params = _generic(module, inputs)
  everything = jax.tree.leaves(_apply(module, params, inputs)[0])[-1]
  empty = jnp.zeros((2, _HEADS, _LENGTH, _WIDTH // _HEADS))
  caches = (KeyValue(empty.swapaxes(2, 3), empty),) * (
    1 if isinstance(module, AggNode) else 2
  )

  @jax.jit
  def step(position, caches, inputs):
    walk = CacheWalk(caches, position)
    output = module.apply(
      {'params': params},
      inputs,
      _context(padding_mask(position[None] + 1, _LENGTH), caches=walk),
      method=_METHODS[type(module)],
    )
    return jax.tree.leaves(output)[-1], tuple(walk.seen)

  for position in range(_LENGTH):
    newest = tuple(x[:, position : position + 1] for x in inputs)
    output, caches = step(jnp.int32(position), caches, newest)
    _close(output[:, 0], everything[:, position], 1e-4)


def test_dropout_is_on_the_network_alone():
  node, inputs = _agg(dropout=0.5), _states(2)
  params = _initial(node, inputs)
  # Without W2 the network is b2 = 0.25 everywhere: 0 or 0.5 after dropout.
  params['out'] = {
    'kernel': jnp.zeros((12, _WIDTH)),
    'bias': jnp.full(_WIDTH, 0.25),
  }
  flat = (jnp.ones((2, _LENGTH, _WIDTH)),) * 2
  output = node.apply(
    {'params': params},
    flat,
    0,
    _context(deterministic=False),
    rngs={'dropout': jax.random.key(0)},
  )
  # The norm leaves two values a position: what was kept and what was not.
  kept = np.asarray(output) > 0
  assert 0 < kept.sum() < kept.size
  _close(output, _ln(2 + 0.5 * kept), 1e-3)
  _close(_apply(node, params, flat)[0], np.zeros_like(output))


# Iterative aggregation.


def test_iterative_of_one_layer_is_the_layer():
  tree, layers = Iterative(_config(1), 'encoder'), _states(2)
  assert not _initial(tree, layers)
  output, _ = _apply(tree, {}, layers)
  np.testing.assert_array_equal(output, layers[1])


@pytest.mark.parametrize(
  ('layers', 'norm'), [(2, 'post'), (3, 'rezero'), (6, 'post')]
)
def test_iterative_is_a_chain_of_nodes(layers, norm):
  config = _config(layers, norm, {'residual': 'top'})
  tree, states = Iterative(config, 'encoder'), _states(layers + 1)
  params = _generic(tree, states)
  assert sorted(params) == [f'node_{n}' for n in range(2, layers + 1)]
  node, chain = AggNode(config, 'encoder'), states[1]
  apply = jax.jit(lambda *a: node.apply(*a, 0, _context()))
  for number in range(2, layers + 1):
    own = {'params': params[f'node_{number}']}
    chain = apply(own, (states[number], chain))
  output, recorded = _apply(tree, params, states)
  _close(output, chain, 1e-4)
  scores = recorded['telemetry']['node_2']['exploitation']
  assert scores.shape == (2,)
  # H[0] is not read.
  other, _ = _apply(tree, params, (states[1], *states[1:]))
  np.testing.assert_array_equal(other, output)


# Hierarchical aggregation.


def _hierarchical(layers, norm='post', **agg):
  return Hierarchical(_config(layers, norm, agg), 'encoder')


@pytest.mark.parametrize('norm', ['post', 'pre'])
@pytest.mark.parametrize('feedback', [True, False])
@pytest.mark.parametrize('size', [1, 2])
def test_hierarchical_of_one_layer_is_the_layer(norm, feedback, size):
  tree = _hierarchical(1, norm, feedback=feedback, group_size=size)
  assert not _initial(tree, _states(1))
  (layers, output), _ = _apply(tree, {}, _states(1))
  np.testing.assert_array_equal(output, layers[1])


@pytest.mark.parametrize(
  ('layers', 'size', 'residual', 'feedback', 'norm'),
  [
    (5, 2, 'top', True, 'post'),
    (5, 2, 'all', True, 'pre'),
    (4, 3, 'top', False, 'pre'),
    (3, 5, 'all', True, 'rezero'),
    (3, 1, 'top', True, 'pre'),
    (3, 1, 'all', False, 'pre'),
  ],
)
def test_hierarchical_node_by_node(layers, size, residual, feedback, norm):
  tree = _hierarchical(
    layers, norm, group_size=size, residual=residual, feedback=feedback
  )
  params = _generic(tree, _states(1))
  nodes = [f'node_{n}' for n in tree_groups(layers, size)]
  norms = [f'input_norm_{n}' for n in range(1, layers + 1)]
  assert sorted(params) == sorted(nodes + (norms if norm == 'pre' else []))
  agg = AggNode(tree.config, 'encoder')

  def read(number):
    if norm != 'pre':
      return states[number]
    return jnp.float32(_ln(states[number], **params[f'input_norm_{number}']))

  states, x, below = list(_states(1)), _x(), ()
  groups = tree_groups(layers, size)
  for number in range(1, layers + 1):
    x = _layer(number, x)
    states.append(x)
    for name, group in groups.items():
      if group[-1] == number:
        inputs = tuple(read(n) for n in group)
        below = below or ((read(1),) if group[0] == 2 else ())
        made, _ = agg.apply(
          {'params': params[f'node_{name}']},
          (*inputs, *below),
          len(group) - 1,
          _context(),
          mutable=['telemetry'],
        )
        below = (made,)
        x = made if feedback else x
  (found, output), _ = _apply(tree, params, _states(1))
  for a, b in zip(found, states, strict=True):
    _close(a, b, 1e-4)
  _close(output, below[0], 1e-4)


def test_two_layers_are_the_iterative_tree_with_its_arguments_swapped():
  config = _config(2)
  tree, chain = Hierarchical(config, 'encoder'), Iterative(config, 'encoder')
  params = _generic(tree, _states(1))
  (layers, output), _ = _apply(tree, params, _states(1))
  node = jax.tree.map(lambda leaf: leaf, params['node_1'])
  node['hidden']['kernel'] = np.roll(node['hidden']['kernel'], _WIDTH, axis=0)
  _close(output, _apply(chain, {'node_2': node}, layers)[0], 1e-4)


@pytest.mark.parametrize('norm', ['post', 'rezero'])
def test_groups_of_one_without_feedback_are_the_iterative_tree(norm):
  tree = _hierarchical(4, norm, group_size=1, feedback=False)
  params = _generic(tree, _states(1))
  (layers, output), _ = _apply(tree, params, _states(1))
  chain = Iterative(tree.config, 'encoder')
  _close(output, _apply(chain, params, layers)[0], 1e-5)


@pytest.mark.parametrize('feedback', [True, False])
def test_a_node_changes_the_layers_above_only_by_feedback(feedback):
  tree = _hierarchical(4, feedback=feedback)
  params = _generic(tree, _states(1))
  (layers, output), _ = _apply(tree, params, _states(1))
  params['node_1']['hidden']['kernel'] += 0.5
  (changed, other), _ = _apply(tree, params, _states(1))
  same = [bool((a == b).all()) for a, b in zip(layers, changed, strict=True)]
  assert same == [True] * 3 + [not feedback] * 2
  assert not np.allclose(output, other)


def test_without_feedback_one_call_is_enough():
  tree = _hierarchical(5, 'pre', feedback=False)
  params = _generic(tree, _states(1))
  (layers, output), _ = _apply(tree, params, _states(1))
  read, carried = tree.apply(
    {'params': params}, layers, (), _context(), method='layer_input'
  )
  _close(read, output, 1e-4)
  assert len(carried) == 1


# All of them.


def _modules(norm='post', **changes):
  config = _config(3, norm, **changes)
  return {
    kind: kind(config, 'encoder') for kind in (AggNode, Iterative, Hierarchical)
  }


def _inputs(module, **kind):
  return _states(1 if isinstance(module, Hierarchical) else 4, **kind)


def _last(output):
  return jax.tree.leaves(output)[-1]


@pytest.mark.parametrize('kind', [AggNode, Iterative])
def test_positions_are_independent(kind):
  module = _modules()[kind]
  inputs = _inputs(module)
  params = _generic(module, inputs)
  order = np.array([2, 0, 3, 1])
  moved = tuple(x[:, order] for x in inputs)
  output = _apply(module, params, inputs)[0]
  _close(_apply(module, params, moved)[0], output[:, order])
  rows = [
    _apply(module, params, tuple(x[n : n + 1] for x in inputs))[0]
    for n in (0, 1)
  ]
  _close(np.concatenate(rows), output)


@pytest.mark.parametrize(
  ('kind', 'norm', 'activation'),
  [
    (Iterative, 'post', 'sigmoid'),
    (Hierarchical, 'post', 'attention'),
    (Hierarchical, 'pre', 'relu'),
    (Hierarchical, 'rezero', 'sigmoid'),
  ],
)
def test_gradients_reach_every_parameter_and_layer(kind, norm, activation):
  module = _modules(norm, agg={'activation': activation})[kind]
  inputs = _inputs(module)
  params = _generic(module, inputs)

  @jax.jit
  def gradient(params, inputs):
    def loss(params, inputs):
      output = module.apply(
        {'params': params}, inputs, _context(), method=_METHODS[kind]
      )
      return (_last(output) * _x(5)).sum()

    return jax.grad(loss, (0, 1))(params, inputs)

  for_params, for_inputs = gradient(params, inputs)
  if kind is Iterative:
    assert not np.asarray(for_inputs[0]).any()
    for_inputs = for_inputs[1:]
  for path, leaf in jax.tree_util.tree_leaves_with_path(
    (for_params, for_inputs)
  ):
    name = jax.tree_util.keystr(path)
    assert np.isfinite(leaf).all(), name
    # The softmax over the keys cancels a bias of all keys.
    if "['key']['bias']" not in name:
      assert np.abs(leaf).max() > 1e-6, name


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
@pytest.mark.parametrize(
  ('kind', 'activation'),
  [(Iterative, 'attention'), (Hierarchical, 'sigmoid')],
)
def test_extreme_layers_stay_finite(kind, dtype, activation):
  agg = {'activation': activation}
  module = _modules('pre', agg=agg, compute_dtype=dtype)[kind]
  params = _initial(module, _inputs(module))

  @jax.jit
  def both(params, inputs):
    def loss(params, inputs):
      output = _last(
        module.apply(
          {'params': params}, inputs, _context(), method=_METHODS[kind]
        )
      )
      assert output.dtype == dtype
      return output.astype(jnp.float32).sum()

    return jax.value_and_grad(loss, (0, 1))(params, inputs)

  cases = [_inputs(module, scale=s, dtype=dtype) for s in (1e-6, 1e3, 0.0)]
  cases.append((_x(dtype=dtype),) * len(cases[0]))
  for inputs in cases:
    leaves = jax.tree.leaves(both(params, inputs))
    assert all(np.isfinite(np.float32(leaf)).all() for leaf in leaves)


@pytest.mark.parametrize('kind', [Iterative, Hierarchical])
def test_bfloat16_is_close_to_float32(kind):
  exact = _modules()[kind]
  half = _modules(compute_dtype='bfloat16')[kind]
  params = _initial(exact, _inputs(exact))
  expected = _last(_apply(exact, params, _inputs(exact))[0])
  output = _last(_apply(half, params, _inputs(half, dtype=jnp.bfloat16))[0])
  assert output.dtype == jnp.bfloat16
  _close(jnp.float32(output), expected, 0.1)


# Sizes, as the paper prints them.


def _size(kind, config):
  x = jax.ShapeDtypeStruct((1, _LENGTH, config.width), jnp.float32)
  count = 1 if kind is Hierarchical else config.encoder_layers + 1
  module = kind(config, 'encoder')
  shapes = jax.eval_shape(
    lambda *x: module.init(
      jax.random.key(0), x, _context(), method=_METHODS[kind]
    ),
    *[x] * count,
  )
  return sum(leaf.size for leaf in jax.tree.leaves(shapes['params']))


@pytest.mark.parametrize(
  ('kind', 'preset', 'both_sides'),
  [
    # Table 1 and 2 of Dou et al. (2018): +31.5M, +23.1M, Big 264M to 356M.
    (Iterative, 'base', 31_493_120),
    (Hierarchical, 'base', 23_090_176),
    (Hierarchical, 'big', 92_317_696),
  ],
)
def test_sizes_of_the_paper(kind, preset, both_sides):
  assert 2 * _size(kind, PRESETS[preset]) == both_sides


@pytest.mark.parametrize(
  ('activation', 'size'),
  [
    # n d f + f d + f + d + 2 d with n = 3, d = 8, f = 12.
    ('sigmoid', 3 * 8 * 12 + 12 * 8 + 12 + 8 + 16),
    # Three projections [n d, d], one [d, d], four biases, the norm.
    ('attention', 3 * 24 * 8 + 64 + 4 * 8 + 16),
  ],
)
def test_size_of_a_node(activation, size):
  node = _agg({'activation': activation})
  params = _initial(node, _states(3))
  assert sum(leaf.size for leaf in jax.tree.leaves(params)) == size


def test_kernels_are_cut_along_their_hidden_axis():
  node = _agg()
  variables = jax.eval_shape(
    lambda: node.init(jax.random.key(0), _states(2), 0, _context())
  )
  names = jax.tree.map(tuple, nn.get_partition_spec(variables['params']))
  assert names['hidden'] == {'kernel': ('embed', 'mlp'), 'bias': ('mlp',)}
  assert names['out'] == {'kernel': ('mlp', 'embed'), 'bias': ('embed',)}
  silent = _agg({'zero_out': True})
  variables = jax.eval_shape(
    lambda: silent.init(jax.random.key(0), _states(2), 0, _context())
  )
  silent_names = nn.get_partition_spec(variables['params'])
  assert jax.tree.map(tuple, silent_names) == names


def test_sides_have_options_of_their_own():
  config = dataclasses.replace(
    _config(agg={'hidden': 5}), decoder=SideConfig(agg=AggOptions(hidden=7))
  )
  for side, hidden in (('encoder', 5), ('decoder', 7)):
    params = _initial(AggNode(config, side), _states(2))
    assert params['hidden']['kernel'].shape == (2 * _WIDTH, hidden)
