"""Translating with some groups of a GTRANS decoder."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from copying import make_tokenizer

from fusion_jax.cli.request import with_groups
from fusion_jax.config import ExperimentConfig, ModelConfig
from fusion_jax.config.fusion import SideConfig
from fusion_jax.errors import InputError
from fusion_jax.models.transformer import Transformer, initial_parameters
from fusion_jax.runs.loading import TrainedModel

_TOKENIZER = make_tokenizer()


def _run(fusion='gtrans'):
  model = ModelConfig(
    width=8,
    filter=12,
    heads=2,
    encoder_layers=1,
    decoder_layers=6,
    decoder=SideConfig(fusion=fusion),
  )
  transformer = Transformer(model, 11, 11, 2)
  return TrainedModel(
    ExperimentConfig(model=model),
    transformer,
    initial_parameters(transformer, 0),
    1,
    _TOKENIZER,
    _TOKENIZER,
  )


def _output(run, parameters):
  return run.model.apply(
    {'params': parameters},
    jnp.array([[3, 4]]),
    jnp.array([2]),
    jnp.array([[5, 6]]),
  )


def test_only_the_groups_asked_for_and_the_layers_they_need():
  run = _run()
  everything = _output(run, run.parameters)
  assert everything.features.shape == (3, 1, 2, 8)
  kept = _output(with_groups(run, '1:2'), run.parameters)
  np.testing.assert_array_equal(kept.features, everything.features[:2])
  np.testing.assert_allclose(jnp.exp(kept.log_weights).sum(), 1, rtol=1e-6)
  assert len(kept.decoder_layers) == 1 + 4


def test_layers_above_the_last_group_are_not_read():
  run = with_groups(_run(), '1:1')
  broken = dict(run.parameters)
  broken['decoder'] = dict(broken['decoder'])
  broken['decoder']['layer_2'] = jax.tree.map(
    lambda x: jnp.nan * x, broken['decoder']['layer_2']
  )
  assert np.isfinite(_output(run, broken).features).all()


def test_a_decoder_without_groups_is_refused():
  with pytest.raises(InputError, match="has no groups, its fusion is 'none'"):
    with_groups(_run('none'), '1:1')


def test_groups_that_are_not_there_are_refused():
  with pytest.raises(InputError, match="within 1:3, got '2:4'"):
    with_groups(_run(), '2:4')


def test_training_uses_all_groups():
  run = with_groups(_run(), '1:1')
  shapes = jax.eval_shape(lambda: initial_parameters(run.model, 0))
  assert 'layer_5' in shapes['decoder']
  trained = run.model.apply(
    {'params': run.parameters},
    jnp.array([[3, 4]]),
    jnp.array([2]),
    jnp.array([[5, 6]]),
    False,
    rngs={'dropout': jax.random.key(0)},
  )
  assert trained.features.shape[0] == 3
