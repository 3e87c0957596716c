"""The weights of cross-attention, of every model of the table of `cases`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import CASES, parameters
from tiers import extended_but

from fusion_jax.layers.sow import cross_attention_weights
from fusion_jax.models.transformer import Transformer

_SOURCE = jnp.array([[4, 5, 6, 7, 3], [8, 9, 3, 0, 0]])
_LENGTHS = jnp.array([5, 3])
_TARGET = jnp.array([[7, 6, 3], [9, 8, 3]])


def _weights(config, deterministic=True):
  model = Transformer(config, 11, 11, 2)
  key = jax.random.key(0)
  variables = model.init(key, _SOURCE, _LENGTHS, _TARGET)
  _, kept = model.apply(
    {'params': variables['params']},
    _SOURCE,
    _LENGTHS,
    _TARGET,
    deterministic,
    rngs={'dropout': key},
    mutable=['attention'],
  )
  return cross_attention_weights(kept['attention'])


# Other fusions are no matter of what is in the layers.
_WITH_ATTENTION = 'gtrans', 'multi_layer', 'shortcut', 'scan', 'dlcl', 'dense'


@pytest.mark.parametrize(
  'name',
  parameters(
    [name for name in CASES if name.startswith(_WITH_ATTENTION)],
    ['gtrans', 'multi_layer-2', 'shortcut-both'],
  ),
)
def test_every_model_hands_out_its_weights(name):
  # In training, where all groups of a decoder run.
  config = CASES[name]
  seen = jax.eval_shape(lambda: _weights(config, deterministic=False))
  layers = config.decoder_layers
  assert (seen.shape, seen.dtype) == ((layers, 2, 2, 3, 5), jnp.float32)


@pytest.mark.parametrize(
  ('name', 'layers'),
  extended_but(
    [
      ('multi_layer-gtrans', 3),
      ('gtrans-options-3', 2),
      ('scan-shortcut-cross', 3),
      ('remat-hierarchical', 3),
    ],
    [('gtrans-options-3', 2)],
  ),
)
def test_weights_are_distributions_over_the_source(name, layers):
  # 'gtrans-options-3' predicts with the first group, which has two layers.
  weights = np.asarray(jax.jit(lambda: _weights(CASES[name]))())
  assert weights.shape == (layers, 2, 2, 3, 5)
  np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)
  assert not weights[:, 1, ..., 3:].any()
