"""Coverage penalty of Wu et al. (2016), section 7, Eq. 14.

cp(X, Y) = sum_i log(min(sum_j p_ij, 1)), where p_ij is the attention of target
position j over source position i, here the mean over the heads of all layers.
It is at most 0, and the score of a translation is log P(Y) / penalty(|Y|) +
beta cp(X, Y).

Axis letters: B batch, K hypotheses, T positions, S source, L layers, N heads.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float32, Int32

from fusion_jax.layers.attention import rows_mask

# Lower bound of the attention on a source position, for a finite logarithm.
_LEAST = 1e-6


def mean_attention(
  weights: Float32[Array, 'L B N T S'],
) -> Float32[Array, 'B T S']:
  """Return the mean over layers and heads."""
  return weights.mean((0, 2))


def coverage(
  attended: Float32[Array, '*B S'], tokens: Bool[Array, '*#B S']
) -> Float32[Array, '*B']:
  """Compute cp of translations."""
  each = jnp.log(jnp.clip(attended, _LEAST, 1.0))
  return jnp.where(tokens, each, 0).sum(-1)


def write_attention(
  cache: Float32[Array, 'B P S'],
  attention: Float32[Array, 'B K S'],
  position: Int32[Array, ''],
) -> Float32[Array, 'B P S']:
  """Write the attention of a step into the cache [B, T * K, S]."""
  start = position * attention.shape[1]
  return jax.lax.dynamic_update_slice_in_dim(cache, attention, start, axis=1)


def attended(
  cache: Float32[Array, 'B P S'],
  rows: Int32[Array, 'B K T'],
  position: Int32[Array, ''],
) -> Float32[Array, 'B K S']:
  """Sum p_ij over j for each hypothesis up to a position."""
  own = rows_mask(rows, position)[:, 0].astype(cache.dtype)
  return jnp.einsum('BKP,BPS->BKS', own, cache)
