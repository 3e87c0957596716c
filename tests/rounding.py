"""A comparison that allows for rounding, and for nothing else."""

import jax
import numpy as np

_UNIT = float(np.finfo(np.float32).eps)


def assert_close(ours, theirs, units=64, scale=1.0):
  """Checks trees of float32 results of two programs that compute the same.

  Another batch, mesh or processor adds the same terms in another order. What
  that changes is small beside the largest terms, not beside each result: the
  bound of an array is units * eps * max(|theirs|, scale).

  Args:
    ours: a tree of arrays or numbers.
    theirs: what they should be; a tree of the same structure.
    units: in the last place. About ten times what is to be expected: a sum
      of n terms moves by sqrt(n), and so do n layers.
    scale: of the terms, where they are larger than what they add up to.
  """

  def check(x, y):
    largest = np.max(np.abs(y), initial=scale, where=np.isfinite(y))
    np.testing.assert_allclose(x, y, rtol=0, atol=units * _UNIT * largest)

  jax.tree.map(check, ours, theirs)
