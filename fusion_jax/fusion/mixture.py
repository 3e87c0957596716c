"""Mixtures of several predictions of a decoder.

A decoder with several features predicts with each of them, and the predictions
are mixed with the weights psi, those of GTRANS (Yang et al. 2022, Eq. 6) or of
SurfaceFusion (Liu et al. 2021).

Axis letters: D model width, G predictions, K those that are kept, M rows, V
vocabulary.
"""

from collections.abc import Callable
from typing import Literal, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Combine: TypeAlias = Literal['arithmetic', 'geometric']


def keep_groups(
  features: Float[Array, 'G *rest'],
  log_weights: Float[Array, 'G *positions'],
  first: int,
  last: int,
) -> tuple[Float[Array, 'K *rest'], Float[Array, 'K *positions']]:
  """Return groups first..last - 1, and their log psi, where psi sums to 1."""
  kept = slice(first, last)
  return features[kept], jax.nn.log_softmax(log_weights[kept], axis=0)


def at_positions(
  log_weights: Float[Array, 'G *positions'], shape: tuple[int, ...]
) -> Float[Array, 'G *rest']:
  """Return log psi at every position, where it may be one for all of them."""
  ones = (1,) * (len(shape) + 1 - log_weights.ndim)
  return jnp.broadcast_to(
    log_weights.reshape(*log_weights.shape, *ones), (len(log_weights), *shape)
  )


def token_mixture(
  log_p: Float[Array, 'G *rest'],
  log_weights: Float[Array, 'G *positions'],
  combine: Combine,
) -> Float[Array, '*rest']:
  """Return the mixture of the groups' log-probabilities of given tokens.

  'arithmetic' is log sum_k psi_k p_k, 'geometric' is sum_k psi_k log p_k.
  """
  weights = at_positions(log_weights, log_p.shape[1:])
  if combine == 'arithmetic':
    return jax.nn.logsumexp(weights + log_p, axis=0)
  return (jnp.exp(weights) * log_p).sum(0)


def mixture_log_probabilities(
  features: Float[Array, 'G M D'],
  log_weights: Float[Array, 'G *positions'],
  logits: Callable[[Float[Array, 'M D']], Float[Array, 'M V']],
  combine: Combine,
) -> Float[Array, 'M V']:
  """Return the logarithm of the mixture of all groups' predictions, float32.

  'arithmetic': log sum_k psi_k P_k, Yang et al. (2022), Eq. 6.
  'geometric': sum_k psi_k log P_k, as in the released code; its exponentials
  sum to 1 or less. Only the logits of one group exist at a time.
  """

  def log_p(group_features):
    return jax.nn.log_softmax(logits(group_features).astype(jnp.float32))

  def add_group(mixture, group):
    group_features, log_weight = group
    if combine == 'arithmetic':
      return jnp.logaddexp(mixture, log_weight + log_p(group_features)), None
    return mixture + jnp.exp(log_weight) * log_p(group_features), None

  shape = jax.eval_shape(logits, features[0]).shape
  start = -jnp.inf if combine == 'arithmetic' else 0.0
  return jax.lax.scan(
    add_group,
    jnp.full(shape, start, jnp.float32),
    (features, log_weights.reshape(len(log_weights), -1, 1)),
  )[0]
