import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from aggregates import (
  KEY,
  WIDTH,
  apply_fusion,
  noise_parameters,
  normal_layers,
  position,
  tiny_config,
  with_table,
)
from flax import linen as nn

from fusion_jax.fusion.feed_forward import FeedForwardFusion, LayerEmbedding
from fusion_jax.fusion.hops import Hops
from fusion_jax.testing import assert_close

_BOTH = pytest.mark.parametrize(
  ('name', 'kind'), [('feed_forward', FeedForwardFusion), ('hops', Hops)]
)


def test_feed_forward_by_hand():
  options = {'hidden': 2, 'norm': 'none'}
  config = tiny_config('feed_forward', 1, options, width=2, heads=1)
  params = {
    'embedding': {'embedding': jnp.array([[0.0, 1], [-1, 0]])},
    'hidden': {
      'kernel': jnp.array([[1.0, 0], [1, 0], [0, 1], [0, -1]]),
      'bias': jnp.array([0.0, -1]),
    },
    'out': {
      'kernel': jnp.array([[1.0, 2], [5, 5]]),
      'bias': jnp.array([0.0, 1]),
    },
  }
  # With E: (1, 3), (2, 4). relu(4, 2 - 4 - 1) = (4, 0) -> (4, 8 + 1).
  layers = (position(1, 2), position(3, 4))
  y = apply_fusion(with_table(FeedForwardFusion, config), params, layers)
  np.testing.assert_array_equal(y, position(4, 9))


def test_layer_embedding_fits_the_deeper_stack():
  config = tiny_config('feed_forward')
  config = dataclasses.replace(config, encoder_layers=5, width=64)
  table = nn.unbox(LayerEmbedding(config).init(KEY))['params']['embedding']
  assert table.shape == (6, 64)
  assert 0.09 < np.abs(table).max() <= 0.1
  assert abs(table.mean()) < 0.01


@_BOTH
def test_a_shallow_side_reads_the_first_rows(name, kind):
  config = dataclasses.replace(tiny_config(name, 2), encoder_layers=5)
  module, x = with_table(kind, config, 'decoder'), normal_layers(3)
  params = noise_parameters(module, x)
  table = params['embedding']['embedding']
  assert table.shape == (6, WIDTH)
  added = tuple(z + row for z, row in zip(x, table, strict=False))
  rest = {k: v for k, v in params.items() if k != 'embedding'}
  assert_close(
    apply_fusion(module, params, x),
    apply_fusion(kind(config, 'decoder'), rest, added),
  )


@_BOTH
def test_without_layer_embedding_the_table_is_not_read(name, kind):
  config = tiny_config(name, options={'layer_embedding': False})
  assert 'embedding' not in noise_parameters(
    with_table(kind, config), normal_layers(4)
  )


@_BOTH
def test_without_the_embedding_its_row_is_not_read(name, kind):
  config = tiny_config(name, options={'include_embedding': False})
  module, x = with_table(kind, config), normal_layers(4)
  params = noise_parameters(module, x)

  def loss(params, x):
    return (apply_fusion(module, params, x) * x[1]).sum()

  by_params, by_layers = jax.jit(jax.grad(loss, (0, 1)))(params, x)
  table = np.abs(by_params['embedding']['embedding']).sum(1)
  assert table[0] == 0
  assert (table[1:] > 0).all()
  assert not np.any(by_layers[0])


def test_activation_dropout_reaches_the_hidden_layer():
  config = tiny_config('feed_forward', activation_dropout=0.5)
  module, x = with_table(FeedForwardFusion, config), normal_layers(4)
  params = noise_parameters(module, x)
  y, z = (
    apply_fusion(module, params, x, deterministic=d) for d in (True, False)
  )
  assert np.abs(y - z).max() > 0.1
