"""Reward for layers that differ; Dou et al. (EMNLP 2018), section 3.2.

Axis letters: B batch, T positions, D model width, L layers.
"""

import itertools

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fusion_jax.layers.context import Layers, States

# Added to |a|^2 |b|^2, so that a vector of zeros has distance 1 to any other.
_SMALLEST = 1e-12


def _inner(a: States, b: States) -> Float[Array, 'B T']:
  return (a.astype(jnp.float32) * b.astype(jnp.float32)).sum(-1)


def layer_diversity(
  layers: Layers, keep: Bool[Array, 'B T'], count: Int[Array, ''] | None = None
) -> Float[Array, '']:
  """Return the mean over l = 1..L-1 and tokens of d = 1 - cos^2.

  cos is the cosine of the angle between H[l] and H[l + 1]; Dou et al. (2018),
  Eq. 9-10. The mean is a term to maximise; a single layer gives 0.

  Args:
    keep: Mask, True at tokens, False at padding.
    count: Number of tokens to divide the sum by, where `keep` covers only some
      of them; None: the tokens of `keep`.

  Returns:
    The mean, a float32 scalar in [0, 1]: 0 where neighbours are proportional, 1
    where they are orthogonal.
  """
  squares = [_inner(h, h) for h in layers]
  total = jnp.zeros(keep.shape, jnp.float32)
  for (a, b), (aa, bb) in zip(
    itertools.pairwise(layers), itertools.pairwise(squares), strict=True
  ):
    cosine_squared = _inner(a, b) ** 2 / (aa * bb + _SMALLEST)
    # Rounding may make the square slightly larger than 1.
    total += 1 - jnp.minimum(cosine_squared, 1)
  pairs = max(len(layers) - 1, 1)
  count = keep.sum().clip(1) if count is None else count
  return jnp.where(keep, total, 0).sum() / (count * pairs)
