"""Bound on how far rounding alone may change a model's log-probabilities.

Other batches, programs and processors add the terms of a product in another
order. A difference counts as such rounding if it is small relative to the
value.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from fusion_jax.config import ModelConfig

# Factor on the spread of a random walk: hard cases pass, a wrong term does not.
_MARGIN = 8

# Products are added in float32, so the rounding of the features dominates.
_BFLOAT16 = 2e-2


def rounding(model: ModelConfig) -> float:
  """Return the change of a log-probability or score that rounding explains.

  For float32 it is 8 eps sqrt(L D): each of the L layers of both sides adds
  sums of D terms, whose roundings add up like the steps of a random walk.
  """
  if model.compute_dtype == 'bfloat16':
    return _BFLOAT16
  layers = model.encoder_layers + model.decoder_layers
  terms = layers * model.width
  return _MARGIN * float(np.finfo(np.float32).eps) * terms**0.5


def relative_gaps(
  ours: Sequence[float] | Float[np.ndarray, '...'],
  theirs: Sequence[float] | Float[np.ndarray, '...'],
) -> Float[np.ndarray, '...']:
  """Return |ours - theirs| / max(1, |theirs|), which `rounding` bounds."""
  theirs = np.asarray(theirs)
  return np.abs(np.subtract(ours, theirs)) / np.maximum(1, np.abs(theirs))
