import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from routes import (
  FEW,
  ROUTES,
  SCALES,
  SEEDS,
  SHAPES,
  assert_close,
  normal_votes,
)

from fusion_jax.fusion.routing import coupling_diversity, coupling_entropy

_ANY_ROUTE = st.sampled_from(sorted(ROUTES))


@FEW
@given(_ANY_ROUTE, SHAPES, SEEDS, SCALES)
def test_couplings_are_shares(name, shape, seed, scale):
  routed = ROUTES[name](normal_votes(shape, seed, scale))
  over, count = (-2, shape[0]) if name == 'input' else (-1, shape[1])
  assert len(routed.couplings) == 3
  np.testing.assert_array_equal(
    routed.couplings[0], np.full((2, *shape[:2]), np.float32(1 / count))
  )
  for couplings in routed.couplings:
    assert couplings.shape == (2, *shape[:2])
    assert (couplings >= 0).all()
    assert_close(couplings.sum(over), 1)


@FEW
@given(_ANY_ROUTE, SHAPES, SEEDS, st.randoms(use_true_random=False))
def test_order_of_capsules(name, shape, seed, random):
  votes, route = normal_votes(shape, seed), ROUTES[name]
  inputs, outputs = (random.sample(range(n), n) for n in shape[:2])
  plain, moved = route(votes), route(votes[:, inputs][:, :, outputs])
  assert_close(moved.output, plain.output[:, outputs])
  for ours, theirs in zip(moved.couplings, plain.couplings, strict=True):
    assert_close(ours, theirs[:, inputs][:, :, outputs])


@FEW
@given(
  _ANY_ROUTE,
  SHAPES,
  SEEDS,
  st.sampled_from([0.0, 1e-6, 1e3, 1e6]),
  st.booleans(),
)
def test_extreme_votes(name, shape, seed, scale, alike):
  votes = normal_votes(shape, seed, scale)
  if alike:
    votes = jnp.broadcast_to(votes[:, :1], votes.shape)
  routed = ROUTES[name](votes)
  gradient = jax.jit(jax.grad(lambda v: jnp.sin(ROUTES[name](v).output).sum()))(
    votes
  )
  for leaf in (*jax.tree.leaves(routed), gradient):
    assert np.isfinite(leaf).all()


@pytest.mark.parametrize('name', ROUTES)
def test_mixed_scales_are_finite(name):
  votes = normal_votes((6, 5, 2), 0) * jnp.logspace(-6, 6, 6)[:, None, None]
  output, gradient = jax.value_and_grad(
    lambda v: jnp.sin(ROUTES[name](v).output).sum()
  )(votes)
  assert np.isfinite(output)
  assert np.isfinite(gradient).all()


@pytest.mark.parametrize('name', ROUTES)
@pytest.mark.parametrize('positions', [(), (2, 3)])
def test_positions_are_independent(name, positions):
  votes, route = normal_votes((3, 4, 2), 0, positions=positions), ROUTES[name]
  together = route(votes)
  for index in itertools.product(*map(range, positions)):
    alone = jax.tree.leaves(route(votes[index]))
    for one, all_of_them in zip(alone, jax.tree.leaves(together), strict=True):
      assert_close(all_of_them[index], one, 1e-6)


@pytest.mark.parametrize('name', ROUTES)
def test_bfloat16_votes_are_routed_in_float32(name):
  votes = normal_votes((6, 8, 2), 0).astype(jnp.bfloat16)
  ours = ROUTES[name](votes)
  theirs = ROUTES[name](votes.astype(jnp.float32))
  for one, other in zip(
    jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True
  ):
    assert one.dtype == jnp.float32
    assert_close(one, other, 1e-6)


@pytest.mark.extended
@pytest.mark.parametrize('name', ROUTES)
def test_jit_changes_nothing(name):
  votes = normal_votes((3, 4, 2), 0)
  with jax.disable_jit():
    plain = ROUTES[name](votes)
  assert_close(ROUTES[name](votes).output, plain.output)


def test_entropy_by_hand():
  couplings = jnp.array([[0.25] * 4, [1, 0, 0, 0], [0.5, 0.5, 0, 0]])
  assert_close(coupling_entropy(couplings), (math.log(4) + 0 + math.log(2)) / 3)
  assert_close(coupling_entropy(couplings[None, :2]), [math.log(4) / 2])
  assert_close(
    coupling_entropy(couplings.T, 'input'), coupling_entropy(couplings)
  )


def test_diversity_by_hand():
  identity = jnp.eye(3)
  assert_close(coupling_diversity(identity), 1)
  # Pairs of (1, 0), (0, 1), (1, 1): cosines 0, 1 / sqrt(2), 1 / sqrt(2).
  couplings = jnp.array([[1.0, 0, 1], [0, 1, 1]])
  assert_close(coupling_diversity(couplings), 1 - 2 / 2**0.5 / 3)
  assert_close(coupling_diversity(jnp.full((2, 4, 5), 0.2)), [0, 0], 1e-6)
  assert_close(coupling_diversity(jnp.full((2, 4, 1), 1.0)), [0, 0])


@FEW
@given(SHAPES, SEEDS)
def test_diversity_is_the_mean_over_pairs(shape, seed):
  logits = normal_votes(shape[:2], seed)
  couplings = np.asarray(jax.nn.softmax(logits, -1))
  units = couplings / np.linalg.norm(couplings, axis=1, keepdims=True)
  pairs = list(itertools.combinations(range(shape[1]), 2))
  each = [1 - (units[..., i] * units[..., j]).sum(1) for i, j in pairs]
  expected = np.mean(each, axis=0) if pairs else np.zeros(2)
  assert_close(coupling_diversity(jnp.asarray(couplings)), expected)
