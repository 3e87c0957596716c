"""Aggregation nodes and the trees of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from hypothesis import given, settings
from hypothesis import strategies as st
from references.parts import layer_norm

from fusion_jax.config import ModelConfig
from fusion_jax.config.fusion import SideConfig
from fusion_jax.fusion.tree import (
  AggNode,
  Hierarchical,
  Iterative,
  add_residual,
  exploitation_scores,
  tree_groups,
)
from fusion_jax.layers.attention import causal_mask
from fusion_jax.layers.context import Context

_WIDTH, _LENGTH, _HEADS = 8, 4, 2


def _make_context(deterministic=True):
  return Context(causal_mask(_LENGTH), deterministic)


def _tree_config(layers=3, norm='post', options=None, **changes):
  side = SideConfig('hierarchical', options or {})
  return ModelConfig(
    width=_WIDTH,
    filter=12,
    heads=_HEADS,
    encoder_layers=layers,
    norm=norm,
    encoder=side,
    **changes,
  )


def _normal_state(seed=0):
  x = np.random.default_rng(seed).normal(size=(2, _LENGTH, _WIDTH))
  return jnp.float32(x)


def _normal_states(count):
  return tuple(_normal_state(seed) for seed in range(count))


def _assert_close(a, b, tolerance=1e-5):
  largest = np.max(np.abs(b), initial=1)
  np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * largest)


def _node(module, inputs, context):
  return module(inputs, 0, context)


def _read_out(module, layers, context):
  return module(layers, context)


def _stand_in_layer(number, x):
  """Stands for layer `number` of a stack."""
  return jnp.tanh(x) * number + 0.3 * jnp.roll(x, number, axis=-1)


def _stack(module, layers, context):
  """H[0..L] and the output, from H[0], as a stack runs a connection."""
  carried = ()
  for number in range(1, module.config.encoder_layers + 1):
    h, carried = module.layer_input(layers, carried, context)
    y = module.layer_output(layers, _stand_in_layer(number, h))
    layers = (*layers, y)
  return layers, module.layer_input(layers, carried, context)[0]


_METHODS = {AggNode: _node, Iterative: _read_out, Hierarchical: _stack}


def _init(module):
  method = _METHODS[type(module)]
  return lambda *inputs: nn.unbox(
    module.init(jax.random.key(0), inputs, _make_context(), method=method)
  ).get('params', {})


def _initial_parameters(module, inputs):
  return jax.jit(_init(module))(*inputs)


def _noise_parameters(module, inputs):
  """Parameters at a generic point."""
  rng = np.random.default_rng(9)

  def draw(path, leaf):
    mean = float(path[-1].key == 'scale')
    return jnp.asarray(rng.normal(mean, 0.3, leaf.shape), jnp.float32)

  shapes = jax.eval_shape(_init(module), *inputs)
  return jax.tree_util.tree_map_with_path(draw, shapes)


def _apply_tree(module, params, inputs):
  """Without dropout, compiled; and what was recorded."""
  method = _METHODS[type(module)]

  @jax.jit
  def apply(params, inputs):
    return module.apply(
      {'params': params},
      inputs,
      _make_context(),
      method=method,
      mutable=['telemetry'],
    )

  return apply(params, inputs)


def _agg(options=None, **changes):
  config = _tree_config(options=options, **changes)
  return AggNode(config, config.encoder.options)


def _silenced(params):
  """W2 = 0, b2 = 0."""
  return {**params, 'out': jax.tree.map(jnp.zeros_like, params['out'])}


def test_exploitation_scores_by_hand():
  # Three inputs of width 2: |W1| sums to 2 + 1 | 1 + 0 | 3 + 3.
  kernel = jnp.array([[1, -1], [0.5, 0.5], [-1, 0], [0, 0], [3, 0], [1, -2]])
  _assert_close(exploitation_scores(kernel, 3), [0.3, 0.1, 0.6])
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
  _assert_close(
    exploitation_scores(jnp.float32(-scale * kernel), inputs), scores
  )
  blocks = kernel.reshape(inputs, 4, 3)[::-1].reshape(-1, 3)
  _assert_close(exploitation_scores(jnp.float32(blocks), inputs), scores[::-1])


def test_residuals_by_hand():
  y, *inputs = (jnp.full((1, 1, 2), n) for n in (1000.0, 1.0, 10.0, 100.0))
  inputs = tuple(inputs)
  for residual, total in (('all', 1111), ('top', 1010), ('none', 1000)):
    added = add_residual(y, inputs, 1, residual)
    np.testing.assert_array_equal(added, jnp.full((1, 1, 2), total))


@pytest.mark.parametrize('activation', ['sigmoid', 'relu', 'attention'])
@pytest.mark.parametrize('initialization', ['glorot', 'fan_in'])
def test_a_silent_node_is_the_norm_of_its_residuals(activation, initialization):
  agg = {'activation': activation, 'zero_out': True}
  node = _agg(agg, initialization=initialization)
  inputs = _normal_states(3)
  params = _initial_parameters(node, inputs)
  assert not any(np.asarray(leaf).any() for leaf in params['out'].values())
  output, _ = _apply_tree(node, params, inputs)
  _assert_close(output, layer_norm(sum(inputs)))


@pytest.mark.parametrize('activation', ['sigmoid', 'attention'])
def test_a_silent_node_is_symmetric_and_trains(activation):
  node, inputs = _agg({'activation': activation}), _normal_states(3)
  params = _silenced(_initial_parameters(node, inputs))
  output, _ = _apply_tree(node, params, inputs)
  _assert_close(_apply_tree(node, params, inputs[::-1])[0], output)

  def loss(params):
    out = node.apply({'params': params}, inputs, 0, _make_context())
    return (out * _normal_state(7)).sum()

  gradient = jax.jit(jax.grad(loss))(params)
  assert np.asarray(gradient['out']['kernel']).any()


def test_dropout_is_on_the_network_alone():
  node, inputs = _agg(dropout=0.5), _normal_states(2)
  params = _initial_parameters(node, inputs)
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
    _make_context(deterministic=False),
    rngs={'dropout': jax.random.key(0)},
  )
  # The norm leaves two values a position: what was kept and what was not.
  kept = np.asarray(output) > 0
  assert 0 < kept.sum() < kept.size
  _assert_close(output, layer_norm(2 + 0.5 * kept), 1e-3)
  _assert_close(_apply_tree(node, params, flat)[0], np.zeros_like(output))


def test_kernels_are_cut_along_their_hidden_axis():
  def axes(node):
    inputs, context = _normal_states(2), _make_context()
    shapes = jax.eval_shape(
      lambda: node.init(jax.random.key(0), inputs, 0, context)
    )
    return jax.tree.map(tuple, nn.get_partition_spec(shapes['params']))

  names = axes(_agg())
  assert names['hidden'] == {'kernel': ('embed', 'mlp'), 'bias': ('mlp',)}
  assert names['out'] == {'kernel': ('mlp', 'embed'), 'bias': ('embed',)}
  assert axes(_agg({'zero_out': True})) == names


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


def _hierarchical(layers, norm='post', **options):
  return Hierarchical(_tree_config(layers, norm, options), 'encoder')


@pytest.mark.parametrize('feedback', [True, False])
def test_a_node_changes_the_layers_above_only_by_feedback(feedback):
  tree = _hierarchical(4, feedback=feedback)
  params = _noise_parameters(tree, _normal_states(1))
  (layers, output), _ = _apply_tree(tree, params, _normal_states(1))
  params['node_1']['hidden']['kernel'] += 0.5
  (changed, other), _ = _apply_tree(tree, params, _normal_states(1))
  same = [bool((a == b).all()) for a, b in zip(layers, changed, strict=True)]
  assert same == [True] * 3 + [not feedback] * 2
  assert not np.allclose(output, other)


def test_without_feedback_one_call_is_enough():
  tree = _hierarchical(5, 'pre', feedback=False)
  params = _noise_parameters(tree, _normal_states(1))
  (layers, output), _ = _apply_tree(tree, params, _normal_states(1))
  read, carried = tree.apply(
    {'params': params}, layers, (), _make_context(), method='layer_input'
  )
  _assert_close(read, output, 1e-4)
  assert len(carried) == 1
