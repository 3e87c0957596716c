"""The sentences in which systems differ most."""

from typing import Any

import numpy as np
from jaxtyping import Float
from sacrebleu.metrics.base import Metric


def sentence_scores(
  metric: Metric, statistics: Float[np.ndarray, 'S K']
) -> Float[np.ndarray, ' S']:
  """Score every sentence by itself."""
  scores = [metric._compute_score_from_stats(each) for each in statistics]
  return np.array([each.score for each in scores])


def largest_differences(
  baseline: Float[np.ndarray, ' S'], system: Float[np.ndarray, ' S'], most: int
) -> dict[str, list[dict[str, Any]]]:
  """Find the sentences in which one system beats the other by most."""
  change = system - baseline
  found = {}
  for way, sign in (('better', 1), ('worse', -1)):
    order = np.argsort(-sign * change, kind='stable')[:most]
    found[way] = [
      {
        'line': int(index) + 1,
        'baseline': float(baseline[index]),
        'system': float(system[index]),
      }
      for index in order
      if sign * change[index] > 0
    ]
  return found
