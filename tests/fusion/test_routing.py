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
  inverse_temperatures,
  squash,
)

_E = math.e
_FEW = settings(max_examples=12)
# L, N, C: one of each, odd ones, more inputs than capsules and the reverse.
_SHAPES = st.sampled_from([(6, 8, 1), (1, 4, 1), (3, 1, 4), (5, 2, 3)])
_SEEDS = st.integers(0, 99)
_SCALES = st.sampled_from([1e-6, 0.3, 1.0, 10.0])
_ROUTES = {
  'output': jax.jit(functools.partial(dynamic_routing, gain=2.0)),
  'input': jax.jit(functools.partial(dynamic_routing, axis='input')),
  'em': jax.jit(em_routing),
  'em-cost-norm': jax.jit(functools.partial(em_routing, cost_norm=True)),
}
_ANY_ROUTE = st.sampled_from(sorted(_ROUTES))


def _votes(shape, seed, scale=1.0, positions=(2,)):
  key = jax.random.key(seed)
  return scale * jax.random.normal(key, (*positions, *shape))


def _one(*rows):
  """The votes of one position with C = 1: a row an input capsule."""
  return jnp.array(rows, jnp.float32)[..., None]


def _close(ours, theirs, tolerance=1e-5):
  np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)


def _sigmoid(x):
  return 1 / (1 + math.exp(-x))


# Squash.


def test_squash_by_hand():
  # |(3, 4)| = 5: (3, 4) 5 / 26.
  s = jnp.array([[3.0, 4.0], [0.0, 0.0], [-1.0, 0.0]])
  _close(squash(s), [[15 / 26, 20 / 26], [0, 0], [-0.5, 0]])
  # With one component: sign(s) s^2 / (1 + s^2).
  _close(squash(jnp.array([[2.0], [-1.0], [0.0]])), [[0.8], [-0.5], [0]])
  _close(squash(s.T, 0), squash(s).T)


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


# Dynamic routing.


def test_dynamic_routing_by_hand():
  # Iteration 1: S = (1 - 1, 2 + 0) / 2 = (0, 1), O = (0, 1/2), B = O V.
  # Iteration 2: C[1] = (1, e) / (1 + e), C[2] = (1, 1) / 2.
  routed = dynamic_routing(_one([1, 2], [-1, 0]), iterations=2)
  share = _E / (1 + _E)
  _close(routed.couplings[0], [[0.5, 0.5], [0.5, 0.5]])
  _close(routed.couplings[1], [[1 - share, share], [0.5, 0.5]])
  s = np.array([1 - share - 0.5, 2 * share])
  _close(routed.output[:, 0], np.sign(s) * s**2 / (1 + s**2))


def test_dynamic_routing_over_inputs_by_hand():
  # As above, but C[:, 1] = (1, 1) / 2 and C[:, 2] = (e, 1) / (1 + e).
  routed = dynamic_routing(_one([1, 2], [-1, 0]), iterations=2, axis='input')
  share = _E / (1 + _E)
  _close(routed.couplings[1], [[0.5, share], [0.5, 1 - share]])
  s = 2 * share
  _close(routed.output[:, 0], [0, s**2 / (1 + s**2)])


def test_agreement_is_a_scalar_product_over_components():
  # One input capsule: S = V / 2 with g = 1, |S|^2 = (25/4, 1/4).
  votes = jnp.array([[[3.0, 4.0], [0.0, -1.0]]])
  routed = dynamic_routing(votes, iterations=2)
  # O[n] . V[n] = |V|^2 / 2 * |S| / (1 + |S|^2).
  logits = [25 / 2 * 2.5 / 7.25, 1 / 2 * 0.5 / 1.25]
  powers = np.exp(logits)
  _close(routed.couplings[1][0], powers / powers.sum())


@_FEW
@given(_SHAPES, _SEEDS, _SCALES, st.sampled_from([1.0, 4.0]))
def test_one_iteration_is_the_squash_of_a_mean(shape, seed, scale, gain):
  votes = _votes(shape, seed, scale)
  for axis, count in (('output', shape[1]), ('input', shape[0])):
    routed = dynamic_routing(votes, 1, gain, axis)
    _close(routed.output, squash(gain / count * votes.sum(1)), 1e-6)
  gain = shape[1] / shape[0]
  _close(dynamic_routing(votes, 1, gain).output, squash(votes.mean(1)), 1e-6)


@_FEW
@given(_SHAPES, _SEEDS, st.sampled_from([1.0, 1e3]))
def test_capsules_of_dynamic_routing_are_shorter_than_one(shape, seed, scale):
  output = _ROUTES['output'](_votes(shape, seed, scale)).output
  assert (np.linalg.norm(output, axis=-1) <= 1 + 1e-6).all()


def test_literal_gain_is_numerically_dead_with_512_capsules():
  votes = _votes((6, 512, 1), 0, positions=(64,))
  literal = dynamic_routing(votes)
  # The specification's number: O has deviation 4e-5.
  assert float(literal.output.std()) == pytest.approx(4e-5, rel=0.05)
  for couplings in literal.couplings:
    _close(coupling_entropy(couplings), math.log(512), 1e-6)
  mean = dynamic_routing(votes, gain=512 / 6)
  assert float(mean.output.std()) > 0.1
  assert float(coupling_entropy(mean.couplings[2]).mean()) < 6


@pytest.mark.parametrize(
  ('iterations', 'same'), [(1, True), (2, True), (3, False), (4, False)]
)
def test_stopped_couplings(iterations, same):
  votes = _votes((3, 4, 2), 0)

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
  votes, gain = _votes((3, 4, 1), 1), 2.0
  middle = dynamic_routing(votes, 3, gain).couplings[1]

  def written_out(votes):
    v = votes[..., 0]
    first = squash((gain / 4 * v.sum(1))[..., None])[..., 0]
    second = squash((gain * (middle * v).sum(1))[..., None])[..., 0]
    last = jax.nn.softmax((first + second)[:, None] * v, -1)
    return squash((gain * (last * v).sum(1))[..., None])

  def ours(votes):
    return dynamic_routing(votes, 3, gain, stop_gradient=True).output

  _close(ours(votes), written_out(votes))
  ours, theirs = (
    jax.grad(lambda v, f=f: jnp.sin(f(v) + 1).sum())(votes)
    for f in (ours, written_out)
  )
  _close(ours, theirs)


# EM routing.


def test_one_iteration_of_em_routing_by_hand():
  # R = (1, 1/2) / 2, m = 3/4, mu = 1/2 / m = 2/3 and
  # var = (1/2 * 4/9 + 1/4 * 16/9) / m = 8/9.
  routed = em_routing(
    _one([0, 0], [2, 2]),
    jnp.array([[1.0], [0.5]]),
    jnp.array([0.3, 0.0]),
    jnp.array([0.4, 0.0]),
    (2.0,),
    variance_floor=1e-6,
  )
  _close(routed.mean[:, 0], [2 / 3] * 2)
  _close(routed.variance[:, 0], [8 / 9] * 2)
  cost = 0.75 * 0.5 * (math.log(8 / 9) + 1 + math.log(2 * math.pi))
  active = [_sigmoid(2 * (0.3 - 0.4 * 0.75 - cost)), _sigmoid(2 * -cost)]
  _close(routed.activation, active)
  _close(routed.output[:, 0], [a * 2 / 3 for a in active])


def test_the_second_couplings_of_em_routing_by_hand():
  # m = 1; capsule 1: mu 1, var 1 + 1; capsule 2: mu 0, var 0 + 1.
  routed = em_routing(
    _one([0, 0], [2, 0]), temperatures=(1.0, 1.0), variance_floor=1.0
  )
  half = 0.5 * (1 + math.log(2 * math.pi))
  first = _sigmoid(-half - 0.5 * math.log(2)) * math.exp(-1 / 4) / 2**0.5
  second = _sigmoid(-half)
  share = first / (first + second)
  _close(routed.couplings[1], [[share, 1 - share]] * 2)


def test_costs_and_densities_add_components():
  # One capsule of two components with variances 1 and 4; m = 2.
  routed = em_routing(
    jnp.array([[[-1.0, -2.0]], [[1.0, 2.0]]]),
    temperatures=(1.0,),
    variance_floor=1e-6,
  )
  cost = 2 * (0.5 * math.log(4) + 1 + math.log(2 * math.pi))
  _close(routed.activation, [_sigmoid(-cost)])


def test_standardised_costs_by_hand():
  # Two costs become -1 and 1, the greater one for the greater variance.
  routed = em_routing(
    _one([-1, -2], [1, 2]), temperatures=(3.0,), cost_norm=True
  )
  _close(routed.activation, [_sigmoid(3), _sigmoid(-3)])


def test_inverse_temperatures_by_hand():
  assert inverse_temperatures('linear', 1) == (1,)
  assert inverse_temperatures('linear', 5) == (1, 2, 3, 3, 3)
  assert inverse_temperatures('hinton', 2) == pytest.approx((5e-4, 9.75e-4))


@_FEW
@given(_SHAPES, _SEEDS, _SCALES)
def test_one_iteration_of_em_routing_is_a_weighted_mean(shape, seed, scale):
  votes = _votes(shape, seed, scale)
  key = jax.random.key(seed + 100)
  activation = jax.random.uniform(key, (2, *shape[:2]), minval=0.1)
  for chosen in (activation, activation[..., :1]):
    routed = em_routing(votes, chosen, temperatures=(1.0,), emit='mean')
    weights = chosen / chosen.sum(1, keepdims=True)
    expected = (weights[..., None] * votes).sum(1)
    _close(routed.output / scale, expected / scale, 1e-4)
    np.testing.assert_array_equal(routed.output, routed.mean)


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


@_FEW
@given(_SHAPES, _SEEDS, st.floats(-8, 8))
def test_em_routing_moves_with_its_votes(shape, seed, shift):
  votes = _votes(shape, seed)
  route = _ROUTES['em']
  here, there = route(votes), route(votes + shift)
  _close(there.mean, here.mean + shift, 2e-3)
  _close(there.variance, here.variance, 2e-3)
  _close(there.activation, here.activation, 2e-3)


def test_a_capsule_that_nothing_goes_to_has_the_mean_of_all_votes():
  # The second capsule's votes lie far apart: its log-density at each is lower
  # by 10, 1,000 times that after scaling.
  votes = _one([5, -100], [5, 300])
  routed = em_routing(votes, temperatures=(1.0, 1.0), log_density_scale=1e3)
  assert routed.couplings[1][:, 1].max() == 0
  _close(routed.mean[:, 0], [5, 100])


@_FEW
@given(_SHAPES, _SEEDS)
def test_activations_of_inputs(shape, seed):
  votes, route = _votes(shape, seed), _ROUTES['em']
  plain = route(votes)
  _close(plain.output, route(votes, jnp.ones((2, shape[0], 1))).output, 1e-6)
  scalar = jax.random.uniform(jax.random.key(seed), (2, shape[0], 1))
  wide = jnp.broadcast_to(scalar, (2, *shape[:2]))
  _close(route(votes, scalar).output, route(votes, wide).output)
  if shape[0] > 1:
    # An input capsule of activation 0 takes no part.
    without = scalar.at[:, 0].set(0)
    _close(
      route(votes, without).output,
      route(votes[:, 1:], scalar[:, 1:]).output,
      1e-3,
    )


@_FEW
@given(_SHAPES, _SEEDS)
def test_without_density_couplings_follow_the_activations(shape, seed):
  votes = _votes(shape, seed)
  routed = em_routing(votes, temperatures=(1.0, 1.0), log_density_scale=0.0)
  first = em_routing(votes, temperatures=(1.0,))
  share = first.activation / first.activation.sum(-1, keepdims=True)
  _close(routed.couplings[1], np.repeat(share[:, None], shape[0], 1))


def test_betas_of_em_routing():
  votes, zero = _votes((4, 3, 2), 0), jnp.zeros(3)
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
  _close(low.output, em_routing(votes).output, 1e-7)


def test_entropies_of_normal_votes():
  # The specification's numbers for N = 512, C = 1: 6.24, 6.06, 5.90.
  votes = _votes((6, 512, 1), 0, positions=(64,))
  logits = jax.random.normal(jax.random.key(1), (64, 6, 1))
  activation = jax.nn.sigmoid(logits)
  couplings = em_routing(votes, activation).couplings
  entropies = [float(coupling_entropy(c).mean()) for c in couplings]
  assert entropies[0] == pytest.approx(math.log(512), abs=1e-4)
  assert entropies == pytest.approx([6.24, 6.06, 5.90], abs=0.015)


def test_wide_capsules_choose_hard_unless_the_density_is_scaled():
  # At N = 8 and C = 64 random votes give an entropy of about 0.008.
  votes = _votes((6, 8, 64), 0, positions=(64,))
  hard = em_routing(votes).couplings[2]
  soft = em_routing(votes, log_density_scale=1 / 64).couplings[2]
  assert float(coupling_entropy(hard).mean()) < 0.02
  assert float(coupling_entropy(soft).mean()) > 0.3


# All routings.


@_FEW
@given(_ANY_ROUTE, _SHAPES, _SEEDS, _SCALES)
def test_couplings_are_shares(name, shape, seed, scale):
  routed = _ROUTES[name](_votes(shape, seed, scale))
  over, count = (-2, shape[0]) if name == 'input' else (-1, shape[1])
  assert len(routed.couplings) == 3
  np.testing.assert_array_equal(
    routed.couplings[0], np.full((2, *shape[:2]), np.float32(1 / count))
  )
  for couplings in routed.couplings:
    assert couplings.shape == (2, *shape[:2])
    assert (couplings >= 0).all()
    _close(couplings.sum(over), 1)


@_FEW
@given(_ANY_ROUTE, _SHAPES, _SEEDS, st.randoms(use_true_random=False))
def test_order_of_capsules(name, shape, seed, random):
  votes, route = _votes(shape, seed), _ROUTES[name]
  inputs, outputs = (random.sample(range(n), n) for n in shape[:2])
  plain, moved = route(votes), route(votes[:, inputs][:, :, outputs])
  _close(moved.output, plain.output[:, outputs])
  for ours, theirs in zip(moved.couplings, plain.couplings, strict=True):
    _close(ours, theirs[:, inputs][:, :, outputs])


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
  routed = _ROUTES[name](votes)
  gradient = jax.jit(
    jax.grad(lambda v: jnp.sin(_ROUTES[name](v).output).sum())
  )(votes)
  for leaf in (*jax.tree.leaves(routed), gradient):
    assert np.isfinite(leaf).all()


@pytest.mark.parametrize('name', _ROUTES)
def test_mixed_scales_are_finite(name):
  votes = _votes((6, 5, 2), 0) * jnp.logspace(-6, 6, 6)[:, None, None]
  output, gradient = jax.value_and_grad(
    lambda v: jnp.sin(_ROUTES[name](v).output).sum()
  )(votes)
  assert np.isfinite(output)
  assert np.isfinite(gradient).all()


@pytest.mark.parametrize('name', _ROUTES)
@pytest.mark.parametrize('positions', [(), (1,), (2, 3)])
def test_positions_are_independent(name, positions):
  votes, route = _votes((3, 4, 2), 0, positions=positions), _ROUTES[name]
  together = route(votes)
  for index in itertools.product(*map(range, positions)):
    alone = jax.tree.leaves(route(votes[index]))
    for one, all_of_them in zip(alone, jax.tree.leaves(together), strict=True):
      _close(all_of_them[index], one, 1e-6)


@pytest.mark.parametrize('name', _ROUTES)
def test_bfloat16_votes_are_routed_in_float32(name):
  votes = _votes((6, 8, 2), 0).astype(jnp.bfloat16)
  ours = _ROUTES[name](votes)
  theirs = _ROUTES[name](votes.astype(jnp.float32))
  for one, other in zip(
    jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True
  ):
    assert one.dtype == jnp.float32
    _close(one, other, 1e-6)


@pytest.mark.parametrize('name', _ROUTES)
def test_jit_changes_nothing(name):
  votes = _votes((3, 4, 2), 0)
  with jax.disable_jit():
    plain = _ROUTES[name](votes)
  _close(_ROUTES[name](votes).output, plain.output)


# Finite differences.


@pytest.fixture
def float64():
  with jax.enable_x64(True):
    yield


@pytest.mark.usefixtures('float64')
@pytest.mark.parametrize('width', [1, 3])
def test_squash_by_finite_differences(width):
  s = jax.random.normal(jax.random.key(0), (5, width))
  assert squash(s).dtype == jnp.float64
  check_grads(jax.jit(squash), (s,), order=2, modes=('fwd', 'rev'))


@pytest.mark.usefixtures('float64')
@pytest.mark.parametrize('shape', [(3, 4, 1), (2, 3, 2), (1, 2, 3)], ids=str)
@pytest.mark.parametrize('axis', ['output', 'input'])
def test_dynamic_routing_by_finite_differences(shape, axis):
  def route(votes):
    return dynamic_routing(votes, gain=2.0, axis=axis).output

  votes = _votes(shape, 0)
  assert route(votes).dtype == jnp.float64
  check_grads(jax.jit(route), (votes,), order=1, modes=('fwd', 'rev'))


@pytest.mark.usefixtures('float64')
@pytest.mark.parametrize('shape', [(3, 4, 1), (2, 3, 2), (4, 2, 3)], ids=str)
@pytest.mark.parametrize(
  'options',
  [
    {},
    {'cost_norm': True, 'log_density_scale': 0.5},
    {'temperatures': inverse_temperatures('hinton', 2), 'emit': 'mean'},
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
    _votes(shape, 0),
    jax.random.uniform(keys[0], (2, shape[0], 1), minval=0.2, maxval=0.8),
    jax.random.normal(keys[1], shape[1:2]),
    jax.random.normal(keys[2], shape[1:2]),
  )
  assert route(*inputs).dtype == jnp.float64
  check_grads(jax.jit(route), inputs, order=1, modes=('fwd', 'rev'))


# Statistics.


def test_entropy_by_hand():
  couplings = jnp.array([[0.25] * 4, [1, 0, 0, 0], [0.5, 0.5, 0, 0]])
  _close(coupling_entropy(couplings), (math.log(4) + 0 + math.log(2)) / 3)
  _close(coupling_entropy(couplings[None, :2]), [math.log(4) / 2])
  _close(coupling_entropy(couplings.T, 'input'), coupling_entropy(couplings))


def test_diversity_by_hand():
  identity = jnp.eye(3)
  _close(coupling_diversity(identity), 1)
  # Pairs of (1, 0), (0, 1), (1, 1): cosines 0, 1 / sqrt(2), 1 / sqrt(2).
  couplings = jnp.array([[1.0, 0, 1], [0, 1, 1]])
  _close(coupling_diversity(couplings), 1 - 2 / 2**0.5 / 3)
  _close(coupling_diversity(jnp.full((2, 4, 5), 0.2)), [0, 0], 1e-6)
  _close(coupling_diversity(jnp.full((2, 4, 1), 1.0)), [0, 0])


@_FEW
@given(_SHAPES, _SEEDS)
def test_diversity_is_the_mean_over_pairs(shape, seed):
  logits = _votes(shape[:2], seed)
  couplings = np.asarray(jax.nn.softmax(logits, -1))
  units = couplings / np.linalg.norm(couplings, axis=1, keepdims=True)
  pairs = list(itertools.combinations(range(shape[1]), 2))
  each = [1 - (units[..., i] * units[..., j]).sum(1) for i, j in pairs]
  expected = np.mean(each, axis=0) if pairs else np.zeros(2)
  _close(coupling_diversity(jnp.asarray(couplings)), expected)
