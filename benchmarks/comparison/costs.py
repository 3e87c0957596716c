"""What a step of each scheme costs."""

import json
from collections.abc import Iterable
from pathlib import Path

# Parts of a result of benchmarks/fusion_overhead.py, and their names here.
PARTS = {'train': 'training', 'decode': 'decoding'}


def costs(paths: Iterable[Path]) -> dict[str, dict[str, float]]:
  """Times of a training and a decoding step, relative to the plain model's.

  Args:
    paths: Results of benchmarks/fusion_overhead.py.

  Returns:
    The two times of each scheme.
  """
  found = {}
  for path in paths:
    for scheme, own in json.loads(path.read_text())['summary'].items():
      found[scheme] = {part: 1 / own[part]['speed'] for part in PARTS}
  return found
