"""Dynamic linear combination of layers, beside its formula."""

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

from fusion_jax.fusion.dlcl import Dlcl
from fusion_jax.testing import assert_close


def _dlcl(layers, norm, **options):
  config = connection_config(layers, norm, fusion='dlcl', options=options)
  return Dlcl(config, 'encoder')


_MEANS = [[1, 0, 0], [1 / 2, 1 / 2, 0], [1 / 3, 1 / 3, 1 / 3]]


@pytest.mark.parametrize(
  ('options', 'rows'),
  [
    ({}, _MEANS),
    ({'first': 'learned'}, _MEANS),
    ({'window': 2}, [*_MEANS[:2], [0, 1 / 2, 1 / 2]]),
    ({'start': 'one'}, np.tril(np.ones((3, 3)))),
    ({'start': 'top'}, np.eye(3)),
  ],
)
def test_weights_as_they_start(options, rows):
  weights = fresh_parameters(_dlcl(2, 'post', **options))['weights']
  assert_close(weights, np.float32(rows), units=4)


@pytest.mark.parametrize('norm', ['pre', 'post', 'rezero'])
def test_norms_are_there_where_something_reads_them(norm):
  connection = _dlcl(4, norm, period=2, dilation=2)
  # Sums follow layers 0, 2 and 4, of layers 0, 2 and 4.
  norms = [] if norm == 'rezero' else ['norm_2', 'norm_4']
  assert sorted(fresh_parameters(connection)) == [*norms, 'weights']


def test_frozen_weights_have_no_gradient():
  connection = _dlcl(2, 'pre', frozen=True)

  def loss(params, x):
    return (applied(connection, params, x)[0][-1] * normal(5)).sum()

  params = shaken(fresh_parameters(connection))
  gradient, down = jax.jit(jax.grad(loss, (0, 1)))(params, normal())
  assert not np.asarray(gradient.pop('weights')).any()
  assert all(np.asarray(leaf).any() for leaf in jax.tree.leaves(gradient))
  assert np.asarray(down).any()
