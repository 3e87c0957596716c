"""Aggregation nodes and the trees of them, beside their formulas."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from connections import (
  CONTEXT,
  WIDTH,
  applied,
  connection_config,
  drawn,
  normal,
)
from flax import linen as nn
from numpy_parts import layer_norm

from fusion_jax.fusion.tree import AggNode, Hierarchical, exploitation_scores
from fusion_jax.testing import assert_close


def _node(options=None, **changes):
  config = connection_config(
    norm='post', fusion='hierarchical', options=options or {}
  )
  config = dataclasses.replace(config, **changes)
  return AggNode(config, config.encoder.options)


def _started(node, inputs):
  """Initial parameters, with their axes."""
  init = jax.jit(lambda *x: node.init(jax.random.key(0), x, 0, CONTEXT))
  return init(*inputs)['params']


def test_exploitation_scores_by_hand():
  # Three inputs of width 2: |W1| sums to 2 + 1 | 1 + 0 | 3 + 3.
  kernel = jnp.array([[1, -1], [0.5, 0.5], [-1, 0], [0, 0], [3, 0], [1, -2]])
  assert_close(exploitation_scores(kernel, 3), np.float32([0.3, 0.1, 0.6]))
  np.testing.assert_array_equal(
    exploitation_scores(jnp.zeros((4, 3)), 2), [0, 0]
  )


@pytest.mark.parametrize('activation', ['sigmoid', 'relu', 'attention'])
@pytest.mark.parametrize('initialization', ['glorot', 'fan_in'])
def test_a_silent_node_is_the_norm_of_its_residuals(activation, initialization):
  options = {'activation': activation, 'zero_out': True}
  node = _node(options, initialization=initialization)
  inputs = tuple(normal(seed) for seed in range(3))
  params = nn.unbox(_started(node, inputs))
  assert not any(np.asarray(leaf).any() for leaf in params['out'].values())
  output = node.apply({'params': params}, inputs, 0, CONTEXT)
  assert_close(output, layer_norm(sum(inputs)))


def test_dropout_is_on_the_network_alone():
  node, flat = _node(dropout=0.5), (jnp.ones((2, 3, WIDTH)),) * 2
  # Without W2 the network is b2 = 0.25 everywhere: 0 or 0.5 after dropout.
  silent = {'kernel': jnp.zeros((12, WIDTH)), 'bias': jnp.full(WIDTH, 0.25)}
  params = nn.unbox(_started(node, flat)) | {'out': silent}
  training = dataclasses.replace(CONTEXT, deterministic=False)
  rngs = {'dropout': jax.random.key(0)}
  output = node.apply({'params': params}, flat, 0, training, rngs=rngs)
  # The norm leaves two values a position: what was kept and what was not.
  kept = np.asarray(output) > 0
  assert 0 < kept.sum() < kept.size
  np.testing.assert_allclose(output, layer_norm(2 + 0.5 * kept), atol=1e-3)
  plain = node.apply({'params': params}, flat, 0, CONTEXT)
  assert_close(plain, np.zeros_like(output))


@pytest.mark.parametrize('options', [{}, {'zero_out': True}])
def test_kernels_are_cut_along_their_hidden_axis(options):
  started = _started(_node(options), (normal(), normal()))
  axes = jax.tree.map(tuple, nn.get_partition_spec(started))
  assert axes['hidden'] == {'kernel': ('embed', 'mlp'), 'bias': ('mlp',)}
  assert axes['out'] == {'kernel': ('mlp', 'embed'), 'bias': ('embed',)}


def test_without_feedback_one_call_is_enough():
  own = {'fusion': 'hierarchical', 'options': {'feedback': False}}
  tree = Hierarchical(connection_config(5, **own), 'encoder')
  params = drawn(tree, 0.3)
  (*_, output), layers = applied(tree, params, normal())
  read, carried = tree.apply(
    {'params': params}, layers, (), CONTEXT, method='layer_input'
  )
  assert_close(read, output, units=512)
  assert len(carried) == 1
