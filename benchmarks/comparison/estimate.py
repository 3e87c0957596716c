"""How long runs will take, from those that are finished on this machine."""

import statistics
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.comparison.plan import Run
from benchmarks.comparison.recipe import Recipe
from benchmarks.comparison.results import Results
from benchmarks.schemes import BASELINE


class Estimate:
  """Seconds of runs that are not finished.

  A run takes its updates times the seconds of an update, and what other runs
  took besides (start, compilation, validation, translations). The seconds of
  an update are the median over finished runs of the same scheme; where there
  is none, those of the plain model times the ratio of operations.
  """

  def __init__(
    self,
    recipe: Recipe,
    results: Results,
    hardware: Mapping[str, Any],
    gflop: Callable[[str], float],
    time_plain: Callable[[], float],
  ):
    """Times nothing yet."""
    self._recipe, self._results = recipe, results
    self._hardware = hardware
    self._gflop, self._time_plain = gflop, time_plain

  def __call__(self, run: Run) -> float:
    """Seconds of a run from its beginning to its results."""
    updates = self._recipe.phase(run.phase, run.norm).training.steps
    tuning = run.phase == 'tuning'
    others = [
      found['other_seconds']
      for found in self._here()
      if (found['phase'] == 'tuning') == tuning
      and found['other_seconds'] is not None
    ]
    other = statistics.median(others) if others else 0.0
    return updates * self._an_update(run.scheme) + other

  def _an_update(self, scheme: str) -> float:
    measured = [
      found['seconds_an_update']
      for found in self._here()
      if found['scheme'] == scheme
    ]
    if measured:
      return statistics.median(measured)
    if scheme == BASELINE:
      return self._time_plain()
    ratio = self._gflop(scheme) / self._gflop(BASELINE)
    return ratio * self._an_update(BASELINE)

  def _here(self) -> list[dict[str, Any]]:
    own = self._hardware.items()
    return [found for found in self._results if own <= found.items()]


def duration(seconds: float) -> str:
  """'2 h 05 min', to the minute above."""
  minutes = -int(-seconds // 60)
  return f'{minutes // 60} h {minutes % 60:02d} min'
