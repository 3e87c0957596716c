"""SurfaceFusion against loops in NumPy, and what it is equal to."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from numpy_parts import attend, dense, log_softmax, sigmoid

from fusion_jax.config.fusion import SideConfig
from fusion_jax.data.batching import Batch
from fusion_jax.fusion.mixture import mixture_log_probabilities
from fusion_jax.fusion.surface import SurfacePrediction, gated_log_weights
from fusion_jax.layers.attention import padding_mask
from fusion_jax.layers.context import AblationMasks, Context, with_masks
from fusion_jax.models.transformer import (
  OutputLayer,
  Transformer,
  initial_parameters,
  output_logits,
)
from fusion_jax.testing import TINY, assert_close, drawn_parameters
from fusion_jax.training.gradients import batch_loss

_LENGTHS = jnp.array([5, 3])
_MASK = padding_mask(_LENGTHS, 5)
_CONTEXT = Context(_MASK, True, memory_mask=_MASK)
_SOURCE = jnp.array([[4, 5, 6, 7, 8], [9, 10, 3, 0, 0]])
_TARGET = jnp.array([[3, 4, 5], [6, 7, 8]])


def _config(**options):
  side = SideConfig('surface_fusion', options)
  return dataclasses.replace(TINY, decoder=side)


def _normal(*shape, seed=0):
  return jnp.float32(np.random.default_rng(seed).normal(size=shape))


def _predict(module, x, features, embedding):
  return module(x, module.memory(features, embedding), _CONTEXT)


class _Case:
  """A module with random parameters, and what it reads."""

  def __init__(self, bias=False, **options):
    self.module = SurfacePrediction(_config(**options), 'decoder')
    self.inputs = tuple(
      _normal(2, length, 8, seed=seed)
      for seed, length in enumerate((3, 5, 5), start=1)
    )
    fresh = self.module.init(jax.random.key(0), *self.inputs, method=_predict)
    self.parameters = jax.tree.map(
      lambda leaf: 0.4 * _normal(*leaf.shape, seed=leaf.size),
      nn.unbox(fresh)['params'],
    )
    self.output = OutputLayer(
      _normal(11, 8, seed=4), _normal(11, seed=5) if bias else None
    )

  def __call__(self, *inputs):
    return self.module.apply(
      {'params': self.parameters}, *(inputs or self.inputs), method=_predict
    )

  def log_probabilities(self, combine):
    """Of both predictions together, [B T, V]."""
    features, log_weights = self()
    logits = functools.partial(output_logits, output=self.output)
    if log_weights is None:
      return jax.nn.log_softmax(logits(features.reshape(-1, 8)))
    both = features.reshape(2, -1, 8)
    return mixture_log_probabilities(both, log_weights, logits, combine)

  def read(self):
    """r, one position after the other."""
    own = jax.tree.map(np.asarray, self.parameters['attention'])
    x, features, embedding = map(np.asarray, self.inputs)
    heads = attend(
      dense(own['query'], x),
      dense(own['key'], features),
      dense(own['value'], embedding),
      np.asarray(_MASK),
      heads=1,
    )
    return dense(own['out'], heads)


@pytest.mark.parametrize(
  'options',
  [
    {'kind': 'hard'},
    {'kind': 'hard', 'weight': 0.3, 'combine': 'arithmetic'},
    {'kind': 'soft'},
    {'kind': 'soft', 'temperature': 5.0},
    {'kind': 'learned'},
    {'kind': 'learned', 'combine': 'arithmetic'},
    {'kind': 'learned', 'least': 0.0, 'weight': 0.5},
    {'kind': 'hard', 'network': True},
    {'kind': 'soft', 'network': True, 'temperature': 5.0},
    {'kind': 'learned', 'network': True},
  ],
)
@pytest.mark.parametrize('bias', [False, True])
def test_the_formula_position_by_position(options, bias):
  case, expected = _Case(bias, **options), []
  chosen = case.module.config.decoder.options
  table = np.asarray(case.output.table, np.float64)
  offset = np.asarray(case.output.bias) if bias else 0.0
  x, read = np.asarray(case.inputs[0]), case.read()
  for row, place in np.ndindex(2, 3):
    own, source = x[row, place], read[row, place]
    both = np.concatenate([own, source])
    if chosen.network:
      net = jax.tree.map(np.asarray, case.parameters['network'])
      own, source = (
        z + dense(net['out'], np.maximum(dense(net['hidden'], z), 0))
        for z in (own, source)
      )
    scores, surface = table @ own + offset, table @ source
    if chosen.kind == 'soft':
      of_source = log_softmax(surface / chosen.temperature)
      expected.append(log_softmax(scores + of_source))
      continue
    g = chosen.weight
    if chosen.kind == 'learned':
      gate = jax.tree.map(np.asarray, case.parameters['gate'])
      z = dense(gate, both)[0]
      g = chosen.least + (1 - 2 * chosen.least) * sigmoid(z)
    log_p, log_source = log_softmax(scores), log_softmax(surface + offset)
    if chosen.combine == 'geometric':
      expected.append(g * log_p + (1 - g) * log_source)
    else:
      expected.append(np.log(g * np.exp(log_p) + (1 - g) * np.exp(log_source)))
  np.testing.assert_allclose(
    case.log_probabilities(chosen.combine), expected, rtol=1e-5, atol=1e-5
  )


@pytest.mark.parametrize('kind', ['hard', 'soft', 'learned'])
def test_only_the_embeddings_learn_from_what_is_read(kind):
  case = _Case(kind=kind)
  x, features, embedding = case.inputs

  def read(x, features, embedding):
    found, _ = case(x, features, embedding)
    # With 'soft' x is added too; here its gradient must be through r alone.
    r = found - x if kind == 'soft' else found[1]
    return (r * _normal(2, 3, 8, seed=7)).sum()

  by_x, by_features, by_embedding = jax.grad(read, (0, 1, 2))(
    x, features, embedding
  )
  assert_close(by_x, jnp.zeros_like(by_x))
  assert not np.asarray(by_features).any()
  assert np.abs(by_embedding[0]).min() > 0
  # Padding is not read.
  assert not np.asarray(by_embedding[1, 3:]).any()


def test_a_learned_weight_starts_as_the_fixed_one():
  model = Transformer(_config(kind='learned', weight=0.85), 11, 11, 2)
  output = model.apply(
    {'params': initial_parameters(model, 0)}, _SOURCE, _LENGTHS, _TARGET
  )
  assert output.log_weights.shape == (2, 2, 3)
  psi = np.broadcast_to([[[0.85]], [[0.15]]], (2, 2, 3))
  assert_close(jnp.exp(output.log_weights), psi)


@pytest.mark.parametrize('least', [0.0, 0.1])
def test_neither_prediction_loses_all_weight(least):
  gate = jnp.array([[-1e4, -50.0, 0.0, 50.0, 1e4]])
  log_weights = gated_log_weights(gate, least)
  psi = np.exp(log_weights)
  assert_close(psi.sum(0), np.ones((1, 5)))
  assert_close(psi[0, 0], np.array([least, least, 0.5, 1 - least, 1 - least]))
  gradient = jax.grad(lambda gate: gated_log_weights(gate, least).sum())(gate)
  assert np.isfinite(gradient).all()


@pytest.mark.parametrize('norm', ['pre', 'post'])
@pytest.mark.parametrize('kind', ['hard', 'learned'])
def test_a_weight_of_one_is_the_plain_model(norm, kind):
  config = dataclasses.replace(_config(kind=kind), norm=norm)
  model = Transformer(config, 11, 11, 2)
  parameters = drawn_parameters(model)
  whole = AblationMasks(np.ones(3, bool), np.ones(4, bool), np.ones(2, bool))
  own = with_masks(
    parameters, {'decoder': whole._replace(groups=np.array([True, False]))}
  )
  batch = Batch(_SOURCE, _TARGET, _LENGTHS, jnp.array([3, 2]))
  fused, _ = batch_loss(model, own, batch, 0.0, 0)
  plain = model.clone(config=config.without_fusion)
  decoder = {k: v for k, v in parameters['decoder'].items() if k != 'surface'}
  expected, _ = batch_loss(
    plain, {**parameters, 'decoder': decoder}, batch, 0.0, 0
  )
  assert_close(fused.negative_log_likelihood, expected.negative_log_likelihood)


def test_the_embeddings_that_are_read():
  model = Transformer(_config(), 11, 11, 2)
  parameters = drawn_parameters(model)
  encoded = model.apply(
    {'params': parameters}, _SOURCE, _LENGTHS, method='encode'
  )
  bare = parameters['source_embedding'][_SOURCE] * math.sqrt(8)
  assert_close(encoded.embeddings, bare)
  assert np.abs(encoded.layers[0] - bare).max() > 0.1


def test_keys_are_of_what_the_top_layer_reads():
  config = dataclasses.replace(
    _config(), encoder=SideConfig('transparent'), scan_layers=False
  )
  model = Transformer(config, 11, 11, 2)
  parameters = drawn_parameters(model)

  def memories(module, change):
    encoded = module.encode(_SOURCE, _LENGTHS)
    features = encoded.features.at[change].add(1.0)
    encoded = encoded._replace(features=features)
    return module.decoder.memories(encoded, _MASK).surface

  first, second, top = (
    model.apply({'params': parameters}, layer, method=memories).keys
    for layer in range(3)
  )
  assert_close(first, second)
  assert np.abs(first - top).max() > 0.1


def test_the_recorded_weight_is_the_mean_over_tokens():
  model = Transformer(_config(kind='learned'), 11, 11, 2)
  lengths = jnp.array([3, 1])
  output, kept = model.apply(
    {'params': drawn_parameters(model)},
    _SOURCE,
    _LENGTHS,
    _TARGET,
    target_lengths=lengths,
    mutable=['telemetry'],
  )
  psi = np.exp(output.log_weights)
  expected = np.concatenate([psi[:, 0], psi[:, 1, :1]], axis=1).mean(1)
  recorded = kept['telemetry']['decoder']['surface']['group_weights']
  assert_close(recorded, expected)
