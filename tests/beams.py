"""Rows of a decoding cache, for tests of the step."""

import numpy as np


def changing_rows(position, beam, size):
  """Hypotheses that take the next row at every position, in a circle.

  Gives the hypothesis that is in each row at `position`, and the rows
  [beam, size] where its positions stand, as a step takes them.
  """
  order = (np.arange(beam) + position) % beam
  rows = (order[:, None] - np.arange(size)) % beam
  return order, rows.astype(np.int32)
