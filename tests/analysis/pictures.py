"""What a figure that was written must look like."""

import numpy as np
from matplotlib import image


def assert_not_blank(path):
  """A PNG has words and drawings on white, and lies beside its SVG.

  Args:
    path: of the PNG, a `Path`.
  """
  pixels = image.imread(path)[..., :3].mean(-1)
  height, width = pixels.shape
  assert min(height, width) > 100, (height, width)
  inked = pixels < 0.5
  # The words of the axes alone are more than this.
  assert inked.mean() > 0.002, f'{path}: {inked.mean():.5f} of it is dark'
  assert (pixels > 0.98).mean() > 0.05, f'{path}: has no background'
  # Drawn all over: in each half, from left to right and from top to bottom.
  for half in (
    *np.array_split(inked, 2, axis=0),
    *np.array_split(inked, 2, axis=1),
  ):
    assert half.any(), f'{path}: a half of it is empty'
  assert '<text' in path.with_suffix('.svg').read_text(encoding='utf-8')
