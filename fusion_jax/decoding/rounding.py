"""How far rounding alone may move the log-probabilities of a model.

Other batches, programs and processors add the terms of a product in another
order. A difference is told from such rounding by its size beside the value.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from fusion_jax.config import ModelConfig

# Times the spread of a random walk: room for hard cases, none for a wrong term.
_MARGIN = 8

# Products add up in float32; the features that are rounded decide.
_BFLOAT16 = 2e-2


def rounding(model: ModelConfig) -> float:
  """Return the change of a log-probability, or a score, that rounding explains.

  Of float32 it is 8 eps sqrt(L D): each of the L layers of both sides adds
  sums of D terms, whose roundings add up like the steps of a random walk.

  Args:
    model: whose compute_dtype, width and layers count.

  Returns:
    The largest change for each unit of the value, and at least of 1.
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
  """Return |ours - theirs| / max(1, |theirs|), what `rounding` bounds.

  Args:
    ours: log-probabilities or scores.
    theirs: those that they are compared with, of the same shape.

  Returns:
    The gaps; NaN where one of the values is NaN or both are infinite.
  """
  theirs = np.asarray(theirs)
  return np.abs(np.subtract(ours, theirs)) / np.maximum(1, np.abs(theirs))
