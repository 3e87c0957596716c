"""Reward for layers that differ; Dou et al. (EMNLP 2018), section 3.2.

Axis letters: B batch, T positions, D model width, L layers.
"""

import itertools
from typing import Literal

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fusion_jax.layers.context import Layers, States

# Added to |a|^2 |b|^2, so that a vector of zeros has distance 1 to any other.
_SMALLEST = 1e-12
# Distances below this have no gradient in log d.
_LEAST_DISTANCE = 1e-3


def _inner(a: States, b: States) -> Float[Array, 'B T']:
  return (a.astype(jnp.float32) * b.astype(jnp.float32)).sum(-1)


def layer_diversity(
  layers: Layers,
  keep: Bool[Array, 'B T'],
  count: Int[Array, ''] | None = None,
  reward: Literal['distance', 'log_distance'] = 'distance',
) -> Float[Array, '']:
  """Return the mean over l = 1..L-1 and tokens of d = 1 - cos^2.

  cos is the cosine of the angle between H[l] and H[l + 1]; Dou et al. (2018),
  Eq. 9-10. The mean is a term to maximise; a single layer gives 0. With
  'log_distance' it is the mean of log d: the gradient 1 / d is largest where
  two layers are alike, and an orthogonal pair gives 0, as a single layer does.

  Args:
    keep: Mask, True at tokens, False at padding.
    count: Number of tokens to divide the sum by, where `keep` covers only some
      of them; None: the tokens of `keep`.
    reward: Reward of a token and a pair of layers: d or log d.

  Returns:
    The mean, a float32 scalar. Of d in [0, 1]: 0 where neighbours are
    proportional, 1 where they are orthogonal. Of log d in [log 0.001, 0].
  """
  squares = [_inner(h, h) for h in layers]
  total = jnp.zeros(keep.shape, jnp.float32)
  for (a, b), (aa, bb) in zip(
    itertools.pairwise(layers), itertools.pairwise(squares), strict=True
  ):
    cosine_squared = _inner(a, b) ** 2 / (aa * bb + _SMALLEST)
    # Rounding may make the square slightly larger than 1.
    distance = 1 - jnp.minimum(cosine_squared, 1)
    if reward == 'log_distance':
      distance = jnp.log(jnp.maximum(distance, _LEAST_DISTANCE))
    total += distance
  pairs = max(len(layers) - 1, 1)
  count = keep.sum().clip(1) if count is None else count
  return jnp.where(keep, total, 0).sum() / (count * pairs)
