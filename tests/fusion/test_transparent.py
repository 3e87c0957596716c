"""Transparent attention, beside its formula."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from connections import CONTEXT, WIDTH, connection_config, normal, shaken
from flax import linen as nn
from numpy_parts import layer_norm

from fusion_jax.fusion.transparent import TransparentAttention
from fusion_jax.testing import assert_close


def _transparent(layers, norm='post', decoder_layers=4, **side):
  config = dataclasses.replace(
    connection_config(layers, norm, fusion='transparent', **side),
    decoder_layers=decoder_layers,
  )
  return TransparentAttention(config, 'encoder')


def _layers(count):
  return tuple(normal(n) for n in range(count + 1))


def _transparent_params(module, layers):
  init = jax.jit(lambda *a: module.init(jax.random.key(0), a, CONTEXT))
  return nn.unbox(init(*layers))['params']


@pytest.mark.parametrize(
  ('norm', 'input_norm', 'own'),
  [
    ('post', 'auto', True),
    ('pre', 'auto', False),
    ('pre', 'none', True),
    ('post', 'per_layer', False),
    ('rezero', 'auto', False),
  ],
)
def test_transparent_attention_normalises_the_embedding_once(
  norm, input_norm, own
):
  module, states = _transparent(2, norm, input_norm=input_norm), _layers(2)
  params = _transparent_params(module, states)
  assert ('embedding_norm' in params) == own
  # The memory of each layer of the decoder starts as the mean.
  np.testing.assert_array_equal(params['weights'], np.zeros((3, 4)))
  only_h0 = {**params, 'weights': jnp.zeros((3, 4)).at[0].set(1e4)}
  for memory in module.apply({'params': only_h0}, states, CONTEXT):
    assert_close(memory, layer_norm(states[0]) if own else states[0])


@pytest.mark.parametrize(
  ('place', 'kept_as', 'dropped_as'),
  [
    # Kept, the logit ln 2 doubles: 4 / (4 + 1). Dropped, it is 0: 1 / 2.
    ('logits', 4 / 5, 1 / 2),
    # The share 2 / 3, kept and doubled, or dropped.
    ('weights', 4 / 3, 0),
  ],
)
def test_transparent_dropout_by_its_place(place, kept_as, dropped_as):
  options = {'dropout': 0.5, 'dropout_place': place}
  module = _transparent(1, 'rezero', 300, options=options)
  one, zero = jnp.ones((2, 3, WIDTH)), jnp.zeros((2, 3, WIDTH))
  params = {'weights': jnp.zeros((2, 300)).at[0].set(np.log(2))}
  memories = module.apply(
    {'params': params},
    (one, zero),
    dataclasses.replace(CONTEXT, deterministic=False),
    rngs={'dropout': jax.random.key(0)},
  )
  kept = np.isclose(memories, kept_as)
  assert (kept | np.isclose(memories, dropped_as)).all()
  # 300 draws of one half: 0.38 is four deviations away.
  assert 0.38 < kept.mean() < 0.62
  plain = module.apply({'params': params}, (one, zero), CONTEXT)
  np.testing.assert_allclose(plain, 2 / 3, rtol=1e-6)


def test_transparent_memories_can_have_a_norm():
  plain = _transparent(3, 'rezero', 2)
  params = shaken(_transparent_params(plain, _layers(3)))
  options = {'memory_norm': True}
  module = _transparent(3, 'rezero', 2, options=options)
  norm = {'scale': normal()[0, 0], 'bias': normal()[0, 1]}
  got = module.apply(
    {'params': {**params, 'memory_norm': norm}}, _layers(3), CONTEXT
  )
  memories = plain.apply({'params': params}, _layers(3), CONTEXT)
  for own, memory in zip(got, memories, strict=True):
    assert_close(own, layer_norm(memory, norm), units=512)
