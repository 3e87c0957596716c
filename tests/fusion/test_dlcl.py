"""Dynamic linear combination of layers."""

import jax
import numpy as np
import pytest
from connections import (
  applied,
  connection_config,
  fresh_parameters,
  normal,
  shaken,
)
from references.parts import layer_norm

from fusion_jax.fusion.dlcl import Dlcl, predecessors


def _assert_close(a, b, tolerance=1e-5):
  largest = np.max(np.abs(b), initial=1)
  np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * largest)


def test_predecessors_written_out():
  np.testing.assert_array_equal(
    predecessors(3, 0), [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
  )
  np.testing.assert_array_equal(
    predecessors(4, 2), [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]
  )
  # After every second layer, every second one below.
  np.testing.assert_array_equal(
    predecessors(5, dilation=2, period=2),
    [
      [1, 0, 0, 0, 0],
      [0, 1, 0, 0, 0],
      [1, 0, 1, 0, 0],
      [0, 0, 0, 1, 0],
      [1, 0, 1, 0, 1],
    ],
  )


def _dlcl(layers, norm, **options):
  config = connection_config(layers, norm, fusion='dlcl', options=options)
  return Dlcl(config, 'encoder')


def test_dlcl_learns_the_weight_of_the_embedding_as_its_release_does():
  connection = _dlcl(3, 'post', first='learned')
  start = fresh_parameters(connection)
  assert start['weights'][0, 0] == 1
  assert start.keys() == fresh_parameters(_dlcl(3, 'post')).keys()
  params = {**start, 'weights': start['weights'].at[0, 0].set(2.5)}
  inputs, _ = applied(connection, params, normal())
  _assert_close(inputs[0], 2.5 * normal())
  gradient, _ = _dlcl_gradient(connection, params)
  assert gradient['weights'][0, 0] != 0


@pytest.mark.parametrize('norm', ['pre', 'post'])
@pytest.mark.parametrize('window', [0, 2])
def test_dlcl_starts_as_the_mean_of_the_predecessors(norm, window):
  connection = _dlcl(4, norm, window=window)
  params = fresh_parameters(connection)
  np.testing.assert_array_equal(params['weights'], np.tril(params['weights']))
  np.testing.assert_allclose(params['weights'].sum(1), 1, rtol=1e-6)
  inputs, states = applied(connection, params, normal())
  np.testing.assert_array_equal(inputs[0], normal())
  for row in range(1, 5):
    read = [np.asarray(state) for state in states[: row + 1]]
    if norm == 'pre':
      read[1:] = map(layer_norm, read[1:])
    mean = np.mean(read[-window:] if window else read, axis=0)
    _assert_close(
      inputs[row], mean if norm == 'pre' else layer_norm(mean), 1e-4
    )


def test_dlcl_start_one_is_a_sum():
  connection = _dlcl(2, 'rezero', start='one')
  params = fresh_parameters(connection)
  assert sorted(params) == ['weights']
  np.testing.assert_array_equal(params['weights'], np.tril(np.ones((3, 3))))
  inputs, states = applied(connection, params, normal())
  _assert_close(inputs[2], states[0] + states[1] + states[2])


def test_dlcl_with_a_window_of_one_is_the_baseline_with_one_norm_more():
  connection = _dlcl(3, 'pre', window=1)
  params = fresh_parameters(connection)
  inputs, states = applied(connection, params, normal())
  for state, read in zip(states[1:], inputs[1:], strict=True):
    _assert_close(read, layer_norm(state))
  # Without its norms nothing is left of it.
  connection = _dlcl(3, 'rezero', window=1)
  inputs, states = applied(connection, fresh_parameters(connection), normal())
  for state, read in zip(states, inputs, strict=True):
    np.testing.assert_array_equal(state, read)


@pytest.mark.parametrize('norm', ['pre', 'post', 'rezero'])
@pytest.mark.parametrize('period', [1, 2, 4])
def test_averages_that_start_with_the_top_are_the_baseline(norm, period):
  connection = _dlcl(4, norm, norms='none', start='top', period=period)
  params = fresh_parameters(connection)
  assert sorted(params) == ['weights']
  inputs, states = applied(connection, params, normal())
  for state, read in zip(states, inputs, strict=True):
    np.testing.assert_array_equal(state, read)
  gradient, _ = _dlcl_gradient(connection, params)
  read = [row for row in range(1, 5) if row % period == 0]
  assert np.abs(gradient['weights'][4, :]).min() > 0
  assert np.flatnonzero(np.abs(gradient['weights']).sum(1)).tolist() == read


@pytest.mark.parametrize('norm', ['pre', 'post'])
def test_norms_are_there_where_something_reads_them(norm):
  connection = _dlcl(4, norm, period=2, dilation=2)
  # Sums follow layers 0, 2 and 4, of layers 0, 2 and 4.
  assert sorted(fresh_parameters(connection)) == ['norm_2', 'norm_4', 'weights']


def _dlcl_gradient(connection, params):
  def loss(params, x):
    output = applied(connection, params, x)[0][-1]
    return (output * normal(5)).sum()

  return jax.jit(jax.grad(loss, (0, 1)))(params, normal())


@pytest.mark.parametrize('norm', ['pre', 'post', 'rezero'])
def test_dlcl_gradient_is_there_for_predecessors_only(norm):
  connection = _dlcl(2, norm, window=2)
  gradient, down = _dlcl_gradient(
    connection, shaken(fresh_parameters(connection))
  )
  read = predecessors(3, 2)
  read[0, 0] = norm != 'post'
  np.testing.assert_array_equal(gradient['weights'] != 0, read)
  assert all(np.asarray(leaf).any() for leaf in jax.tree.leaves(gradient))
  assert np.asarray(down).any()


def test_frozen_dlcl_weights_have_no_gradient():
  connection = _dlcl(2, 'pre', frozen=True)
  gradient, down = _dlcl_gradient(
    connection, shaken(fresh_parameters(connection))
  )
  assert not np.asarray(gradient.pop('weights')).any()
  assert all(np.asarray(leaf).any() for leaf in jax.tree.leaves(gradient))
  assert np.asarray(down).any()
