"""What rounding is said to explain, by hand and beside real sums."""

import numpy as np
import pytest

from fusion_jax.config import ModelConfig
from fusion_jax.decoding.rounding import relative_gaps, rounding


def test_by_hand():
  # 8 * 2^-23 * sqrt(12 layers * 512).
  assert rounding(ModelConfig()) == pytest.approx(7.475e-5, rel=1e-3)
  assert rounding(ModelConfig(compute_dtype='bfloat16')) == 0.02
  # |-1.5 + 1| / 1.0, |-3 + 4| / 4 and 0.
  found = relative_gaps([-1.5, -3.0, 0.0], [-1.0, -4.0, 0.0])
  assert found.tolist() == [0.5, 0.25, 0.0]
  assert np.isnan(relative_gaps([np.nan, 0.0], [0.0, np.nan])).all()


@pytest.mark.parametrize(('layers', 'width'), [(1, 16), (6, 512), (12, 1024)])
def test_another_order_of_the_terms_is_explained(layers, width):
  """Layers of random products, each summed from both ends."""
  rng = np.random.default_rng(0)
  forward = backward = rng.standard_normal(width, np.float32)
  for _ in range(2 * layers):
    kernel = rng.standard_normal((width, width), np.float32) / np.sqrt(width)
    kernel = kernel.astype(np.float32)
    forward = np.cumsum(forward * kernel, 1, np.float32)[:, -1]
    backward = np.cumsum((backward * kernel)[:, ::-1], 1, np.float32)[:, -1]
  gap = relative_gaps(forward, backward).max()
  config = ModelConfig(
    width=width, heads=1, encoder_layers=layers, decoder_layers=layers
  )
  allowed = rounding(config)
  assert allowed / 50 < gap < allowed / 2
