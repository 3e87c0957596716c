"""Telemetry of fusions, and warnings of those that do not learn."""

import jax.numpy as jnp
import numpy as np
import pytest
from cases import reading

from fusion_jax.config import ModelConfig
from fusion_jax.config.fusion import SideConfig
from fusion_jax.data.batching import Batch
from fusion_jax.models.transformer import Transformer, initial_parameters
from fusion_jax.testing import drawn_parameters
from fusion_jax.training.telemetry import (
  Watch,
  make_telemetry_step,
  router_troubles,
  telemetry_values,
)

_BATCH = Batch(
  source=jnp.array([[4, 5, 3], [6, 3, 0]]),
  target=jnp.array([[7, 8, 3], [9, 3, 0]]),
  source_lengths=jnp.array([3, 2]),
  target_lengths=jnp.array([3, 2]),
)
_LEXICAL = reading('shortcut', where='both')
_FEEDBACK = {'group_size': 3, 'hidden': 4}


def _seen(
  encoder=None, decoder=None, batch=_BATCH, start=drawn_parameters, **fields
):
  config = ModelConfig(
    width=8,
    filter=12,
    heads=2,
    encoder_layers=3,
    decoder_layers=3,
    encoder=encoder or SideConfig(),
    decoder=decoder or SideConfig(),
    **fields,
  )
  model = Transformer(config, 10, 10, 2)
  step = make_telemetry_step(model)
  return telemetry_values(step(start(model), batch))


def _names(prefix, *counts):
  return {'_'.join((prefix, *map(str, i))) for i in np.ndindex(*counts)}


def test_a_model_without_fusion_has_none():
  assert _seen() == {}


@pytest.mark.parametrize(
  ('encoder', 'decoder', 'expected'),
  [
    (
      SideConfig('gtrans'),
      SideConfig('gtrans'),
      _names('encoder/read_out/group_weights', 1)
      | _names('decoder/prediction/layer_weights', 3)
      | _names('decoder/prediction/group_weights', 2),
    ),
    (
      None,
      SideConfig('em_routing', {'iterations': 2}),
      _names('decoder/read_out/coupling_entropy', 2)
      | _names('decoder/read_out/coupling_diversity', 2)
      | {
        f'decoder/read_out/{name}'
        for name in ('vote_size', 'dead_capsules', 'saturated_capsules')
      },
    ),
    (
      SideConfig('hierarchical', _FEEDBACK),
      None,
      _names('encoder/connection/node_1/exploitation', 3),
    ),
    (
      None,
      reading('multi_layer'),
      _names('decoder/layer_2/self_attention/agg/exploitation', 2),
    ),
    (SideConfig('transparent'), None, _names('encoder/read_out/weights', 4, 3)),
    (
      None,
      SideConfig('dlcl'),
      {
        name
        for row in (1, 2, 3)
        for name in _names(f'decoder/connection/weights_{row}', row + 1)
      },
    ),
    (
      None,
      SideConfig(skip_gains=True),
      {
        f'decoder/layer_{layer}/{name}_residual/skip_gain'
        for layer in range(3)
        for name in ('self_attention', 'cross_attention', 'feed_forward')
      },
    ),
    (
      None,
      _LEXICAL,
      {
        f'decoder/layer_{layer}/{kind}_attention/{gate}_gate'
        for layer in range(3)
        for kind in ('self', 'cross')
        for gate in ('key', 'value')
      },
    ),
  ],
)
def test_what_is_recorded(encoder, decoder, expected):
  seen = _seen(encoder, decoder)
  assert seen.keys() == expected
  assert all(np.isfinite(value) for value in seen.values())


@pytest.mark.parametrize('norm', ['pre', 'post'])
def test_dlcl_weights_are_those_of_the_sums(norm):
  seen = _seen(
    SideConfig('dlcl'),
    start=lambda model: initial_parameters(model, 0),
    norm=norm,
  )
  for row in (1, 2, 3):
    for column in range(row + 1):
      name = f'encoder/connection/weights_{row}_{column}'
      assert seen[name] == pytest.approx(1 / (row + 1))


def test_transparent_weights_of_a_layer_sum_to_one():
  def peaked(model):
    parameters = drawn_parameters(model)
    weights = parameters['encoder']['read_out']['weights']
    peak = weights.at[2, 1].set(50.0)
    read_out = {**parameters['encoder']['read_out'], 'weights': peak}
    encoder = {**parameters['encoder'], 'read_out': read_out}
    return {**parameters, 'encoder': encoder}

  seen = _seen(SideConfig('transparent'), start=peaked)
  name = 'encoder/read_out/weights_{}_{}'.format
  assert seen[name(2, 1)] == pytest.approx(1)
  for layer in range(3):
    total = sum(seen[name(state, layer)] for state in range(4))
    assert total == pytest.approx(1)


def test_padding_has_no_share_in_the_gates_of_cross_attention():
  seen = _seen(decoder=_LEXICAL)
  batch = _BATCH._replace(source=_BATCH.source.at[1, 2].set(5))
  assert _seen(decoder=_LEXICAL, batch=batch) == (pytest.approx(seen, rel=1e-6))


@pytest.mark.parametrize(
  ('entropy', 'dead', 'message'),
  [
    (3.0, 0.95, '95% of the capsules of the encoder are dead'),
    (0.01, 0.0, 'the router of the encoder sends each layer to one capsule'),
    (4.1589, 0.0, 'the router of the encoder does not choose'),
    (3.0, 0.0, ''),
  ],
)
def test_a_router_that_does_not_route_is_told_once(entropy, dead, message):
  side = SideConfig('em_routing', {'iterations': 2, 'capsules': 64})
  config = ModelConfig(width=64, heads=1, encoder=side)
  seen = {'coupling_entropy_1': entropy, 'dead_capsules': dead}
  seen = {f'encoder/read_out/{name}': value for name, value in seen.items()}
  watch, told = Watch(), []
  for step in range(0, 700, 100):
    told += watch(step, router_troubles(seen, config))
  assert [message in line for line in told] == [True] * bool(message)
