import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiers import extended_but

from fusion_jax.config import PRESETS
from fusion_jax.layers.sow import cross_attention_weights
from fusion_jax.models.transformer import Transformer, shift_right
from fusion_jax.testing import assert_close, drawn_parameters
from fusion_jax.training.warm_start import stacked

_LAYERS = 2
_TINY = dataclasses.replace(
  PRESETS['tiny'],
  width=16,
  filter=32,
  encoder_layers=1,
  decoder_layers=_LAYERS,
  initialization='fan_in',
)
_START = 2
_LENGTHS = jnp.array([5, 3])
_SOURCE = jnp.array([[4, 5, 6, 7, 3], [8, 9, 3, 0, 0]])
_TARGET = jnp.array([[7, 6, 5, 3], [9, 8, 7, 3]])


def _model(**changes) -> Transformer:
  return Transformer(dataclasses.replace(_TINY, **changes), 12, 12, _START)


def _seen(model, parameters, deterministic=True):
  @jax.jit
  def forward(parameters):
    _, kept = model.apply(
      {'params': parameters},
      _SOURCE,
      _LENGTHS,
      _TARGET,
      deterministic,
      rngs=None if deterministic else {'dropout': jax.random.key(1)},
      mutable=['attention'],
    )
    return cross_attention_weights(kept['attention'])

  return np.asarray(forward(parameters))


@pytest.fixture(scope='module')
def parameters():
  return drawn_parameters(_model())


@pytest.fixture(scope='module')
def weights(parameters):
  return _seen(_model(), parameters)


@pytest.mark.parametrize(
  ('scan', 'remat'), [(True, False), (True, True), (False, True)]
)
def test_layers_run_otherwise_give_the_same(parameters, weights, scan, remat):
  own = stacked(parameters) if scan else parameters
  found = _seen(_model(scan_layers=scan, remat=remat), own)
  assert_close(found, weights)


def test_weights_are_those_before_dropout(parameters):
  # Half of the weights would be 0, and no row would sum to 1.
  found = _seen(_model(attention_dropout=0.5), parameters, deterministic=False)
  np.testing.assert_allclose(found.sum(-1), 1, rtol=1e-5)
  assert found[:, 0].min() > 0


def test_weights_are_float32_in_a_model_of_bfloat16(parameters, weights):
  found = _seen(_model(compute_dtype='bfloat16'), parameters)
  assert found.dtype == np.float32
  np.testing.assert_allclose(found, weights, atol=0.05)


def test_nothing_is_kept_unless_it_is_asked_for(parameters):
  model = _model()
  _, kept = model.apply(
    {'params': parameters}, _SOURCE, _LENGTHS, _TARGET, mutable=['telemetry']
  )
  assert kept == {}
  started = model.init(jax.random.key(0), _SOURCE, _LENGTHS, _TARGET)
  assert 'attention' not in started


@pytest.mark.parametrize('scan', extended_but([False, True], [False]))
def test_steps_of_decoding_give_those_of_the_pass(parameters, weights, scan):
  model, beam = _model(scan_layers=scan), 2
  variables = {'params': stacked(parameters) if scan else parameters}
  encoded = model.apply(variables, _SOURCE, _LENGTHS, method='encode')
  cache, memory = model.apply(
    variables, encoded, _LENGTHS, beam, 4, method='start_decoding'
  )

  @jax.jit
  def step(tokens, position, cache):
    (_, cache), kept = model.apply(
      variables,
      tokens,
      position,
      rows,
      cache,
      memory,
      method='decode_step',
      mutable=['attention'],
    )
    return cache, cross_attention_weights(kept['attention'])

  own = jnp.arange(beam, dtype=jnp.int32)[:, None]
  rows = jnp.broadcast_to(own, (2, beam, 4))
  for position, newest in enumerate(shift_right(_TARGET, _START).T):
    tokens = jnp.stack([newest] * beam, 1)
    cache, found = step(tokens, jnp.int32(position), cache)
    assert found.shape == (_LAYERS, 2, 2, beam, 5)
    expected = weights[:, :, :, position, None]
    assert_close(found, np.repeat(expected, beam, axis=3))


def test_layers_come_in_the_order_of_their_numbers():
  names = [f'layer_{index}' for index in (10, 9, 2, 0, 1)]
  collection = {
    'decoder': {
      name: {'cross_attention': {'weights': jnp.full((1, 1, 1, 1), index)}}
      for index, name in zip((10.0, 9.0, 2.0, 0.0, 1.0), names, strict=True)
    }
  }
  found = cross_attention_weights(collection)
  np.testing.assert_array_equal(found.reshape(-1), [0, 1, 2, 9, 10])
