"""Transparent attention."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from connections import CONTEXT, WIDTH, connection_config, normal, shaken
from flax import linen as nn
from references.parts import layer_norm

from fusion_jax.fusion.transparent import TransparentAttention


def _transparent(layers, norm='post', decoder_layers=4, **side):
  config = dataclasses.replace(
    connection_config(layers, norm, fusion='transparent', **side),
    decoder_layers=decoder_layers,
  )
  return TransparentAttention(config, 'encoder')


def _layers(count):
  return tuple(normal(n) for n in range(count + 1))


def _assert_close(a, b, tolerance=1e-5):
  largest = np.max(np.abs(b), initial=1)
  np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * largest)


def _transparent_params(module, layers):
  init = jax.jit(lambda *a: module.init(jax.random.key(0), a, CONTEXT))
  return nn.unbox(init(*layers))['params']


@pytest.mark.parametrize('layers', [1, 5])
def test_transparent_memories_start_as_the_mean(layers):
  module, states = _transparent(layers), _layers(layers)
  params = _transparent_params(module, states)
  assert params['weights'].shape == (layers + 1, 4)
  memories = module.apply({'params': params}, states, CONTEXT)
  assert memories.shape == (4, *states[0].shape)
  mean = np.mean([layer_norm(states[0]), *states[1:]], axis=0)
  for memory in memories:
    _assert_close(memory, mean)


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
  only_h0 = {**params, 'weights': jnp.zeros((3, 4)).at[0].set(1e4)}
  for memory in module.apply({'params': only_h0}, states, CONTEXT):
    _assert_close(memory, layer_norm(states[0]) if own else states[0])


def test_transparent_weight_on_the_last_layer_is_the_baseline():
  module, states = _transparent(3), _layers(3)
  params = _transparent_params(module, states)
  params['weights'] = jnp.zeros((4, 4)).at[3].set(1e4)
  for memory in module.apply({'params': params}, states, CONTEXT):
    np.testing.assert_array_equal(memory, states[3])


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
  params = jax.tree.map(jnp.asarray, params)
  options = {'memory_norm': True}
  module = _transparent(3, 'rezero', 2, options=options)
  norm = {'scale': normal()[0, 0], 'bias': normal()[0, 1]}
  got = module.apply(
    {'params': {**params, 'memory_norm': norm}}, _layers(3), CONTEXT
  )
  memories = plain.apply({'params': params}, _layers(3), CONTEXT)
  for own, memory in zip(got, memories, strict=True):
    _assert_close(own, layer_norm(memory, norm), 1e-4)
