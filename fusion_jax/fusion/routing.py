"""Routing by agreement, which turns votes of input capsules into capsules.

Dynamic routing (Sabour et al. 2017) and EM routing (Hinton et al. 2018) as
Dou et al. (AAAI 2019) apply them to the layers of a position. There are no
parameters here. Everything is computed in float32, or in float64 for votes in
float64.

Axis letters: P any leading axes (positions), L input capsules (layers),
N output capsules, C width of an output capsule.

Internally, positions are one axis Q and votes are [Q, L, M], where M = C N with
the capsules innermost: sums over L or N then run over an axis of a dense array
of rank 3. XLA's CPU backend takes 40 times as long where an axis of size 1 is
next to the summed axis, and 3 times as long for a gradient through sums that
are written as additions of L arrays.
"""

import math
from typing import Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

# Added to the mass of an output capsule.
_MASS_FLOOR = 1e-9
# Added to the mean square of the votes of an input capsule.
_VOTE_EPSILON = 1e-6

# Lambda of EM routing grows by 1 in every iteration, up to this.
_HIGHEST_LAMBDA = 3.0

Votes: TypeAlias = Float[Array, '*P L N C']


class Routed(NamedTuple):
  """Capsules O of dynamic routing and the couplings C by iteration."""

  output: Float[Array, '*P N C']
  couplings: tuple[Float[Array, '*P L N'], ...]


class EmRouted(NamedTuple):
  """Capsules A mu of EM routing, couplings C by iteration, last Gaussians."""

  output: Float[Array, '*P N C']
  couplings: tuple[Float[Array, '*P L N'], ...]
  activation: Float[Array, '*P N']
  mean: Float[Array, '*P N C']
  variance: Float[Array, '*P N C']


class _Gaussians(NamedTuple):
  mass: Float[Array, 'P #N']
  mean: Float[Array, 'P M']
  variance: Float[Array, 'P M']


def squash(total: Float[Array, '*P C'], axis: int = -1) -> Float[Array, '*P C']:
  """Return |s|^2 / (1 + |s|^2) s / |s|; Dou et al. (2019), Eq. 5.

  Args:
    total: Vectors s.
    axis: Axis over which the norm is taken.

  Returns:
    Vectors of the same direction, shorter than 1; 0 for 0, with gradient 0.
  """
  norm = _norm(total, axis)
  return total * (norm / (1 + jnp.square(norm)))


def unit_votes(votes: Votes) -> Votes:
  """Return V[l] / sqrt(mean_{n, c} V[l]^2 + 1e-6), at least float32."""
  wide = _wide(votes)
  square = jnp.square(wide).mean((-2, -1), keepdims=True)
  return wide * jax.lax.rsqrt(square + _VOTE_EPSILON)


def dynamic_routing(
  votes: Votes,
  iterations: int = 3,
  average: Literal['mass', 'sum'] = 'sum',
  stop_gradient: bool = False,
  agreement: Literal['product', 'cosine'] = 'product',
) -> Routed:
  """Route by agreement; Dou et al. (2019), Algorithm 1, Eq. 5-9.

    B = 0, then in every iteration:
    C = softmax_n(B),  O[n] = squash(sum_l C[l, n] V[l, n]),
    B[l, n] += a(O[n], V[l, n])

  With this sum and many capsules the output is almost 0 and the couplings stay
  uniform: at N = 512 and C = 1, votes of deviation 1 give an output of
  deviation 4e-5. average='mass' divides the sum by sum_l C[l, n], so that any
  couplings give a mean.

  Args:
    votes: Votes V, of any floating dtype.
    iterations: Number of iterations, at least 1.
    average: Whether a capsule is the sum of its weighted votes or their mean.
    stop_gradient: Whether gradients flow only through the couplings of the last
      iteration.
    agreement: Agreement a: 'product', O . V, as in Algorithm 1; 'cosine', the
      paper's word elsewhere, which is in [-1, 1].

  Returns:
    The capsules and the couplings of every iteration, at least float32.
  """
  flat, width = _flat(votes), votes.shape[-1]
  # Their product with the direction of O is a.
  readers = flat
  if agreement == 'cosine':
    readers = _flat(_unit(_wide(votes), -1))
  logits = jnp.zeros((), flat.dtype)
  history = []
  for iteration in range(iterations):
    couplings = jax.nn.softmax(logits, -1) if iteration else _uniform(votes)
    history.append(_couplings(couplings, votes))
    if stop_gradient and iteration < iterations - 1:
      couplings = jax.lax.stop_gradient(couplings)
    total = (_to_width(couplings, width) * flat).sum(-2)
    if average == 'mass':
      total = total / (_to_width(couplings.sum(-2), width) + _MASS_FLOOR)
    total = total.reshape(len(total), width, -1)
    output = squash(total, -2)
    direction = _unit(total, -2) if agreement == 'cosine' else output
    output = output.reshape(len(total), -1)
    direction = direction.reshape(output.shape)
    logits = logits + _over_width(direction[:, None] * readers, width)
  return Routed(_capsules(output, votes), tuple(history))


def em_routing(
  votes: Votes,
  activation: Float[Array, '*P L'],
  beta_a: Float[Array, ' N'] | float = 0.0,
  beta_u: Float[Array, ' N'] | float = 0.0,
  iterations: int = 3,
  variance_floor: float = 1e-4,
  stop_gradient: bool = False,
) -> EmRouted:
  """Route by a mixture of Gaussians; Dou et al. (2019), Algorithm 2.

    C = 1 / N, then in every iteration, with R = C A_in and m = sum_l R:
    mu = sum_l R V / m,  var = sum_l R (V - mu)^2 / m + floor    (Eq. 11, 12)
    cost = m sum_c (log(var) + 1 + log(2 pi)) / 2                (Eq. 13)
    A = sigmoid(lambda (beta_a - beta_u m - cost))               (Eq. 14)
    C = softmax_n(log A + log N(V; mu, var))                     (Eq. 15, 16)

  The signs are those of Hinton et al. (2018): the cost is a coding length.
  Lambda is 1, 2, 3, then 3; the paper does not print its schedule.

  Args:
    votes: Votes V, of any floating dtype.
    activation: Activation A_in of every input capsule, in [0, 1].
    beta_a: Value beta_a of every output capsule.
    beta_u: Value beta_u of every output capsule.
    iterations: Number of iterations, at least 1.
    variance_floor: Number added to the variances.
    stop_gradient: Whether gradients flow only through the couplings of the last
      iteration.

  Returns:
    The capsules, their couplings and their Gaussians, at least float32.
  """
  flat, width = _flat(votes), votes.shape[-1]
  weights = activation.reshape(len(flat), flat.shape[1], 1)
  couplings = _uniform(votes)
  history = [_couplings(couplings, votes)]
  gaussians: _Gaussians
  log_activation: Float[Array, 'Q N']
  for iteration in range(iterations):
    if iteration:
      logits = _log_posterior(flat, gaussians, log_activation, width)
      couplings = jax.nn.softmax(logits, -1)
      history.append(_couplings(couplings, votes))
    if stop_gradient and iteration < iterations - 1:
      couplings = jax.lax.stop_gradient(couplings)
    gaussians = _maximise(flat, couplings * weights, width, variance_floor)
    cost = _cost(gaussians, width)
    temperature = min(iteration + 1.0, _HIGHEST_LAMBDA)
    log_activation = jax.nn.log_sigmoid(
      temperature * (beta_a - beta_u * gaussians.mass - cost)
    )
  active, mean = jnp.exp(log_activation), gaussians.mean
  return EmRouted(
    _capsules(_to_width(active, width) * mean, votes),
    tuple(history),
    active.reshape(votes.shape[:-3] + votes.shape[-2:-1]),
    _capsules(mean, votes),
    _capsules(gaussians.variance, votes),
  )


def coupling_entropy(couplings: Float[Array, '*P L N']) -> Float[Array, '*P']:
  """Return the entropy of couplings; Dou et al. (2019), section 4.3.4.

  It is the mean of -sum_n C[l, n] log C[l, n] over input capsules, in nats:
  log N for uniform couplings, 0 where every input capsule goes to one output
  capsule.
  """
  return jax.scipy.special.entr(couplings).sum(-1).mean(-1)


def coupling_diversity(couplings: Float[Array, '*P L N']) -> Float[Array, '*P']:
  """Return how different output capsules are; Dou (2019), section 4.3.4.

  It is the mean over pairs i < j of 1 - cos(C[:, i], C[:, j]), in [0, 1]; 0
  with one capsule. The formula is missing from the copies of the paper that we
  have seen; this one agrees with the paper's 0.0 for the uniform couplings of
  iteration 1.
  """
  capsules = couplings.shape[-1]
  if capsules == 1:
    return jnp.zeros(couplings.shape[:-2], couplings.dtype)
  units = _unit(couplings, -2)
  # The sum over all ordered pairs, including a capsule with itself.
  cosines = jnp.square(units.sum(-1)).sum(-1)
  same = jnp.square(units).sum((-2, -1))
  return 1 - (cosines - same) / (capsules * (capsules - 1))


def _norm(x: Float[Array, '...'], axis: int) -> Float[Array, '...']:
  """Return the length along `axis`, which is kept; its gradient is 0 at 0."""
  if x.shape[axis] == 1:
    return jnp.abs(x)
  square = jnp.square(x).sum(axis, keepdims=True)
  positive = square > 0
  return jnp.where(positive, jnp.sqrt(jnp.where(positive, square, 1)), 0)


def _unit(x: Float[Array, '*S'], axis: int) -> Float[Array, '*S']:
  """Return x / |x| along `axis`; 0 for 0."""
  norm = _norm(x, axis)
  return x / jnp.where(norm > 0, norm, 1)


def _wide(votes: Votes) -> Votes:
  return votes.astype(jnp.promote_types(votes.dtype, jnp.float32))


def _flat(votes: Votes) -> Float[Array, 'Q L M']:
  *positions, inputs, capsules, width = votes.shape
  shape = math.prod(positions), inputs, width * capsules
  return _wide(votes).swapaxes(-1, -2).reshape(shape)


def _capsules(x: Float[Array, 'Q M'], votes: Votes) -> Float[Array, '*P N C']:
  *positions, _, capsules, width = votes.shape
  return x.reshape(*positions, width, capsules).swapaxes(-1, -2)


def _couplings(
  x: Float[Array, '#Q L #N'], votes: Votes
) -> Float[Array, '*P L N']:
  shape = votes.shape[:-1]
  dense = jnp.broadcast_to(x, (math.prod(shape[:-2]), *shape[-2:]))
  return dense.reshape(shape)


def _uniform(votes: Votes) -> Float[Array, '1 L 1']:
  """Return the couplings that softmax gives for zeros."""
  *_, inputs, capsules, _ = votes.shape
  dtype = jnp.promote_types(votes.dtype, jnp.float32)
  return jnp.full((1, inputs, 1), 1 / capsules, dtype)


def _over_width(x: Float[Array, '*S M'], width: int) -> Float[Array, '*S N']:
  """Sum the components of every capsule."""
  if width == 1:
    return x
  return x.reshape(*x.shape[:-1], width, -1).sum(-2)


def _to_width(x: Float[Array, '*S #N'], width: int) -> Float[Array, '*S M']:
  """Repeat the number of each capsule for all its components."""
  return x if x.shape[-1] == 1 else jnp.tile(x, width)


def _maximise(
  flat: Float[Array, 'Q L M'],
  responsibilities: Float[Array, '#Q L #N'],
  width: int,
  variance_floor: float,
) -> _Gaussians:
  """Compute the Gaussians of the M-step (Eq. 11-12).

  `_MASS_FLOOR` is spread over the input capsules. The weights of a mean then
  sum to 1 even for a capsule that receives almost nothing: it has the mean of
  all votes, not 0, and every vote contributes to every variance.
  """
  responsibilities += _MASS_FLOOR / flat.shape[1]
  weights = _to_width(responsibilities, width)
  mass = weights.sum(-2)
  mean = (weights * flat).sum(-2) / mass
  square = jnp.square(flat - mean[:, None])
  variance = (weights * square).sum(-2) / mass + variance_floor
  return _Gaussians(responsibilities.sum(-2), mean, variance)


def _cost(gaussians: _Gaussians, width: int) -> Float[Array, 'Q N']:
  """Return the cost of coding the votes of each capsule (Eq. 13)."""
  nats = 0.5 * jnp.log(gaussians.variance) + 0.5 * (1 + math.log(2 * math.pi))
  return _over_width(nats, width) * gaussians.mass


def _log_posterior(
  flat: Float[Array, 'Q L M'],
  gaussians: _Gaussians,
  log_activation: Float[Array, 'Q N'],
  width: int,
) -> Float[Array, 'Q L N']:
  """Return log A + log N(V; mu, var) (Eq. 15-16)."""
  peak = -0.5 * _over_width(jnp.log(2 * math.pi * gaussians.variance), width)
  square = jnp.square(flat - gaussians.mean[:, None])
  below = _over_width(square * (0.5 / gaussians.variance)[:, None], width)
  return (log_activation + peak)[:, None] - below
