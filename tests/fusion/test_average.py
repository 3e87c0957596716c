import numpy as np
import pytest
from aggregates import (
  apply_fusion,
  noise_parameters,
  normal_layers,
  position,
  tiny_config,
)

from fusion_jax.fusion.average import Average, average


def test_average_by_hand():
  layers = (position(1, 2), position(3, 4), position(8, 0))
  np.testing.assert_array_equal(average(layers), position(4, 2))


def test_average_adds_in_float32():
  # 256 + 1 = 256 in bfloat16: adding one after the other would lose the ones.
  layers = tuple(position(x).astype('bfloat16') for x in (256, *(1,) * 16))
  np.testing.assert_array_equal(average(layers).astype('float32'), position(16))


@pytest.mark.parametrize('include', [True, False])
@pytest.mark.parametrize('layers', [1, 3, 6])
def test_average_of_equal_layers_is_that_layer(include, layers):
  options = {'norm': 'none', 'include_embedding': include}
  module = Average(tiny_config('average', layers, options), 'encoder')
  x = normal_layers(1) * (layers + 1)
  assert not noise_parameters(module, x)
  np.testing.assert_allclose(apply_fusion(module, {}, x), x[0], rtol=1e-6)
