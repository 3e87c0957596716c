"""Aggregation nodes and the trees of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from references.parts import layer_norm

from fusion_jax.config import ModelConfig
from fusion_jax.config.fusion import SideConfig
from fusion_jax.fusion.tree import (
  AggNode,
  Hierarchical,
  Iterative,
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


def test_exploitation_scores_by_hand():
  # Three inputs of width 2: |W1| sums to 2 + 1 | 1 + 0 | 3 + 3.
  kernel = jnp.array([[1, -1], [0.5, 0.5], [-1, 0], [0, 0], [3, 0], [1, -2]])
  _assert_close(exploitation_scores(kernel, 3), [0.3, 0.1, 0.6])
  np.testing.assert_array_equal(
    exploitation_scores(jnp.zeros((4, 3)), 2), [0, 0]
  )


@pytest.mark.parametrize('activation', ['sigmoid', 'relu', 'attention'])
@pytest.mark.parametrize('initialization', ['glorot', 'mlrf'])
def test_a_silent_node_is_the_norm_of_its_residuals(activation, initialization):
  agg = {'activation': activation, 'zero_out': True}
  node = _agg(agg, initialization=initialization)
  inputs = _normal_states(3)
  params = _initial_parameters(node, inputs)
  assert not any(np.asarray(leaf).any() for leaf in params['out'].values())
  output, _ = _apply_tree(node, params, inputs)
  _assert_close(output, layer_norm(sum(inputs)))


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
