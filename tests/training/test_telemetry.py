"""Telemetry of fusions, and warnings of those that do not learn."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fusion_jax.config import (
  ExperimentConfig,
  ModelConfig,
  TrainingConfig,
)
from fusion_jax.config.fusion import (
  AggOptions,
  MlrfOptions,
  MultiLayerOptions,
  RoutingOptions,
  ShortcutOptions,
  SideConfig,
  SurfaceOptions,
)
from fusion_jax.data.batching import (
  Batch,
)
from fusion_jax.models.transformer import (
  Transformer,
  initial_parameters,
)
from fusion_jax.testing import (
  drawn_parameters,
)
from fusion_jax.training.telemetry import (
  LASTING,
  Watch,
  encoder_trouble,
  has_router,
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
_LEXICAL = ShortcutOptions('lexical', where='both')
_FEEDBACK = AggOptions(group_size=3, hidden=4)


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
      SideConfig('em_routing', routing=RoutingOptions(iterations=2)),
      _names('decoder/read_out/coupling_entropy', 2)
      | _names('decoder/read_out/coupling_diversity', 2)
      | {
        f'decoder/read_out/{name}'
        for name in ('vote_size', 'dead_capsules', 'saturated_capsules')
      },
    ),
    (
      SideConfig('hierarchical', agg=_FEEDBACK),
      None,
      _names('encoder/connection/node_1/exploitation', 3),
    ),
    (
      None,
      SideConfig(multi_layer=MultiLayerOptions(layers=2)),
      _names('decoder/layer_2/self_attention/agg/exploitation', 2),
    ),
    (
      SideConfig('hops', mlrf=MlrfOptions(hops=2)),
      None,
      _names('encoder/read_out/hop_attention', 2, 4),
    ),
    (
      None,
      SideConfig('dynamic_combination'),
      _names('decoder/read_out/layer_weights', 3),
    ),
    (
      SideConfig('transparent'),
      None,
      _names('encoder/read_out/weights', 4, 3),
    ),
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
      SideConfig('surface_fusion', surface=SurfaceOptions('learned')),
      _names('decoder/surface/group_weights', 2),
    ),
    (
      None,
      SideConfig(shortcut=_LEXICAL),
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
  seen = _seen(decoder=SideConfig(shortcut=_LEXICAL))
  batch = _BATCH._replace(source=_BATCH.source.at[1, 2].set(5))
  assert _seen(decoder=SideConfig(shortcut=_LEXICAL), batch=batch) == (
    pytest.approx(seen, rel=1e-6)
  )


_TWO_PAIRS = Batch(
  source=jnp.array([[3, 4, 5], [6, 7, 0]]),
  source_lengths=jnp.array([3, 2]),
  target=jnp.array([[8, 9], [10, 3]]),
  target_lengths=jnp.array([2, 2]),
)


def _routed(scheme='dynamic_routing', **options) -> ModelConfig:
  side = SideConfig(fusion=scheme, routing=RoutingOptions(**options))
  return ModelConfig(
    width=8,
    filter=12,
    heads=2,
    encoder_layers=3,
    decoder_layers=1,
    encoder=side,
  )


def _telemetry_of(config: ModelConfig, vote_scale: float):
  """Of a model whose encoder's votes have that scale."""
  model = Transformer(config, 11, 11, 2)
  parameters = drawn_parameters(model)
  read_out = dict(parameters['encoder']['read_out'])
  read_out['votes'] = jax.tree.map(
    lambda leaf: vote_scale * leaf, read_out['votes']
  )
  encoder = parameters['encoder'] | {'read_out': read_out}
  step = make_telemetry_step(model)
  return telemetry_values(step(parameters | {'encoder': encoder}, _TWO_PAIRS))


def test_a_router_that_routes_is_no_trouble():
  for scheme in ('dynamic_routing', 'em_routing'):
    config = _routed(scheme)
    assert has_router(config)
    telemetry = _telemetry_of(config, 1.0)
    assert telemetry['encoder/read_out/vote_size'] > 0
    assert router_troubles(telemetry, config) == {}


@pytest.mark.parametrize(
  ('scale', 'key', 'text'),
  [
    # Products of large votes: the softmax over capsules has one winner.
    (100.0, 'encoder one capsule', 'each layer to one capsule'),
    # Products of small votes: capsules of length 0 agree with nothing.
    (1e-3, 'encoder capsules', 'of the capsules of the encoder are dead'),
  ],
)
def test_a_router_made_dead_by_hand_is_told(scale, key, text):
  config = _routed(form='paper')
  troubles = router_troubles(_telemetry_of(config, scale), config)
  assert list(troubles) == [key]
  assert text in troubles[key]


def test_a_router_that_does_not_choose_is_told():
  # 8 capsules, uniform couplings and capsules that are not small.
  config = _routed(agreement_scale=1e-6)
  troubles = router_troubles(_telemetry_of(config, 1.0), config)
  assert list(troubles) == ['encoder uniform']
  shown = f'{math.log(8):.2f} of {math.log(8):.2f}'
  assert (
    f'does not choose (coupling entropy {shown})' in troubles['encoder uniform']
  )


def test_one_iteration_is_uniform_by_definition():
  config = _routed(iterations=1)
  assert router_troubles(_telemetry_of(config, 1.0), config) == {}


def test_models_without_a_router_are_not_looked_at():
  assert not has_router(ModelConfig())
  assert router_troubles({}, ModelConfig()) == {}


def test_an_encoder_without_a_gradient_is_told():
  config = ExperimentConfig()
  # sqrt(3^2 + 4^2) / 500 = 1 %.
  troubles = encoder_trouble([3.0, 4.0], 500.0, config)
  assert '1.0%' in troubles['starved encoder']
  assert encoder_trouble([3.0, 4.0], 50.0, config) == {}
  frozen = dataclasses.replace(
    config, training=TrainingConfig(freeze=('encoder/*',))
  )
  assert encoder_trouble([0.0, 0.0], 500.0, frozen) == {}


def test_a_trouble_is_told_once_when_it_has_lasted():
  watch, told = Watch(), []
  for step in range(0, 3 * LASTING, 100):
    lines = watch(step, {'a': 'A sentence'})
    told += [(step, line) for line in lines]
  assert [step for step, _ in told] == [LASTING]
  assert told[0][1].startswith('since step 0: A sentence')


def test_a_trouble_that_ends_begins_anew():
  watch = Watch()
  assert watch(0, {'a': 'A'}) == []
  assert watch(LASTING - 1, {}) == []
  assert watch(LASTING, {'a': 'A'}) == []
  (line,) = watch(2 * LASTING, {'a': 'A'})
  assert line.startswith(f'since step {LASTING}: A')
