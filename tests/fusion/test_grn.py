"""Generalised residual networks against their equations, in NumPy."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from connections import (
  CONTEXT,
  applied,
  connection_config,
  drawn,
  normal,
  run,
  stand_in_layer,
)
from tiers import extended_but

from fusion_jax.config import ModelConfig
from fusion_jax.config.fusion import SideConfig
from fusion_jax.fusion.grn import Grn
from fusion_jax.layers.attention import LayerInput, residual_of
from fusion_jax.layers.context import AblationMasks
from fusion_jax.models.transformer import (
  Transformer,
  initial_parameters,
  path_name,
)
from fusion_jax.testing import assert_close

_KINDS = 'scalar', 'vector', 'dynamic'


def _config(layers=4, **options) -> ModelConfig:
  side = SideConfig('grn', options)
  return connection_config(layers, decoder=side, fusion='grn', options=options)


def _weight(parameters, layer, way, k, y):
  """b + relu(<w, y>), [..., 1] or [..., D]."""
  b = parameters[f'static_{layer}'][way, k]
  if f'direction_{layer}' not in parameters:
    return b
  w = parameters[f'direction_{layer}'][way]
  return b + np.maximum(np.tensordot(y, w, 1), 0)[..., None]


def _sums(parameters, layer, outputs, last, ways):
  """The input of the next layer, from y_0, y_1 and so on."""
  if last and len(outputs) > last + 1:
    outputs = [outputs[0], sum(outputs[1:-last]), *outputs[-last:]]
  found = [
    sum(_weight(parameters, layer, c, k, y) * y for k, y in enumerate(outputs))
    for c in range(len(parameters[f'static_{layer}']))
  ]
  if len(found) == 1:
    return found[0]
  assert len(found) == ways
  query, key, value = found[-3:]
  return LayerInput(found[0] if ways == 4 else query, query, key, value)


@pytest.mark.parametrize(
  ('kind', 'ways', 'last'),
  [
    *itertools.product(_KINDS, (1, 3, 4), (0,)),
    *(('vector', 1, 1), ('dynamic', 3, 1), ('dynamic', 3, 2)),
  ],
)
def test_against_its_equations(kind, ways, last):
  connection = Grn(_config(kind=kind, ways=ways, last=last), 'encoder')
  parameters = drawn(connection, 0.3)
  inputs, _ = applied(connection, parameters, normal())
  exact = jax.tree.map(np.float64, parameters)
  outputs = [np.float64(normal())]
  for layer in range(5):
    wanted = _sums(exact, layer, outputs, last, ways)
    assert_close(inputs[layer], wanted, units=128)
    state = stand_in_layer(layer + 1, wanted, np)
    outputs.append(state - residual_of(wanted))


@pytest.mark.parametrize('number', [0, 2])
def test_an_output_left_out_is_one_of_weight_0(number):
  connection = Grn(_config(kind='scalar', ways=3), 'encoder')
  parameters = drawn(connection, 0.3)
  without = {
    # What layer 1 reads is no sum.
    key: x.at[:, number].set(0) if 1 < x.shape[1] > number else x
    for key, x in parameters.items()
  }
  masks = AblationMasks(
    np.ones(4, bool), np.arange(5) != number, np.ones(0, bool)
  )
  context = dataclasses.replace(CONTEXT, keep=masks)
  assert_close(
    applied(connection, parameters, normal(), context),
    applied(connection, without, normal()),
    units=64,
  )


# What only attends has a norm, which does not see the factor of a sole output.
# The first sum is the residual, too.
_UNSEEN = {'scalar': {'static_0'}, 'vector': set(), 'dynamic': {'direction_0'}}


@pytest.mark.parametrize(
  ('kind', 'ways'),
  extended_but([('scalar', 4), ('vector', 3), ('dynamic', 3)], [('vector', 3)]),
)
def test_all_that_is_new_learns_from_the_first_step_on(kind, ways):
  model = Transformer(_config(3, kind=kind, ways=ways), 11, 11, 2)
  ids, lengths = jnp.array([[3, 4, 5], [6, 7, 8]]), jnp.array([3, 3])

  def loss(parameters):
    output = model.apply({'params': parameters}, ids, lengths, ids)
    return (output.features * normal()).sum()

  gradient = jax.jit(jax.grad(loss))(initial_parameters(model, 0))
  learns = {}
  for path, leaf in jax.tree_util.tree_leaves_with_path(gradient):
    side, _, name = path_name(path).partition('/connection/')
    if name:
      learns[side, name] = np.abs(leaf).reshape(len(leaf), -1).max(1)
  numbers = range(4)
  names = {f'static_{n}' for n in numbers}
  if kind == 'dynamic':
    names |= {f'direction_{n}' for n in numbers}
  assert {name for _, name in learns} == names
  largest = max(each.max() for each in learns.values())
  for (side, name), found in learns.items():
    seen = found[:1] if name in _UNSEEN[kind] else found
    assert (seen > 1e-5 * largest).all(), (side, name, found)
    assert (found[len(seen) :] < 1e-5 * largest).all(), (side, name, found)


def test_telemetry_and_views_have_the_weights():
  connection = Grn(_config(ways=3, last=2), 'encoder')
  parameters = drawn(connection, 0.3)
  tokens = jnp.array([[True, True, False], [True, False, False]])
  _, kept = connection.apply(
    {'params': parameters},
    normal(),
    dataclasses.replace(CONTEXT, tokens=tokens),
    method=run,
    mutable=['telemetry', 'views'],
  )
  views, telemetry = kept['views'], kept['telemetry']
  assert views.keys() == {f'weights_{n}' for n in range(5)}
  assert [views[f'weights_{n}'].shape[2:] for n in range(5)] == [
    *((3, 1), (3, 2), (3, 3), (3, 4)),
    (1, 4),
  ]
  exact = jax.tree.map(np.float64, parameters)
  first = np.float64(normal())
  wanted = np.stack(
    [_weight(exact, 0, way, 0, first).mean(-1) for way in range(3)], -1
  )
  assert_close(views['weights_0'][..., 0], wanted, units=64)
  read = wanted[np.asarray(tokens)].mean(0)
  for way, value in zip(('query', 'key', 'value'), read, strict=True):
    assert_close(telemetry[f'weights_0_{way}'], value[None], units=64)
  assert telemetry['weights_4_residual'].shape == (4,)
