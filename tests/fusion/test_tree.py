import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from trees import (
  HEADS,
  LENGTH,
  METHODS,
  WIDTH,
  apply_tree,
  assert_close,
  initial_parameters,
  make_context,
  noise_parameters,
  normal_state,
  normal_states,
  tree_config,
)

from fusion_jax.config import PRESETS
from fusion_jax.config.fusion import SideConfig
from fusion_jax.fusion.tree import AggNode, AggOptions, Hierarchical, Iterative
from fusion_jax.layers.attention import padding_mask
from fusion_jax.layers.caches import CacheCursor, KeyValue


@pytest.mark.parametrize('module', [AggNode, Iterative, Hierarchical])
def test_one_position_at_a_time_equals_all_at_once(module):
  agg = {'activation': 'attention', 'residual': 'top'}
  module = module(tree_config(3, options=agg), 'encoder')
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


def _modules(norm='post', **changes):
  config = tree_config(3, norm, **changes)
  return {
    kind: kind(config, 'encoder') for kind in (AggNode, Iterative, Hierarchical)
  }


def _inputs(module, **kind):
  return normal_states(1 if isinstance(module, Hierarchical) else 4, **kind)


def _last(output):
  return jax.tree.leaves(output)[-1]


@pytest.mark.parametrize('kind', [AggNode, Iterative])
def test_positions_are_independent(kind):
  module = _modules()[kind]
  inputs = _inputs(module)
  params = noise_parameters(module, inputs)
  order = np.array([2, 0, 3, 1])
  moved = tuple(x[:, order] for x in inputs)
  output = apply_tree(module, params, inputs)[0]
  assert_close(apply_tree(module, params, moved)[0], output[:, order])
  rows = [
    apply_tree(module, params, tuple(x[n : n + 1] for x in inputs))[0]
    for n in (0, 1)
  ]
  assert_close(np.concatenate(rows), output)


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
  module = _modules(norm, options={'activation': activation})[kind]
  inputs = _inputs(module)
  params = noise_parameters(module, inputs)

  @jax.jit
  def gradient(params, inputs):
    def loss(params, inputs):
      output = module.apply(
        {'params': params}, inputs, make_context(), method=METHODS[kind]
      )
      return (_last(output) * normal_state(5)).sum()

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
  module = _modules('pre', options=agg, compute_dtype=dtype)[kind]
  params = initial_parameters(module, _inputs(module))

  @jax.jit
  def both(params, inputs):
    def loss(params, inputs):
      output = _last(
        module.apply(
          {'params': params}, inputs, make_context(), method=METHODS[kind]
        )
      )
      assert output.dtype == dtype
      return output.astype(jnp.float32).sum()

    return jax.value_and_grad(loss, (0, 1))(params, inputs)

  cases = [_inputs(module, scale=s, dtype=dtype) for s in (1e-6, 1e3, 0.0)]
  cases.append((normal_state(dtype=dtype),) * len(cases[0]))
  for inputs in cases:
    leaves = jax.tree.leaves(both(params, inputs))
    assert all(np.isfinite(np.float32(leaf)).all() for leaf in leaves)


@pytest.mark.parametrize('kind', [Iterative, Hierarchical])
def test_bfloat16_is_close_to_float32(kind):
  exact = _modules()[kind]
  half = _modules(compute_dtype='bfloat16')[kind]
  params = initial_parameters(exact, _inputs(exact))
  expected = _last(apply_tree(exact, params, _inputs(exact))[0])
  output = _last(apply_tree(half, params, _inputs(half, dtype=jnp.bfloat16))[0])
  assert output.dtype == jnp.bfloat16
  assert_close(jnp.float32(output), expected, 0.1)


def _size(kind, config):
  x = jax.ShapeDtypeStruct((1, LENGTH, config.width), jnp.float32)
  count = 1 if kind is Hierarchical else config.encoder_layers + 1
  module = kind(config, 'encoder')
  shapes = jax.eval_shape(
    lambda *x: module.init(
      jax.random.key(0), x, make_context(), method=METHODS[kind]
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


def test_sides_have_options_of_their_own():
  config = dataclasses.replace(
    tree_config(options={'hidden': 5}),
    decoder=SideConfig('iterative', options=AggOptions(hidden=7)),
  )
  for side, hidden in (('encoder', 5), ('decoder', 7)):
    params = initial_parameters(AggNode(config, side), normal_states(2))
    assert params['hidden']['kernel'].shape == (2 * WIDTH, hidden)
