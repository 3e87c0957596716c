"""How much a figure differs between seeds, judged by all schemes together."""

import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from scipy import stats


class Noise(NamedTuple):
  """The standard deviation over seeds that all schemes are assumed to share.

  deviation: in the units of the figure.
  degrees: degrees of freedom.
  """

  deviation: float
  degrees: int

  def p_value(self, difference: float, seeds: int) -> float:
    """Run a t-test of two means, two-sided.

    Args:
      difference: Of the means.
      seeds: Of each of the two.

    Returns:
      The p-value of equal means.
    """
    t = abs(difference) / self._error(seeds)
    return float(2 * stats.t.sf(t, self.degrees))

  def least(self, level: float, seeds: int) -> float:
    """The smallest difference whose p-value is at most a level."""
    return float(stats.t.isf(level / 2, self.degrees)) * self._error(seeds)

  def _error(self, seeds: int) -> float:
    """Of the difference of two means."""
    return self.deviation * (2 / seeds) ** 0.5


def pooled(groups: Iterable[Sequence[float]]) -> Noise | None:
  """Pool the variances within groups, weighted by their degrees of freedom.

  Args:
    groups: The figure of one scheme with one start, for each of its seeds.

  Returns:
    The noise; None where no group has two seeds, or none varies.
  """
  several = [group for group in groups if len(group) > 1]
  degrees = sum(len(group) - 1 for group in several)
  squares = sum(
    (len(group) - 1) * statistics.variance(group) for group in several
  )
  return Noise((squares / degrees) ** 0.5, degrees) if squares else None
