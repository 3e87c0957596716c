"""Votes [..., L, N, C], routed by agreement and by EM."""

import functools
import itertools
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

_E = math.e
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


@_FEW
@given(_ANY_ROUTE, _SHAPES, _SEEDS, st.randoms(use_true_random=False))
def test_order_of_capsules(name, shape, seed, random):
  votes, route = _votes(shape, seed), _ROUTES[name]
  inputs, outputs = (random.sample(range(n), n) for n in shape[:2])
  plain, moved = route(votes), route(votes[:, inputs][:, :, outputs])
  _assert_close(moved.output, plain.output[:, outputs])
  for ours, theirs in zip(moved.couplings, plain.couplings, strict=True):
    _assert_close(ours, theirs[:, inputs][:, :, outputs])


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


@_FEW
@given(st.integers(1, 5), _SEEDS, st.sampled_from([1e-30, 1e-3, 1.0, 1e6]))
def test_squash_keeps_the_direction_and_stays_below_one(width, seed, scale):
  s = scale * jax.random.normal(jax.random.key(seed), (7, width))
  o = np.asarray(squash(s), np.float64)
  length = np.linalg.norm(o, axis=-1)
  assert (length <= 1 + 1e-6).all()
  cosine = (o * s).sum(-1) / np.maximum(
    length * np.linalg.norm(np.asarray(s, np.float64), axis=-1), 1e-60
  )
  assert (cosine[length > 0] > 1 - 1e-5).all()
  longer = np.linalg.norm(squash(1.5 * s), axis=-1)
  assert (longer >= length * (1 - 1e-6)).all()


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


def test_dynamic_routing_by_hand():
  # Iteration 1: S = (1 - 1, 2 + 0) / 2 = (0, 1), O = (0, 1/2), B = O V.
  # Iteration 2: C[1] = (1, e) / (1 + e), C[2] = (1, 1) / 2.
  routed = dynamic_routing(_one_position([1, 2], [-1, 0]), iterations=2)
  share = _E / (1 + _E)
  _assert_close(routed.couplings[0], [[0.5, 0.5], [0.5, 0.5]])
  _assert_close(routed.couplings[1], [[1 - share, share], [0.5, 0.5]])
  s = np.array([1 - share - 0.5, 2 * share])
  _assert_close(routed.output[:, 0], np.sign(s) * s**2 / (1 + s**2))


def test_agreement_is_a_scalar_product_over_components():
  # One input capsule: S = V / 2, |S|^2 = (25/4, 1/4).
  votes = jnp.array([[[3.0, 4.0], [0.0, -1.0]]])
  routed = dynamic_routing(votes, iterations=2)
  # O[n] . V[n] = |V|^2 / 2 * |S| / (1 + |S|^2).
  logits = [25 / 2 * 2.5 / 7.25, 1 / 2 * 0.5 / 1.25]
  powers = np.exp(logits)
  _assert_close(routed.couplings[1][0], powers / powers.sum())


def test_means_by_mass_and_cosines_by_hand():
  # Iteration 1: S = (0, 1), the mean whatever the mass; cosines of width 1 are
  # signs, and 0 for a capsule of 0: B = ((0, 1), (0, 0)).
  routed = _cosines(_one_position([1, 2], [-1, 0]), 2)
  # C[1] = (1, e) / (1 + e), C[2] = (1, 1) / 2.
  share = _E / (1 + _E)
  _assert_close(routed.couplings[1], [[1 - share, share], [0.5, 0.5]])
  s = np.array([(1 - share - 0.5) / (1.5 - share), 2 * share / (share + 0.5)])
  _assert_close(routed.output[:, 0], np.sign(s) * s**2 / (1 + s**2))


def test_cosine_of_wide_capsules_by_hand():
  # One input: S = V, so that its cosine with V is 1 for both capsules, however
  # long; of no length it is 0.
  votes = jnp.array([[[3.0, 4.0], [0.0, -1e-3], [0.0, 0.0]]])
  shares = np.array([_E, _E, 1]) / (2 * _E + 1)
  _assert_close(_cosines(votes, 2).couplings[1][0], shares)


@_FEW
@given(_SHAPES, _SEEDS)
def test_cosines_route_the_same_at_any_size(shape, seed):
  votes = _votes(shape, seed)
  ours, theirs = _cosines(votes), _cosines(1_000 * votes)
  _assert_close(ours.couplings[1], theirs.couplings[1])


@_FEW
@given(_SHAPES, _SEEDS)
def test_cosines_bound_the_entropy(shape, seed):
  """Logits of iteration t, from 0, are within [-t, t]."""
  capsules = shape[1]
  couplings = _cosines(_votes(shape, seed, 100.0)).couplings
  for iteration, shares in enumerate(couplings):
    # No share is above exp(2 t) / N.
    entropy = np.asarray(coupling_entropy(shares))
    assert (entropy >= math.log(capsules) - 2 * iteration - 1e-4).all()
    assert (entropy <= math.log(capsules) + 1e-5).all()


@_FEW
@given(_SHAPES, _SEEDS, _SCALES)
def test_one_iteration_is_the_squash_of_a_mean(shape, seed, scale):
  votes = _votes(shape, seed, scale)
  summed = dynamic_routing(votes, 1).output
  _assert_close(summed, squash(votes.sum(1) / shape[1]), 1e-6)
  _assert_close(_cosines(votes, 1).output, squash(votes.mean(1)), 1e-6)


def test_the_literal_sum_is_numerically_dead_with_512_capsules():
  votes = _votes((6, 512, 1), positions=(64,))
  literal = dynamic_routing(votes)
  # The specification's number: O has deviation 4e-5.
  assert float(literal.output.std()) == pytest.approx(4e-5, rel=0.05)
  for couplings in literal.couplings:
    _assert_close(coupling_entropy(couplings), math.log(512), 1e-6)
  assert float(_cosines(votes).output.std()) > 0.1


@pytest.mark.parametrize(
  ('iterations', 'same'), [(1, True), (2, True), (3, False), (4, False)]
)
def test_stopped_couplings(iterations, same):
  votes = _votes((3, 4, 2), scale=2.0)

  def loss(votes, stop_gradient):
    routed = dynamic_routing(votes, iterations, stop_gradient=stop_gradient)
    return jnp.sin(routed.output + 1).sum()

  through, stopped = (
    jax.value_and_grad(loss)(votes, stop) for stop in (False, True)
  )
  assert through[0] == stopped[0]
  assert np.allclose(through[1], stopped[1], atol=1e-6) == same


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


def _sigmoid(x):
  return 1 / (1 + math.exp(-x))


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
  active = [_sigmoid(0.3 - 0.4 * 0.75 - cost), _sigmoid(-cost)]
  _assert_close(routed.activation, active)
  _assert_close(routed.output[:, 0], [a * 2 / 3 for a in active])


def test_the_second_couplings_of_em_routing_by_hand():
  # m = 1; capsule 1: mu 1, var 1 + 1; capsule 2: mu 0, var 0 + 1.
  votes = _one_position([0, 0], [2, 0])
  routed = _em(votes, iterations=2, variance_floor=1.0)
  half = 0.5 * (1 + math.log(2 * math.pi))
  first = _sigmoid(-half - 0.5 * math.log(2)) * math.exp(-1 / 4) / 2**0.5
  second = _sigmoid(-half)
  share = first / (first + second)
  _assert_close(routed.couplings[1], [[share, 1 - share]] * 2)


def test_costs_and_densities_add_components():
  # One capsule of two components with variances 1 and 4; m = 2.
  votes = jnp.array([[[-1.0, -2.0]], [[1.0, 2.0]]])
  routed = _em(votes, iterations=1, variance_floor=1e-6)
  cost = 2 * (0.5 * math.log(4) + 1 + math.log(2 * math.pi))
  _assert_close(routed.activation, [_sigmoid(-cost)])


@pytest.mark.parametrize(
  ('iterations', 'temperature'), [(1, 1), (2, 2), (3, 3), (4, 3), (5, 3)]
)
def test_inverse_temperatures_by_hand(iterations, temperature):
  # All goes to the one capsule in every iteration: m = 2, var 1.
  votes = _one_position([-1], [1])
  routed = _em(votes, iterations=iterations, variance_floor=1e-6)
  cost = 1 + math.log(2 * math.pi)
  _assert_close(routed.activation, [_sigmoid(-temperature * cost)], 1e-6)


@_FEW
@given(_SHAPES, _SEEDS, _SCALES)
def test_one_iteration_of_em_routing_is_a_weighted_mean(shape, seed, scale):
  votes, key = _votes(shape, seed, scale), jax.random.key(seed + 100)
  activation = jax.random.uniform(key, (2, shape[0]), minval=0.1)
  routed = em_routing(votes, activation, iterations=1)
  weights = activation / activation.sum(1, keepdims=True)
  expected = (weights[..., None, None] * votes).sum(1)
  _assert_close(routed.mean / scale, expected / scale, 1e-4)


@_FEW
@given(
  _SHAPES,
  _SEEDS,
  st.sampled_from([0.0, 1e-6, 1.0, 1e3, 1e6]),
  st.integers(1, 3),
  st.sampled_from([1e-4, 0.1]),
)
def test_gaussians_of_em_routing(shape, seed, scale, iterations, floor):
  votes = _votes(shape, seed, scale)
  routed = _em(votes, iterations=iterations, variance_floor=floor)
  assert (routed.variance >= floor).all()
  slack = 1e-5 * scale
  assert (routed.mean >= votes.min(1) - slack).all()
  assert (routed.mean <= votes.max(1) + slack).all()
  assert ((routed.activation >= 0) & (routed.activation <= 1)).all()
  np.testing.assert_array_equal(
    routed.output, routed.activation[..., None] * routed.mean
  )


@_FEW
@given(_SHAPES, _SEEDS, st.floats(-8, 8))
def test_em_routing_moves_with_its_votes(shape, seed, shift):
  votes = _votes(shape, seed)
  here, there = _em(votes), _em(votes + shift)
  _assert_close(there.mean, here.mean + shift, 2e-3)
  _assert_close(there.variance, here.variance, 2e-3)
  _assert_close(there.activation, here.activation, 2e-3)


def test_a_capsule_that_nothing_goes_to_has_the_mean_of_all_votes():
  # The second capsule's votes lie far apart in each of 16 components: its
  # log-density at each input is lower by far more than float32 can tell.
  votes = jnp.repeat(_one_position([5, -100], [5, 300]), 16, axis=-1)
  routed = _em(votes, iterations=2)
  assert routed.couplings[1][:, 1].max() == 0
  _assert_close(routed.mean[:, 0], [5, 100])


@_FEW
@given(_SHAPES.filter(lambda shape: shape[0] > 1), _SEEDS)
def test_an_input_that_is_not_active_takes_no_part(shape, seed):
  votes = _votes(shape, seed)
  activation = jax.random.uniform(jax.random.key(seed), (2, shape[0]))
  ours = em_routing(votes, activation.at[:, 0].set(0))
  theirs = em_routing(votes[:, 1:], activation[:, 1:])
  _assert_close(ours.output, theirs.output, 1e-3)


def test_betas_of_em_routing():
  votes, zero = _votes((4, 3, 2)), jnp.zeros(3)
  plain = np.asarray(_em(votes, iterations=1).activation)
  # A high beta_a activates, a high beta_u deactivates; betas of one capsule
  # leave the activations of iteration 1 of the others alone.
  for beta_a, beta_u, sign in ((5.0, 0.0, 1), (0.0, 5.0, -1)):
    betas = zero.at[1].set(beta_a), zero.at[1].set(beta_u)
    change = np.asarray(_em(votes, *betas, iterations=1).activation) - plain
    assert (sign * change[:, 1] > 0).all()
    np.testing.assert_array_equal(change[:, [0, 2]], 0)


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


@_FEW
@given(_SHAPES, _SEEDS)
def test_diversity_is_the_mean_over_pairs(shape, seed):
  couplings = np.asarray(jax.nn.softmax(_votes(shape[:2], seed), -1))
  units = couplings / np.linalg.norm(couplings, axis=1, keepdims=True)
  pairs = list(itertools.combinations(range(shape[1]), 2))
  distances = [1 - (units[..., i] * units[..., j]).sum(1) for i, j in pairs]
  expected = np.mean(distances, axis=0) if pairs else np.zeros(2)
  _assert_close(coupling_diversity(jnp.asarray(couplings)), expected)
