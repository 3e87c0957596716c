from fusion_jax.fusion.linear import LinearOptions
import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from aggregates import (
  apply_fusion,
  count_parameters,
  mlrf_options,
  noise_parameters,
  normal_layers,
  tiny_config,
  with_table,
)
from extremes import assert_finite, extreme_layers

from fusion_jax.config import PRESETS
from fusion_jax.config.fusion import SideConfig
from fusion_jax.fusion.average import Average
from fusion_jax.fusion.feed_forward import FeedForwardFusion, LayerEmbedding
from fusion_jax.fusion.hops import Hops
from fusion_jax.fusion.linear import Linear

_SMALL = PRESETS['small']


@pytest.mark.parametrize(
  ('kind', 'options', 'expected'),
  [
    # Wang et al. (2018), Table 2: D = 256, n = 4; without a norm that has
    # parameters, with one + 512, with E + 4 * 256 once.
    (Average, {}, 512),
    (Average, {'norm': 'plain'}, 0),
    (Average, {'norm': 'none'}, 0),
    (FeedForwardFusion, {'norm': 'none'}, 656_128),
    (FeedForwardFusion, {'norm': 'plain'}, 656_128),
    (FeedForwardFusion, {}, 656_640),
    (FeedForwardFusion, {'include_embedding': False}, 656_640 - 256 * 512),
    (Hops, {'norm': 'plain'}, 922_368),
    (Hops, {'norm': 'none'}, 922_368),
    (Hops, {}, 922_880),
    (Hops, {'norm': 'plain', 'hops': 6}, 1_186_560),
    # The 13.47M of its Dec-SA with 6 hops: five more W1.
    (
      Hops,
      {'norm': 'plain', 'hops': 6, 'independent': 'per_hop'},
      1_186_560 + 5 * 256 * 1_024,
    ),
    (Hops, {'independent': 'per_layer'}, 922_880 + 3 * 256 * 1_024),
    (
      Hops,
      {'independent': 'per_layer', 'include_embedding': False},
      922_880 + 2 * 256 * 1_024,
    ),
    (Hops, {'feature_wise': True}, 922_880 + 255 * 4 * 1_024),
  ],
)
def test_mlrf_parameters(kind, options, expected):
  side = SideConfig(_NAMES[kind], options=MlrfOptions(**options))
  config = dataclasses.replace(_SMALL, encoder=side, decoder=side)
  assert count_parameters(kind(config, 'decoder'), 3, 256) == expected
  if kind is not Average:
    module = kind(config, 'decoder', LayerEmbedding(config))
    assert count_parameters(module, 3, 256) == expected + 4 * 256


_NAMES = {Average: 'average', FeedForwardFusion: 'feed_forward', Hops: 'hops'}
_ALL = [
  (Linear, LinearOptions(), None),
  (Linear, LinearOptions(factored=False, output_norm=True), None),
  (Average, None, mlrf_options()),
  (Average, None, mlrf_options(norm='plain', include_embedding=False)),
  (FeedForwardFusion, None, mlrf_options()),
  (
    FeedForwardFusion,
    None,
    mlrf_options(norm='plain', include_embedding=False),
  ),
  (Hops, None, mlrf_options(hops=3)),
  (Hops, None, mlrf_options(independent='per_layer', norm='plain')),
  (
    Hops,
    None,
    mlrf_options(
      independent='per_hop', feature_wise=True, scorer_activation='relu'
    ),
  ),
]


def _module(kind, linear, mlrf, layers=3, **changes):
  config = tiny_config(layers, options=linear, options=mlrf, **changes)
  if kind in (FeedForwardFusion, Hops):
    return with_table(kind, config)
  return kind(config, 'encoder')


@pytest.mark.parametrize(('kind', 'linear', 'mlrf'), _ALL)
def test_positions_are_fused_one_by_one(kind, linear, mlrf):
  module, x = _module(kind, linear, mlrf), normal_layers(4)
  params = noise_parameters(module, x, 0.5)
  order = np.array([3, 1, 4, 0, 2])
  np.testing.assert_allclose(
    apply_fusion(module, params, tuple(z[:, order] for z in x)),
    apply_fusion(module, params, x)[:, order],
    rtol=1e-4,
    atol=1e-5,
  )


@functools.partial(jax.jit, static_argnums=0)
def _gradients(module, params, layers):
  """Of a generic loss; and the fusion."""

  def loss(params, layers):
    y = apply_fusion(module, params, layers)
    return jnp.sin(y.astype(jnp.float32) * jnp.arange(1, 9)).sum(), y

  return jax.grad(loss, (0, 1), has_aux=True)(params, layers)


@pytest.mark.parametrize(
  ('layers', 'dtype'), [(1, 'float32'), (3, 'bfloat16'), (6, 'float32')]
)
@pytest.mark.parametrize(('kind', 'linear', 'mlrf'), _ALL)
def test_gradients_reach_everything_and_stay_finite(
  kind, linear, mlrf, layers, dtype
):
  module = _module(kind, linear, mlrf, layers, compute_dtype=dtype)
  x = normal_layers(layers + 1, dtype=dtype)
  params = noise_parameters(module, x, 0.3)
  for inputs in extreme_layers(x).values():
    gradients, y = _gradients(module, params, inputs)
    assert (y.shape, y.dtype) == (x[0].shape, dtype)
    assert_finite((y, gradients))
  (by_params, by_layers), _ = _gradients(module, params, x)
  first = 0 if mlrf is not None and mlrf.include_embedding else 1
  if layers + 1 - first == 1:
    # The attention over one layer is 1 whatever the scorer says.
    by_params.pop('scorer_hidden', None)
    by_params.pop('scorer_out', None)
  for leaf in jax.tree.leaves((by_params, by_layers[first:])):
    assert np.abs(leaf).max() > 0


@pytest.mark.parametrize(('kind', 'linear', 'mlrf'), _ALL)
def test_bfloat16_is_near_float32(kind, linear, mlrf):
  module = _module(kind, linear, mlrf)
  half = _module(kind, linear, mlrf, compute_dtype='bfloat16')
  x = normal_layers(4, dtype='bfloat16')
  params = noise_parameters(module, x, 0.3)
  np.testing.assert_allclose(
    apply_fusion(half, params, x).astype('float32'),
    apply_fusion(module, params, tuple(z.astype('float32') for z in x)),
    rtol=0.05,
    atol=0.1,
  )
