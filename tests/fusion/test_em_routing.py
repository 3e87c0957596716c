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

from fusion_jax.fusion.routing import (
  coupling_entropy,
  em_routing,
  inverse_temperatures,
)


def _sigmoid(x):
  return 1 / (1 + math.exp(-x))


def test_one_iteration_of_em_routing_by_hand():
  # R = (1, 1/2) / 2, m = 3/4, mu = 1/2 / m = 2/3 and
  # var = (1/2 * 4/9 + 1/4 * 16/9) / m = 8/9.
  routed = em_routing(
    one_position([0, 0], [2, 2]),
    jnp.array([[1.0], [0.5]]),
    jnp.array([0.3, 0.0]),
    jnp.array([0.4, 0.0]),
    (2.0,),
    variance_floor=1e-6,
  )
  assert_close(routed.mean[:, 0], [2 / 3] * 2)
  assert_close(routed.variance[:, 0], [8 / 9] * 2)
  cost = 0.75 * 0.5 * (math.log(8 / 9) + 1 + math.log(2 * math.pi))
  active = [_sigmoid(2 * (0.3 - 0.4 * 0.75 - cost)), _sigmoid(2 * -cost)]
  assert_close(routed.activation, active)
  assert_close(routed.output[:, 0], [a * 2 / 3 for a in active])


def test_the_second_couplings_of_em_routing_by_hand():
  # m = 1; capsule 1: mu 1, var 1 + 1; capsule 2: mu 0, var 0 + 1.
  routed = em_routing(
    one_position([0, 0], [2, 0]), temperatures=(1.0, 1.0), variance_floor=1.0
  )
  half = 0.5 * (1 + math.log(2 * math.pi))
  first = _sigmoid(-half - 0.5 * math.log(2)) * math.exp(-1 / 4) / 2**0.5
  second = _sigmoid(-half)
  share = first / (first + second)
  assert_close(routed.couplings[1], [[share, 1 - share]] * 2)


def test_costs_and_densities_add_components():
  # One capsule of two components with variances 1 and 4; m = 2.
  routed = em_routing(
    jnp.array([[[-1.0, -2.0]], [[1.0, 2.0]]]),
    temperatures=(1.0,),
    variance_floor=1e-6,
  )
  cost = 2 * (0.5 * math.log(4) + 1 + math.log(2 * math.pi))
  assert_close(routed.activation, [_sigmoid(-cost)])


def test_standardised_costs_by_hand():
  # Two costs become -1 and 1, the greater one for the greater variance.
  routed = em_routing(
    one_position([-1, -2], [1, 2]), temperatures=(3.0,), cost_norm=True
  )
  assert_close(routed.activation, [_sigmoid(3), _sigmoid(-3)])


def test_inverse_temperatures_by_hand():
  assert inverse_temperatures('linear', 1) == (1,)
  assert inverse_temperatures('linear', 5) == (1, 2, 3, 3, 3)
  assert inverse_temperatures('hinton', 2) == pytest.approx((5e-4, 9.75e-4))


@FEW
@given(SHAPES, SEEDS, SCALES)
def test_one_iteration_of_em_routing_is_a_weighted_mean(shape, seed, scale):
  votes = normal_votes(shape, seed, scale)
  key = jax.random.key(seed + 100)
  activation = jax.random.uniform(key, (2, *shape[:2]), minval=0.1)
  for chosen in (activation, activation[..., :1]):
    routed = em_routing(votes, chosen, temperatures=(1.0,), emit='mean')
    weights = chosen / chosen.sum(1, keepdims=True)
    expected = (weights[..., None] * votes).sum(1)
    assert_close(routed.output / scale, expected / scale, 1e-4)
    np.testing.assert_array_equal(routed.output, routed.mean)


@FEW
@given(
  SHAPES,
  SEEDS,
  st.sampled_from([0.0, 1e-6, 1.0, 1e3, 1e6]),
  st.integers(1, 3),
  st.sampled_from([1e-4, 0.1]),
)
def test_gaussians_of_em_routing(shape, seed, scale, iterations, floor):
  votes = normal_votes(shape, seed, scale)
  routed = em_routing(
    votes,
    temperatures=inverse_temperatures('linear', iterations),
    variance_floor=floor,
  )
  assert (routed.variance >= floor).all()
  slack = 1e-5 * scale
  assert (routed.mean >= votes.min(1) - slack).all()
  assert (routed.mean <= votes.max(1) + slack).all()
  assert ((routed.activation >= 0) & (routed.activation <= 1)).all()
  if 0 < scale <= 1:
    assert ((routed.activation > 0) & (routed.activation < 1)).all()
  np.testing.assert_array_equal(
    routed.output, routed.activation[..., None] * routed.mean
  )


@FEW
@given(SHAPES, SEEDS, st.floats(-8, 8))
def test_em_routing_moves_with_its_votes(shape, seed, shift):
  votes = normal_votes(shape, seed)
  route = ROUTES['em']
  here, there = route(votes), route(votes + shift)
  assert_close(there.mean, here.mean + shift, 2e-3)
  assert_close(there.variance, here.variance, 2e-3)
  assert_close(there.activation, here.activation, 2e-3)


def test_a_capsule_that_nothing_goes_to_has_the_mean_of_all_votes():
  # The second capsule's votes lie far apart: its log-density at each is lower
  # by 10, 1,000 times that after scaling.
  votes = one_position([5, -100], [5, 300])
  routed = em_routing(votes, temperatures=(1.0, 1.0), log_density_scale=1e3)
  assert routed.couplings[1][:, 1].max() == 0
  assert_close(routed.mean[:, 0], [5, 100])


@FEW
@given(SHAPES, SEEDS)
def test_activations_of_inputs(shape, seed):
  votes, route = normal_votes(shape, seed), ROUTES['em']
  plain = route(votes)
  assert_close(
    plain.output, route(votes, jnp.ones((2, shape[0], 1))).output, 1e-6
  )
  scalar = jax.random.uniform(jax.random.key(seed), (2, shape[0], 1))
  wide = jnp.broadcast_to(scalar, (2, *shape[:2]))
  assert_close(route(votes, scalar).output, route(votes, wide).output)
  if shape[0] > 1:
    # An input capsule of activation 0 takes no part.
    without = scalar.at[:, 0].set(0)
    assert_close(
      route(votes, without).output,
      route(votes[:, 1:], scalar[:, 1:]).output,
      1e-3,
    )


@FEW
@given(SHAPES, SEEDS)
def test_without_density_couplings_follow_the_activations(shape, seed):
  votes = normal_votes(shape, seed)
  routed = em_routing(votes, temperatures=(1.0, 1.0), log_density_scale=0.0)
  first = em_routing(votes, temperatures=(1.0,))
  share = first.activation / first.activation.sum(-1, keepdims=True)
  assert_close(routed.couplings[1], np.repeat(share[:, None], shape[0], 1))


def test_betas_of_em_routing():
  votes, zero = normal_votes((4, 3, 2), 0), jnp.zeros(3)
  low = em_routing(votes, None, zero, zero)
  # A high beta_a activates, a high beta_u deactivates; betas of one capsule
  # leave the activations of iteration 1 of the others alone.
  for beta_a, beta_u, sign in ((5.0, 0.0, 1), (0.0, 5.0, -1)):
    high = em_routing(
      votes, None, zero.at[1].set(beta_a), zero.at[1].set(beta_u), (1.0,)
    )
    change = np.asarray(
      high.activation - em_routing(votes, temperatures=(1.0,)).activation
    )
    assert (sign * change[:, 1] > 0).all()
    np.testing.assert_array_equal(change[:, [0, 2]], 0)
  assert_close(low.output, em_routing(votes).output, 1e-7)


def test_entropies_of_normal_votes():
  # The specification's numbers for N = 512, C = 1: 6.24, 6.06, 5.90.
  votes = normal_votes((6, 512, 1), 0, positions=(64,))
  logits = jax.random.normal(jax.random.key(1), (64, 6, 1))
  activation = jax.nn.sigmoid(logits)
  couplings = em_routing(votes, activation).couplings
  entropies = [float(coupling_entropy(c).mean()) for c in couplings]
  assert entropies[0] == pytest.approx(math.log(512), abs=1e-4)
  assert entropies == pytest.approx([6.24, 6.06, 5.90], abs=0.015)


def test_wide_capsules_choose_hard_unless_the_density_is_scaled():
  # At N = 8 and C = 64 random votes give an entropy of about 0.008.
  votes = normal_votes((6, 8, 64), 0, positions=(64,))
  hard = em_routing(votes).couplings[2]
  soft = em_routing(votes, log_density_scale=1 / 64).couplings[2]
  assert float(coupling_entropy(hard).mean()) < 0.02
  assert float(coupling_entropy(soft).mean()) > 0.3


@pytest.mark.usefixtures('float64')
@pytest.mark.parametrize(
  'shape', [(4, 2, 3), pytest.param((3, 4, 1), marks=pytest.mark.extended)]
)
@pytest.mark.parametrize(
  'options',
  [
    {},
    pytest.param(
      {'cost_norm': True, 'log_density_scale': 0.5},
      marks=pytest.mark.extended,
    ),
    pytest.param(
      {'temperatures': inverse_temperatures('hinton', 2), 'emit': 'mean'},
      marks=pytest.mark.extended,
    ),
  ],
  ids=lambda options: '-'.join(options) or 'default',
)
def test_em_routing_by_finite_differences(shape, options):
  def route(votes, activation, beta_a, beta_u):
    # A floor that lets the differences see a smooth function.
    return em_routing(
      votes, activation, beta_a, beta_u, variance_floor=0.1, **options
    ).output

  keys = jax.random.split(jax.random.key(1), 3)
  inputs = (
    normal_votes(shape, 0),
    jax.random.uniform(keys[0], (2, shape[0], 1), minval=0.2, maxval=0.8),
    jax.random.normal(keys[1], shape[1:2]),
    jax.random.normal(keys[2], shape[1:2]),
  )
  assert route(*inputs).dtype == jnp.float64
  check_grads(jax.jit(route), inputs, order=1, modes=('fwd', 'rev'))
