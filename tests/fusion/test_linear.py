import math

import numpy as np
from aggregates import initial_parameters, normal_layers, tiny_config

from fusion_jax.fusion.linear import Linear


def test_plain_starts_as_one_matrix_over_all_layers():
  config = tiny_config('linear', 3, {'factored': False}, width=64)
  kernel = initial_parameters(Linear(config, 'encoder'), normal_layers(4, 64))[
    'kernel'
  ]
  limit = math.sqrt(6 / (3 * 64 + 64))
  assert 0.99 * limit < np.abs(kernel).max() <= limit
