"""What decays and what is copied to bfloat16, for every scheme."""

import functools

import chex
import jax
import jax.numpy as jnp
import optax
import pytest
from cases import CASES, parameters
from tiers import extended_but

from fusion_jax.config import ModelConfig, OptimizerConfig
from fusion_jax.models.transformer import (
  Transformer,
  are_weights,
  initial_parameters,
  path_name,
)
from fusion_jax.training.optimizer import make_optimizer

# What is no weight though it has two axes or more, by the end of its name:
# the biases of the block votes [L, D], the weights of transparent attention
# [L + 1, J], those of DLCL [L + 1, L + 1] or with a vector each, and those of
# sums of layers for each way.
_SCALARS_IN_TABLES = (
  'votes/context/bias',
  'votes/transform/bias',
  'encoder/read_out/weights',
  'encoder/connection/weights',
  'decoder/connection/weights',
  '_residual/mix',
  *(f'connection/static_{layer}' for layer in range(4)),
  *(f'connection/direction_{layer}' for layer in range(4)),
)

_LAST_NAMES = {
  'none': {'bias', 'scale'},
  'rezero': {'residual_scale'},
  'skip_gains': {'skip_gain'},
  'gtrans': {'weights', 'layer_weights', 'group_weights'},
  'transparent': {'weights'},
  'dlcl': {'weights'},
  'em_routing': {'beta_a', 'beta_u'},
  'hyper_connections': {'read', 'write', 'mix', 'read_scale', 'write_scale'},
  'attention_residuals': {'query', 'key_scale', 'gate'},
  'mudd': {'static_1', 'static_2', 'static_3'},
  'grn': {f'{name}_{n}' for name in ('static', 'direction') for n in range(4)},
  'shortcut': {'key_gate_bias', 'value_gate_bias'},
}


@functools.cache
def _leaves(config: ModelConfig):
  """Name to (rank, whether it is a weight); a scanned axis does not count."""
  model = Transformer(config, 11, 12, 2)
  shapes = jax.eval_shape(lambda: initial_parameters(model, 0))
  marks = jax.tree.leaves(are_weights(shapes))
  found = jax.tree_util.tree_leaves_with_path(shapes)
  return {
    path_name(path): (leaf.ndim - ('/layers/' in path_name(path)), mark)
    for (path, leaf), mark in zip(found, marks, strict=True)
  }


@pytest.mark.parametrize(
  'name', parameters(core={'none-post', 'gtrans', 'shortcut-both'})
)
def test_weights_have_two_axes_and_are_not_listed_by_hand(name):
  leaves = _leaves(CASES[name])
  wrong = [
    leaf
    for leaf, (rank, weight) in leaves.items()
    if weight != (rank >= 2 and not leaf.endswith(_SCALARS_IN_TABLES))
  ]
  assert wrong == []
  assert {weight for _, weight in leaves.values()} == {True, False}


@pytest.mark.parametrize(
  'part', extended_but(_LAST_NAMES, ['rezero', 'dlcl', 'transparent'])
)
def test_the_exempt_are_those_of_the_papers(part):
  configs = [config for name, config in CASES.items() if part in name]
  exempt = {
    leaf.rpartition('/')[2]
    for config in configs
    for leaf, (_, weight) in _leaves(config).items()
    if not weight
  }
  assert _LAST_NAMES[part] <= exempt


def test_a_zero_gradient_moves_the_weights_alone():
  model = Transformer(CASES['rezero-dlcl'], 11, 11, 2)
  parameters = jax.tree.map(jnp.ones_like, initial_parameters(model, 0))
  config = OptimizerConfig(
    schedule='constant', peak=0.5, warmup_steps=1, weight_decay=0.1
  )
  optimizer = make_optimizer(config, 8)
  zeros = jax.tree.map(jnp.zeros_like, parameters)
  updates, _ = optimizer.update(zeros, optimizer.init(zeros), parameters)
  new = optax.apply_updates(parameters, updates)
  # 1 - 0.5 * 0.1 * 1.
  expected = jax.tree.map(
    lambda leaf, weight: jnp.full_like(leaf, 0.95 if weight else 1.0),
    parameters,
    are_weights(parameters),
  )
  chex.assert_trees_all_close(new, expected)
