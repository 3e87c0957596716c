"""Warnings of routers and encoders that do not learn."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import pytest

from fusion_jax.config import ExperimentConfig, ModelConfig, TrainingConfig
from fusion_jax.config.fusion import SideConfig
from fusion_jax.data.batching import Batch
from fusion_jax.models.transformer import Transformer
from fusion_jax.testing import drawn_parameters
from fusion_jax.training.telemetry import make_telemetry_step, telemetry_values
from fusion_jax.training.watch import (
  LASTING,
  Watch,
  encoder_trouble,
  has_router,
  router_troubles,
)

_BATCH = Batch(
  source=jnp.array([[3, 4, 5], [6, 7, 0]]),
  source_lengths=jnp.array([3, 2]),
  target=jnp.array([[8, 9], [10, 3]]),
  target_lengths=jnp.array([2, 2]),
)


def _config(scheme='dynamic_routing', **options) -> ModelConfig:
  side = SideConfig(scheme, options)
  return ModelConfig(
    width=8,
    filter=12,
    heads=2,
    encoder_layers=3,
    decoder_layers=1,
    encoder=side,
  )


def _telemetry(config: ModelConfig, vote_scale: float):
  """Of a model whose encoder's votes have that scale."""
  model = Transformer(config, 11, 11, 2)
  parameters = drawn_parameters(model)
  read_out = dict(parameters['encoder']['read_out'])
  read_out['votes'] = jax.tree.map(
    lambda leaf: vote_scale * leaf, read_out['votes']
  )
  encoder = parameters['encoder'] | {'read_out': read_out}
  step = make_telemetry_step(model)
  return telemetry_values(step(parameters | {'encoder': encoder}, _BATCH))


def test_a_router_that_routes_is_no_trouble():
  for scheme in ('dynamic_routing', 'em_routing'):
    config = _config(scheme)
    assert has_router(config)
    telemetry = _telemetry(config, 1.0)
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
  config = _config(form='paper')
  troubles = router_troubles(_telemetry(config, scale), config)
  assert list(troubles) == [key]
  assert text in troubles[key]


def test_a_router_that_does_not_choose_is_told():
  # 8 capsules, uniform couplings and capsules that are not small.
  config = _config(agreement_scale=1e-6)
  troubles = router_troubles(_telemetry(config, 1.0), config)
  assert list(troubles) == ['encoder uniform']
  shown = f'{math.log(8):.2f} of {math.log(8):.2f}'
  assert (
    f'does not choose (coupling entropy {shown})' in troubles['encoder uniform']
  )


def test_one_iteration_is_uniform_by_definition():
  config = _config(iterations=1)
  assert router_troubles(_telemetry(config, 1.0), config) == {}


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
