import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.test_util import check_grads
from routes import (
  FEW,
  ROUTES,
  SCALES,
  SEEDS,
  SHAPES,
  assert_close,
  normal_votes,
  one_position,
)
from tiers import extended_but

from fusion_jax.fusion.routing import (
  coupling_entropy,
  dynamic_routing,
  squash,
  unit_votes,
)

_E = math.e


def test_squash_by_hand():
  # |(3, 4)| = 5: (3, 4) 5 / 26.
  s = jnp.array([[3.0, 4.0], [0.0, 0.0], [-1.0, 0.0]])
  assert_close(squash(s), [[15 / 26, 20 / 26], [0, 0], [-0.5, 0]])
  # With one component: sign(s) s^2 / (1 + s^2).
  assert_close(squash(jnp.array([[2.0], [-1.0], [0.0]])), [[0.8], [-0.5], [0]])
  assert_close(squash(s.T, 0), squash(s).T)


@FEW
@given(st.integers(1, 5), SEEDS, st.sampled_from([1e-30, 1e-3, 1.0, 1e6]))
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


def test_dynamic_routing_by_hand():
  # Iteration 1: S = (1 - 1, 2 + 0) / 2 = (0, 1), O = (0, 1/2), B = O V.
  # Iteration 2: C[1] = (1, e) / (1 + e), C[2] = (1, 1) / 2.
  routed = dynamic_routing(one_position([1, 2], [-1, 0]), iterations=2)
  share = _E / (1 + _E)
  assert_close(routed.couplings[0], [[0.5, 0.5], [0.5, 0.5]])
  assert_close(routed.couplings[1], [[1 - share, share], [0.5, 0.5]])
  s = np.array([1 - share - 0.5, 2 * share])
  assert_close(routed.output[:, 0], np.sign(s) * s**2 / (1 + s**2))


def test_dynamic_routing_over_inputs_by_hand():
  # As above, but C[:, 1] = (1, 1) / 2 and C[:, 2] = (e, 1) / (1 + e).
  routed = dynamic_routing(
    one_position([1, 2], [-1, 0]), iterations=2, axis='input'
  )
  share = _E / (1 + _E)
  assert_close(routed.couplings[1], [[0.5, share], [0.5, 1 - share]])
  s = 2 * share
  assert_close(routed.output[:, 0], [0, s**2 / (1 + s**2)])


def test_agreement_is_a_scalar_product_over_components():
  # One input capsule: S = V / 2 with g = 1, |S|^2 = (25/4, 1/4).
  votes = jnp.array([[[3.0, 4.0], [0.0, -1.0]]])
  routed = dynamic_routing(votes, iterations=2)
  # O[n] . V[n] = |V|^2 / 2 * |S| / (1 + |S|^2).
  logits = [25 / 2 * 2.5 / 7.25, 1 / 2 * 0.5 / 1.25]
  powers = np.exp(logits)
  assert_close(routed.couplings[1][0], powers / powers.sum())


def test_means_by_mass_and_cosines_by_hand():
  # Iteration 1: S = (0, 1), the mean whatever the mass; cosines of width 1 are
  # signs, and 0 for a capsule of 0: B = ((0, 1), (0, 0)).
  votes = one_position([1, 2], [-1, 0])
  routed = dynamic_routing(
    votes, 2, gain=None, agreement='cosine', agreement_scale=math.log(3)
  )
  # C[1] = (1, 3) / 4, C[2] = (1, 1) / 2; mass (3/4, 5/4).
  assert_close(routed.couplings[1], [[0.25, 0.75], [0.5, 0.5]])
  s = np.array([(0.25 - 0.5) / 0.75, 1.5 / 1.25])
  assert_close(routed.output[:, 0], np.sign(s) * s**2 / (1 + s**2))


def test_cosine_of_wide_capsules_by_hand():
  # One input: S = V, so that its cosine with V is 1 for both capsules, however
  # long; of no length it is 0.
  votes = jnp.array([[[3.0, 4.0], [0.0, -1e-3], [0.0, 0.0]]])
  routed = dynamic_routing(votes, 2, gain=None, agreement='cosine')
  shares = np.array([_E, _E, 1]) / (2 * _E + 1)
  assert_close(routed.couplings[1][0], shares)


def test_scaled_agreement_by_hand():
  # As the scalar products, over sqrt(C) = sqrt(2) and the RMS of the votes,
  # sqrt((9 + 16 + 0 + 1) / 4 + 1e-6).
  votes = jnp.array([[[3.0, 4.0], [0.0, -1.0]]])
  routed = dynamic_routing(votes, iterations=2, agreement='scaled')
  logits = np.array([25 / 2 * 2.5 / 7.25, 1 / 2 * 0.5 / 1.25])
  powers = np.exp(logits / math.sqrt(2) / math.sqrt(6.5 + 1e-6))
  assert_close(routed.couplings[1][0], powers / powers.sum())


@FEW
@given(SHAPES, SEEDS, st.sampled_from(['cosine', 'scaled', 'product']))
def test_larger_votes_route_the_same_at_unit_size(shape, seed, agreement):
  def route(votes):
    return dynamic_routing(unit_votes(votes), gain=None, agreement=agreement)

  votes = normal_votes(shape, seed)
  ours, theirs = route(votes), route(1_000 * votes)
  # 1e-6 is added to a mean square of about 1.
  assert_close(ours.output, theirs.output, 1e-4)
  for a, b in zip(ours.couplings, theirs.couplings, strict=True):
    assert_close(a, b, 1e-4)


@FEW
@given(SHAPES, SEEDS)
def test_cosines_route_the_same_at_any_size(shape, seed):
  route = ROUTES['cosine']
  votes = normal_votes(shape, seed)
  ours, theirs = route(votes), route(1_000 * votes)
  assert_close(ours.couplings[1], theirs.couplings[1])


@FEW
@given(SHAPES, SEEDS, st.sampled_from([0.5, 1.0, 2.0]))
def test_cosines_bound_the_entropy(shape, seed, scale):
  """Logits of iteration t, from 0, are within [-s t, s t]."""
  routed = dynamic_routing(
    normal_votes(shape, seed, 100.0),
    gain=None,
    agreement='cosine',
    agreement_scale=scale,
  )
  capsules = shape[1]
  for iteration, couplings in enumerate(routed.couplings):
    # No share is above exp(2 s t) / N.
    least = math.log(capsules) - 2 * scale * iteration
    entropy = np.asarray(coupling_entropy(couplings))
    assert (entropy >= least - 1e-4).all()
    assert (entropy <= math.log(capsules) + 1e-5).all()


def test_unit_votes_by_hand():
  votes = jnp.array([[[3.0], [4.0]], [[0.0], [0.0]]])
  size = math.sqrt(12.5 + 1e-6)
  assert_close(unit_votes(votes)[:, :, 0], [[3 / size, 4 / size], [0, 0]])
  half = unit_votes(votes.astype(jnp.bfloat16))
  assert half.dtype == jnp.float32
  gradient = jax.grad(lambda v: jnp.sin(unit_votes(v)).sum())(votes)
  assert np.isfinite(gradient).all()


@FEW
@given(SHAPES, SEEDS, SCALES, st.sampled_from([1.0, 4.0]))
def test_one_iteration_is_the_squash_of_a_mean(shape, seed, scale, gain):
  votes = normal_votes(shape, seed, scale)
  for axis, count in (('output', shape[1]), ('input', shape[0])):
    routed = dynamic_routing(votes, 1, gain, axis)
    assert_close(routed.output, squash(gain / count * votes.sum(1)), 1e-6)
  gain = shape[1] / shape[0]
  assert_close(
    dynamic_routing(votes, 1, gain).output, squash(votes.mean(1)), 1e-6
  )


@FEW
@given(SHAPES, SEEDS, st.sampled_from([1.0, 1e3]))
def test_capsules_of_dynamic_routing_are_shorter_than_one(shape, seed, scale):
  output = ROUTES['output'](normal_votes(shape, seed, scale)).output
  assert (np.linalg.norm(output, axis=-1) <= 1 + 1e-6).all()


def test_literal_gain_is_numerically_dead_with_512_capsules():
  votes = normal_votes((6, 512, 1), 0, positions=(64,))
  literal = dynamic_routing(votes)
  # The specification's number: O has deviation 4e-5.
  assert float(literal.output.std()) == pytest.approx(4e-5, rel=0.05)
  for couplings in literal.couplings:
    assert_close(coupling_entropy(couplings), math.log(512), 1e-6)
  mean = dynamic_routing(votes, gain=512 / 6)
  assert float(mean.output.std()) > 0.1
  assert float(coupling_entropy(mean.couplings[2]).mean()) < 6


@pytest.mark.parametrize(
  ('iterations', 'same'), [(1, True), (2, True), (3, False), (4, False)]
)
def test_stopped_couplings(iterations, same):
  votes = normal_votes((3, 4, 2), 0)

  def loss(votes, stop_gradient):
    routed = dynamic_routing(
      votes, iterations, 2.0, stop_gradient=stop_gradient
    )
    return jnp.sin(routed.output + 1).sum()

  through, stopped = (
    jax.value_and_grad(loss)(votes, stop) for stop in (False, True)
  )
  assert through[0] == stopped[0]
  assert np.allclose(through[1], stopped[1], atol=1e-6) == same


def test_stopped_couplings_are_constants_of_the_gradient():
  votes, gain = normal_votes((3, 4, 1), 1), 2.0
  middle = dynamic_routing(votes, 3, gain).couplings[1]

  def written_out(votes):
    v = votes[..., 0]
    first = squash((gain / 4 * v.sum(1))[..., None])[..., 0]
    second = squash((gain * (middle * v).sum(1))[..., None])[..., 0]
    last = jax.nn.softmax((first + second)[:, None] * v, -1)
    return squash((gain * (last * v).sum(1))[..., None])

  def ours(votes):
    return dynamic_routing(votes, 3, gain, stop_gradient=True).output

  assert_close(ours(votes), written_out(votes))
  ours, theirs = (
    jax.grad(lambda v, f=f: jnp.sin(f(v) + 1).sum())(votes)
    for f in (ours, written_out)
  )
  assert_close(ours, theirs)


@pytest.mark.usefixtures('float64')
@pytest.mark.parametrize('width', [1, 3])
def test_squash_by_finite_differences(width):
  s = jax.random.normal(jax.random.key(0), (5, width))
  assert squash(s).dtype == jnp.float64
  check_grads(jax.jit(squash), (s,), order=2, modes=('fwd', 'rev'))


@pytest.mark.usefixtures('float64')
@pytest.mark.parametrize(
  ('shape', 'axis'),
  extended_but(
    itertools.product([(3, 4, 1), (2, 3, 2), (1, 2, 3)], ['output', 'input']),
    [((2, 3, 2), 'output')],
  ),
  ids=str,
)
def test_dynamic_routing_by_finite_differences(shape, axis):
  def route(votes):
    return dynamic_routing(votes, gain=2.0, axis=axis).output

  votes = normal_votes(shape, 0)
  assert route(votes).dtype == jnp.float64
  check_grads(jax.jit(route), (votes,), order=1, modes=('fwd', 'rev'))
