"""How far a run is, apart from its state."""

import math

import pytest

from fusion_jax.runs.checkpoint import Progress


@pytest.mark.parametrize('lower', [False, True])
def test_what_is_not_finite_is_never_the_best(lower):
  progress = Progress()
  for step, value in enumerate([math.nan, math.inf, -math.inf, 2.0, math.nan]):
    progress = progress.updated(value, step, lower)
  assert (progress.best, progress.best_step, progress.stale) == (2.0, 3, 1)
