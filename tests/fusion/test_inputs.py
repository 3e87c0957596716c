import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from fusion_jax.config import ModelConfig
from fusion_jax.config.fusion import SideConfig
from fusion_jax.fusion.inputs import InputNorms, per_layer_norms, weighted_sum


def _config(norm, input_norm='auto'):
  return ModelConfig(
    width=4,
    heads=2,
    encoder_layers=3,
    norm=norm,
    encoder=SideConfig(input_norm=input_norm),
  )


@pytest.mark.parametrize(
  ('norm', 'input_norm', 'expected'),
  [
    ('pre', 'auto', True),
    ('post', 'auto', False),
    ('rezero', 'auto', False),
    ('pre', 'none', False),
    ('post', 'per_layer', True),
    ('rezero', 'per_layer', True),
  ],
)
def test_which_models_have_norms(norm, input_norm, expected):
  assert per_layer_norms(_config(norm, input_norm), 'encoder') is expected


@pytest.mark.parametrize('start', [0, 1, 2])
def test_layers_from_start_on_have_a_norm_each(start):
  config = _config('pre')
  module = InputNorms(config, 'encoder', tuple(range(start, 4)))
  row = jnp.array([1.0, 2.0, 3.0, 6.0]).reshape(1, 1, 4)
  layers = tuple((10.0**n) * row for n in range(4))
  params = nn.unbox(module.init(jax.random.key(0), layers))['params']
  assert sorted(params) == [f'input_norm_{n}' for n in range(start, 4)]
  for n in range(start, 4):
    params[f'input_norm_{n}']['scale'] += n
  normalised = module.apply({'params': params}, layers)
  # Mean 3, variance 3.5.
  unit = (np.array([1, 2, 3, 6]) - 3) / np.sqrt(3.5)
  for n, layer in enumerate(normalised):
    expected = layers[n][0, 0] if n < start else (n + 1) * unit
    np.testing.assert_allclose(layer[0, 0], expected, rtol=1e-4)


def test_weighted_sum_by_hand():
  layers = tuple(jnp.full((1, 1, 2), n, jnp.bfloat16) for n in (1, 10, 100))
  y = weighted_sum(jnp.array([1.0, 0.5, 0.25]), layers)
  assert y.dtype == jnp.bfloat16
  np.testing.assert_array_equal(y, jnp.full((1, 1, 2), 31))
  vectors = jnp.array([[1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
  np.testing.assert_array_equal(weighted_sum(vectors, layers)[0, 0], [1, -90])


def test_bfloat16_layers_are_summed_in_float32():
  # 256 + 1 is no bfloat16 number: a sum term by term would stay at 256.
  layers = tuple(
    jnp.full((1, 1, 2), n, jnp.bfloat16) for n in (256, 1, 1, 1, 1)
  )
  np.testing.assert_array_equal(
    weighted_sum(jnp.ones(5), layers), jnp.full((1, 1, 2), 260)
  )
