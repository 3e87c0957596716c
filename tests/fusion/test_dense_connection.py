"""Dense connections, and a chain."""

import jax.numpy as jnp
import numpy as np
import pytest
from connections import (
  CONTEXT,
  applied,
  connection_config,
  fresh_parameters,
  normal,
)

from fusion_jax.fusion.connection import LayerConnection
from fusion_jax.fusion.dense import DenseConnection


def test_a_chain_passes_the_last_layer_on():
  layers = (normal(0), normal(1))
  chain = LayerConnection()
  assert chain.layer_input(layers, (), CONTEXT) == (layers[-1], ())
  assert chain.layer_output(layers, layers[0]) is layers[0]


@pytest.mark.parametrize('layers', [1, 2, 5, 6])
def test_dense_doubles_a_constant(layers):
  connection = DenseConnection(
    connection_config(layers, fusion='dense'), 'encoder'
  )
  assert not fresh_parameters(connection)
  inputs, states = applied(
    connection, {}, normal(), CONTEXT, lambda number, x: jnp.full_like(x, 3)
  )
  for number in range(1, layers + 1):
    np.testing.assert_array_equal(states[number], 3 * 2.0 ** (number - 1))
  # Layers read the summed states, and so does what follows.
  for state, read in zip(states, inputs, strict=True):
    np.testing.assert_array_equal(state, read)
