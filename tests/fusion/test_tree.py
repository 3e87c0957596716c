import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trees import (
  HEADS,
  LENGTH,
  METHODS,
  WIDTH,
  agg_node,
  apply_tree,
  assert_close,
  initial_parameters,
  make_context,
  noise_parameters,
  normal_states,
  tree_config,
)

from fusion_jax.fusion.tree import AggNode, Hierarchical, Iterative, tree_groups
from fusion_jax.layers.attention import padding_mask
from fusion_jax.layers.caches import CacheCursor, KeyValue


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


def test_iterative_of_one_layer_is_the_layer():
  tree, layers = Iterative(tree_config(1), 'encoder'), normal_states(2)
  assert not initial_parameters(tree, layers)
  output, _ = apply_tree(tree, {}, layers)
  np.testing.assert_array_equal(output, layers[1])


@pytest.mark.parametrize(
  ('layers', 'norm'), [(2, 'post'), (3, 'rezero'), (6, 'post')]
)
def test_iterative_is_a_chain_of_nodes(layers, norm):
  config = tree_config(layers, norm, {'residual': 'top'})
  tree, states = Iterative(config, 'encoder'), normal_states(layers + 1)
  params = noise_parameters(tree, states)
  assert sorted(params) == [f'node_{n}' for n in range(2, layers + 1)]
  node, chain = agg_node(config), states[1]
  apply = jax.jit(lambda *a: node.apply(*a, 0, make_context()))
  for number in range(2, layers + 1):
    own = {'params': params[f'node_{number}']}
    chain = apply(own, (states[number], chain))
  output, recorded = apply_tree(tree, params, states)
  assert_close(output, chain, 1e-4)
  scores = recorded['telemetry']['node_2']['exploitation']
  assert scores.shape == (2,)
  # H[0] is not read.
  other, _ = apply_tree(tree, params, (states[1], *states[1:]))
  np.testing.assert_array_equal(other, output)


def _hierarchical(layers, norm='post', **options):
  return Hierarchical(tree_config(layers, norm, options), 'encoder')


@pytest.mark.parametrize('norm', ['post', 'pre'])
@pytest.mark.parametrize('feedback', [True, False])
@pytest.mark.parametrize('size', [1, 2])
def test_hierarchical_of_one_layer_is_the_layer(norm, feedback, size):
  tree = _hierarchical(1, norm, feedback=feedback, group_size=size)
  assert not initial_parameters(tree, normal_states(1))
  (layers, output), _ = apply_tree(tree, {}, normal_states(1))
  np.testing.assert_array_equal(output, layers[1])


def test_two_layers_are_the_iterative_tree_with_its_arguments_swapped():
  config = tree_config(2)
  tree, chain = Hierarchical(config, 'encoder'), Iterative(config, 'encoder')
  params = noise_parameters(tree, normal_states(1))
  (layers, output), _ = apply_tree(tree, params, normal_states(1))
  node = jax.tree.map(lambda leaf: leaf, params['node_1'])
  node['hidden']['kernel'] = np.roll(node['hidden']['kernel'], WIDTH, axis=0)
  assert_close(output, apply_tree(chain, {'node_2': node}, layers)[0], 1e-4)


@pytest.mark.parametrize('norm', ['post', 'rezero'])
def test_groups_of_one_without_feedback_are_the_iterative_tree(norm):
  tree = _hierarchical(4, norm, group_size=1, feedback=False)
  params = noise_parameters(tree, normal_states(1))
  (layers, output), _ = apply_tree(tree, params, normal_states(1))
  chain = Iterative(tree.config, 'encoder')
  assert_close(output, apply_tree(chain, params, layers)[0], 1e-5)


@pytest.mark.parametrize('feedback', [True, False])
def test_a_node_changes_the_layers_above_only_by_feedback(feedback):
  tree = _hierarchical(4, feedback=feedback)
  params = noise_parameters(tree, normal_states(1))
  (layers, output), _ = apply_tree(tree, params, normal_states(1))
  params['node_1']['hidden']['kernel'] += 0.5
  (changed, other), _ = apply_tree(tree, params, normal_states(1))
  same = [bool((a == b).all()) for a, b in zip(layers, changed, strict=True)]
  assert same == [True] * 3 + [not feedback] * 2
  assert not np.allclose(output, other)


def test_without_feedback_one_call_is_enough():
  tree = _hierarchical(5, 'pre', feedback=False)
  params = noise_parameters(tree, normal_states(1))
  (layers, output), _ = apply_tree(tree, params, normal_states(1))
  read, carried = tree.apply(
    {'params': params}, layers, (), make_context(), method='layer_input'
  )
  assert_close(read, output, 1e-4)
  assert len(carried) == 1


@pytest.mark.parametrize('kind', [AggNode, Iterative, Hierarchical])
def test_one_position_at_a_time_equals_all_at_once(kind):
  options = {'activation': 'attention', 'residual': 'top'}
  config = tree_config(3, options=options)
  module = agg_node(config) if kind is AggNode else kind(config, 'encoder')
  inputs = normal_states(1 if isinstance(module, Hierarchical) else 4)
  params = noise_parameters(module, inputs)
  everything = jax.tree.leaves(apply_tree(module, params, inputs)[0])[-1]
  empty = jnp.zeros((2, HEADS, LENGTH, WIDTH // HEADS))
  caches = (KeyValue(empty.swapaxes(2, 3), empty),) * (
    1 if isinstance(module, AggNode) else 2
  )

  @jax.jit
  def step(position, caches, inputs):
    walk = CacheCursor(caches, position)
    output = module.apply(
      {'params': params},
      inputs,
      make_context(padding_mask(position[None] + 1, LENGTH), caches=walk),
      method=METHODS[type(module)],
    )
    return jax.tree.leaves(output)[-1], tuple(walk.seen)

  for position in range(LENGTH):
    newest = tuple(x[:, position : position + 1] for x in inputs)
    output, caches = step(jnp.int32(position), caches, newest)
    assert_close(output[:, 0], everything[:, position], 1e-4)
