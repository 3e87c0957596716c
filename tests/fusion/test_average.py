import numpy as np
from aggregates import position

from fusion_jax.fusion.average import average


def test_average_by_hand():
  layers = (position(1, 2), position(3, 4), position(8, 0))
  np.testing.assert_array_equal(average(layers), position(4, 2))


def test_average_adds_in_float32():
  # 256 + 1 = 256 in bfloat16: adding one after the other would lose the ones.
  layers = tuple(position(x).astype('bfloat16') for x in (256, *(1,) * 16))
  np.testing.assert_array_equal(average(layers).astype('float32'), position(16))
