"""Dense connections, and a chain."""

import jax.numpy as jnp
import numpy as np
import pytest
from connections import (
  applied,
  assert_close,
  connection_config,
  initial_parameters,
  make_context,
  normal,
  stand_in_layer,
)

from fusion_jax.fusion.connection import LayerConnection
from fusion_jax.fusion.dense import DenseConnection


def test_a_chain_passes_the_last_layer_on():
  layers = (normal(0), normal(1))
  chain = LayerConnection()
  assert chain.layer_input(layers, (), make_context()) == (layers[-1], ())
  assert chain.layer_output(layers, layers[0]) is layers[0]


@pytest.mark.parametrize('layers', [1, 2, 5, 6])
def test_dense_doubles_a_constant(layers):
  connection = DenseConnection(
    connection_config(layers, fusion='dense'), 'encoder'
  )
  assert not initial_parameters(connection, normal())
  states, inputs = applied(
    connection, {}, normal(), lambda number, x: jnp.full_like(x, 3)
  )
  for number in range(1, layers + 1):
    np.testing.assert_array_equal(states[number], 3 * 2.0 ** (number - 1))
  # Layers read the summed states, and so does what follows.
  for state, read in zip(states, inputs, strict=True):
    np.testing.assert_array_equal(state, read)


def test_dense_of_one_layer_is_the_baseline():
  config = connection_config(1, fusion='dense', options={'post_sum_norm': True})
  connection = DenseConnection(config, 'encoder')
  assert not initial_parameters(connection, normal())
  states, _ = applied(connection, {}, normal())
  assert_close(states[1], stand_in_layer(1, normal()))
