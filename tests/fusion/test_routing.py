"""Votes [..., L, N, C], routed by agreement and by EM."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.test_util import check_grads

from fusion_jax.fusion.routing import (
  coupling_diversity,
  coupling_entropy,
  dynamic_routing,
  em_routing,
  squash,
  unit_votes,
)

_FEW = settings(max_examples=12)
# L, N, C: one of each, odd ones, more inputs than capsules and the reverse.
_SHAPES = st.sampled_from([(6, 8, 1), (1, 4, 1), (3, 1, 4), (5, 2, 3)])
_SEEDS = st.integers(0, 99)
_SCALES = st.sampled_from([1e-6, 0.3, 1.0, 10.0])


def _em(votes, *others, **options):
  """EM routing of inputs that are all active."""
  active = jnp.ones(votes.shape[:-2], votes.dtype)
  return em_routing(votes, active, *others, **options)


_cosines = functools.partial(
  dynamic_routing, average='mass', agreement='cosine'
)
_ROUTES = {
  'sum': jax.jit(dynamic_routing),
  'cosine': jax.jit(_cosines),
  'em': jax.jit(_em),
}
_EVERY_ROUTE = pytest.mark.parametrize('name', _ROUTES)
_ANY_ROUTE = st.sampled_from(sorted(_ROUTES))


def _votes(shape, seed=0, scale=1.0, positions=(2,)):
  key = jax.random.key(seed)
  return scale * jax.random.normal(key, (*positions, *shape))


def _one_position(*rows):
  """The votes of one position with C = 1: a row an input capsule."""
  return jnp.array(rows, jnp.float32)[..., None]


def _assert_close(ours, theirs, tolerance=1e-5):
  largest = np.max(np.abs(theirs), initial=1)
  np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance * largest)


# What holds for every route.


@_FEW
@given(_ANY_ROUTE, _SHAPES, _SEEDS, _SCALES)
def test_couplings_are_shares(name, shape, seed, scale):
  routed = _ROUTES[name](_votes(shape, seed, scale))
  assert len(routed.couplings) == 3
  np.testing.assert_array_equal(
    routed.couplings[0], np.full((2, *shape[:2]), np.float32(1 / shape[1]))
  )
  for couplings in routed.couplings:
    assert couplings.shape == (2, *shape[:2])
    assert (couplings >= 0).all()
    _assert_close(couplings.sum(-1), 1)


def _sine(name, votes):
  return jnp.sin(_ROUTES[name](votes).output).sum()


@_FEW
@given(
  _ANY_ROUTE,
  _SHAPES,
  _SEEDS,
  st.sampled_from([0.0, 1e-6, 1e3, 1e6]),
  st.booleans(),
)
def test_extreme_votes(name, shape, seed, scale, alike):
  votes = _votes(shape, seed, scale)
  if alike:
    votes = jnp.broadcast_to(votes[:, :1], votes.shape)
  gradient = jax.grad(functools.partial(_sine, name))(votes)
  for leaf in (*jax.tree.leaves(_ROUTES[name](votes)), gradient):
    assert np.isfinite(leaf).all()


@_EVERY_ROUTE
def test_bfloat16_votes_are_routed_in_float32(name):
  votes = _votes((6, 8, 2)).astype(jnp.bfloat16)
  ours = jax.tree.leaves(_ROUTES[name](votes))
  theirs = jax.tree.leaves(_ROUTES[name](votes.astype(jnp.float32)))
  for one, other in zip(ours, theirs, strict=True):
    assert one.dtype == jnp.float32
    _assert_close(one, other, 1e-6)


# The squash, and votes of unit size.


def test_squash_by_hand():
  # |(3, 4)| = 5: (3, 4) 5 / 26.
  s = jnp.array([[3.0, 4.0], [0.0, 0.0], [-1.0, 0.0]])
  _assert_close(squash(s), [[15 / 26, 20 / 26], [0, 0], [-0.5, 0]])
  # With one component: sign(s) s^2 / (1 + s^2).
  _assert_close(squash(jnp.array([[2.0], [-1.0], [0.0]])), [[0.8], [-0.5], [0]])
  _assert_close(squash(s.T, 0), squash(s).T)


@pytest.mark.parametrize('width', [1, 3])
def test_squash_is_flat_at_zero(width):
  gradient = jax.jacobian(squash)(jnp.zeros(width))
  np.testing.assert_array_equal(gradient, np.zeros((width, width)))


@pytest.mark.usefixtures('float64')
@pytest.mark.parametrize('width', [1, 3])
def test_squash_by_finite_differences(width):
  s = jax.random.normal(jax.random.key(0), (5, width))
  assert squash(s).dtype == jnp.float64
  check_grads(jax.jit(squash), (s,), order=2, modes=('fwd', 'rev'))


def test_unit_votes_by_hand():
  votes = jnp.array([[[3.0], [4.0]], [[0.0], [0.0]]])
  size = math.sqrt(12.5 + 1e-6)
  _assert_close(unit_votes(votes)[:, :, 0], [[3 / size, 4 / size], [0, 0]])
  assert unit_votes(votes.astype(jnp.bfloat16)).dtype == jnp.float32
  gradient = jax.grad(lambda v: jnp.sin(unit_votes(v)).sum())(votes)
  assert np.isfinite(gradient).all()


# Dynamic routing.


def test_the_literal_sum_is_numerically_dead_with_512_capsules():
  votes = _votes((6, 512, 1), positions=(64,))
  literal = dynamic_routing(votes)
  # The specification's number: O has deviation 4e-5.
  assert float(literal.output.std()) == pytest.approx(4e-5, rel=0.05)
  for couplings in literal.couplings:
    _assert_close(coupling_entropy(couplings), math.log(512), 1e-6)
  assert float(_cosines(votes).output.std()) > 0.1


@pytest.mark.usefixtures('float64')
@pytest.mark.parametrize(
  'route', [dynamic_routing, _cosines], ids=['sum', 'cosine']
)
def test_dynamic_routing_by_finite_differences(route):
  def output(votes):
    return route(votes).output

  votes = _votes((2, 3, 2))
  assert output(votes).dtype == jnp.float64
  check_grads(jax.jit(output), (votes,), order=1, modes=('fwd', 'rev'))


# EM routing.


@pytest.mark.parametrize(
  ('iterations', 'temperature'), [(1, 1), (2, 2), (3, 3), (4, 3), (5, 3)]
)
def test_inverse_temperatures_by_hand(iterations, temperature):
  # All goes to the one capsule in every iteration: m = 2, mu = 10, var 1.
  votes = _one_position([9], [11])
  routed = _em(votes, iterations=iterations, variance_floor=1e-6)
  cost = 1 + math.log(2 * math.pi)
  active = 1 / (1 + math.exp(temperature * cost))
  _assert_close(routed.output / 10, [[active]], 1e-6)


@_FEW
@given(
  _SHAPES,
  _SEEDS,
  st.sampled_from([0.0, 1e-6, 1.0, 1e3, 1e6]),
  st.integers(1, 3),
  st.sampled_from([1e-4, 0.1]),
)
def test_capsules_of_em_routing_are_parts_of_a_mean(
  shape, seed, scale, iterations, floor
):
  votes = _votes(shape, seed, scale)
  output = _em(votes, iterations=iterations, variance_floor=floor).output
  slack = 1e-5 * scale
  assert (output >= jnp.minimum(votes.min(1), 0) - slack).all()
  assert (output <= jnp.maximum(votes.max(1), 0) + slack).all()


def test_a_capsule_that_nothing_goes_to_has_the_mean_of_all_votes():
  # The second capsule's votes lie far apart in each of 16 components: its
  # log-density at each input is lower by far more than float32 can tell.
  votes = jnp.repeat(_one_position([5, -100], [5, 300]), 16, axis=-1)
  routed = _em(votes, jnp.full(2, 1e9), iterations=2)
  assert routed.couplings[1][:, 1].max() == 0
  # Of capsules that are active in any case.
  _assert_close(routed.output[:, 0], [5, 100])


def test_entropies_of_normal_votes():
  # The specification's numbers for N = 512, C = 1: 6.24, 6.06, 5.90.
  votes = _votes((6, 512, 1), positions=(64,))
  activation = jax.nn.sigmoid(jax.random.normal(jax.random.key(1), (64, 6)))
  couplings = em_routing(votes, activation).couplings
  entropies = [float(coupling_entropy(c).mean()) for c in couplings]
  assert entropies[0] == pytest.approx(math.log(512), abs=1e-4)
  assert entropies == pytest.approx([6.24, 6.06, 5.90], abs=0.015)
  # At N = 8 and C = 64 random votes give an entropy of about 0.008.
  wide = _em(_votes((6, 8, 64), positions=(64,))).couplings[2]
  assert float(coupling_entropy(wide).mean()) < 0.02


@pytest.mark.usefixtures('float64')
@pytest.mark.parametrize(
  'shape', [(4, 2, 3), pytest.param((3, 4, 1), marks=pytest.mark.extended)]
)
def test_em_routing_by_finite_differences(shape):
  def route(votes, activation, beta_a, beta_u):
    # A floor that lets the differences see a smooth function.
    routed = em_routing(votes, activation, beta_a, beta_u, variance_floor=0.1)
    return routed.output

  keys = jax.random.split(jax.random.key(1), 3)
  inputs = (
    _votes(shape),
    jax.random.uniform(keys[0], (2, shape[0]), minval=0.2, maxval=0.8),
    jax.random.normal(keys[1], shape[1:2]),
    jax.random.normal(keys[2], shape[1:2]),
  )
  assert route(*inputs).dtype == jnp.float64
  check_grads(jax.jit(route), inputs, order=1, modes=('fwd', 'rev'))


# What couplings tell.


def test_diversity_by_hand():
  _assert_close(coupling_diversity(jnp.eye(3)), 1)
  # Pairs of (1, 0), (0, 1), (1, 1): cosines 0, 1 / sqrt(2), 1 / sqrt(2).
  couplings = jnp.array([[1.0, 0, 1], [0, 1, 1]])
  _assert_close(coupling_diversity(couplings), 1 - 2 / 2**0.5 / 3)
  _assert_close(coupling_diversity(jnp.full((2, 4, 5), 0.2)), [0, 0], 1e-6)
  _assert_close(coupling_diversity(jnp.full((2, 4, 1), 1.0)), [0, 0])
