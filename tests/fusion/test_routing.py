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
from numpy_parts import sigmoid

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


def _em(votes, **options):
  """EM routing of inputs that are all active."""
  active = jnp.ones(votes.shape[:-2], votes.dtype)
  return em_routing(votes, active, **options)


_cosines = functools.partial(
  dynamic_routing, average='mass', agreement='cosine'
)
_ROUTES = {
  'sum': jax.jit(dynamic_routing),
  'cosine': jax.jit(_cosines),
  'em': jax.jit(_em),
}
_ANY_ROUTE = st.sampled_from(sorted(_ROUTES))


def _votes(shape, seed=0, scale=1.0):
  return scale * jax.random.normal(jax.random.key(seed), (2, *shape))


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


@pytest.mark.parametrize('name', _ROUTES)
def test_bfloat16_votes_are_routed_in_float32(name):
  votes = _votes((6, 8, 2)).astype(jnp.bfloat16)
  ours = jax.tree.leaves(_ROUTES[name](votes))
  theirs = jax.tree.leaves(_ROUTES[name](votes.astype(jnp.float32)))
  for one, other in zip(ours, theirs, strict=True):
    assert one.dtype == jnp.float32
    _assert_close(one, other, 1e-6)


@pytest.mark.parametrize('width', [1, 3])
def test_squash_is_flat_at_zero(width):
  gradient = jax.jacobian(squash)(jnp.zeros(width))
  np.testing.assert_array_equal(gradient, np.zeros((width, width)))


def test_unit_votes_by_hand():
  votes = jnp.array([[[3.0], [4.0]], [[0.0], [0.0]]])
  size = math.sqrt(12.5 + 1e-6)
  _assert_close(unit_votes(votes)[:, :, 0], [[3 / size, 4 / size], [0, 0]])
  assert unit_votes(votes.astype(jnp.bfloat16)).dtype == jnp.float32
  gradient = jax.grad(lambda v: jnp.sin(unit_votes(v)).sum())(votes)
  assert np.isfinite(gradient).all()


# Dynamic routing.


def test_dynamic_routing_by_hand():
  # Iteration 1: S = (1 - 1, 2 + 0) / 2 = (0, 1), O = (0, 1/2), B = O V.
  # Iteration 2: C[1] = (1, e) / (1 + e), C[2] = (1, 1) / 2.
  routed = dynamic_routing(_one_position([1, 2], [-1, 0]), iterations=2)
  share = math.e / (1 + math.e)
  _assert_close(routed.couplings[0], [[0.5, 0.5], [0.5, 0.5]])
  _assert_close(routed.couplings[1], [[1 - share, share], [0.5, 0.5]])
  s = np.array([1 - share - 0.5, 2 * share])
  _assert_close(routed.output[:, 0], np.sign(s) * s**2 / (1 + s**2))


def test_stopped_couplings_are_constants_of_the_gradient():
  votes = _votes((3, 4, 1), 1, scale=2.0)
  middle = dynamic_routing(votes).couplings[1]

  def written_out(votes):
    v = votes[..., 0]
    first = squash((v.sum(1) / 4)[..., None])[..., 0]
    second = squash((middle * v).sum(1)[..., None])[..., 0]
    last = jax.nn.softmax((first + second)[:, None] * v, -1)
    return squash((last * v).sum(1)[..., None])

  def ours(votes):
    return dynamic_routing(votes, stop_gradient=True).output

  _assert_close(ours(votes), written_out(votes))
  ours, theirs = (
    jax.grad(lambda v, f=f: jnp.sin(f(v) + 1).sum())(votes)
    for f in (ours, written_out)
  )
  _assert_close(ours, theirs)


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


def test_one_iteration_of_em_routing_by_hand():
  # R = (1, 1/2) / 2, m = 3/4, mu = 1/2 / m = 2/3 and
  # var = (1/2 * 4/9 + 1/4 * 16/9) / m = 8/9.
  routed = em_routing(
    _one_position([0, 0], [2, 2]),
    jnp.array([1.0, 0.5]),
    jnp.array([0.3, 0.0]),
    jnp.array([0.4, 0.0]),
    iterations=1,
    variance_floor=1e-6,
  )
  _assert_close(routed.mean[:, 0], [2 / 3] * 2)
  _assert_close(routed.variance[:, 0], [8 / 9] * 2)
  cost = 0.75 * 0.5 * (math.log(8 / 9) + 1 + math.log(2 * math.pi))
  active = [sigmoid(0.3 - 0.4 * 0.75 - cost), sigmoid(-cost)]
  _assert_close(routed.activation, active)
  _assert_close(routed.output[:, 0], [a * 2 / 3 for a in active])


def test_a_capsule_that_nothing_goes_to_has_the_mean_of_all_votes():
  # The second capsule's votes lie far apart in each of 16 components: its
  # log-density at each input is lower by far more than float32 can tell.
  votes = jnp.repeat(_one_position([5, -100], [5, 300]), 16, axis=-1)
  routed = _em(votes, iterations=2)
  assert routed.couplings[1][:, 1].max() == 0
  _assert_close(routed.mean[:, 0], [5, 100])


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


def test_entropy_by_hand():
  couplings = jnp.array([[0.25] * 4, [1, 0, 0, 0], [0.5, 0.5, 0, 0]])
  mean = (math.log(4) + 0 + math.log(2)) / 3
  _assert_close(coupling_entropy(couplings), mean)
  _assert_close(coupling_entropy(couplings[None, :2]), [math.log(4) / 2])


def test_diversity_by_hand():
  _assert_close(coupling_diversity(jnp.eye(3)), 1)
  # Pairs of (1, 0), (0, 1), (1, 1): cosines 0, 1 / sqrt(2), 1 / sqrt(2).
  couplings = jnp.array([[1.0, 0, 1], [0, 1, 1]])
  _assert_close(coupling_diversity(couplings), 1 - 2 / 2**0.5 / 3)
  _assert_close(coupling_diversity(jnp.full((2, 4, 5), 0.2)), [0, 0], 1e-6)
  _assert_close(coupling_diversity(jnp.full((2, 4, 1), 1.0)), [0, 0])
