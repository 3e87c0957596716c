import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from numpy_parts import dense, layer_norm, multi_head_attention, relu, softmax
from tiers import extended_but

from fusion_jax.config import PRESETS, ModelConfig
from fusion_jax.layers.sow import cross_attention_weights
from fusion_jax.models.transformer import (
  Transformer,
  initial_parameters,
  output_logits,
)
from fusion_jax.testing import assert_close, drawn_parameters

_TINY = dataclasses.replace(
  PRESETS['tiny'], width=16, filter=32, encoder_layers=2, decoder_layers=2
)
_START = 2


def _model(**changes) -> Transformer:
  return Transformer(dataclasses.replace(_TINY, **changes), 40, 40, _START)


def _inputs(seed=0, batch=3, source=7, target=6):
  keys = jax.random.split(jax.random.key(seed))
  return (
    jax.random.randint(keys[0], (batch, source), 4, 40),
    jnp.array([source, source - 3, source - 1])[:batch],
    jax.random.randint(keys[1], (batch, target), 4, 40),
  )


def _logits(model, parameters, *inputs):
  output = model.apply({'params': parameters}, *inputs)
  flat = output.features.reshape(-1, output.features.shape[-1])
  logits = output_logits(flat, output.output)
  return logits.reshape(*inputs[2].shape, -1)


def _count(config: ModelConfig, source: int, target: int) -> int:
  model = Transformer(config, source, target, _START)
  shapes = jax.eval_shape(lambda: initial_parameters(model, 0))
  return sum(x.size for x in jax.tree.leaves(shapes))


@pytest.mark.parametrize(
  ('tied', 'tables'),
  [('none', 3), ('source_target', 2), ('target_output', 2), ('all', 1)],
)
def test_tied_embeddings_share_tables(tied, tables):
  rest = _count(_TINY, 40, 40) - 40 * 16
  config = dataclasses.replace(_TINY, tied_embeddings=tied)
  assert _count(config, 40, 40) == rest + tables * 40 * 16


def test_learned_positions_and_biases_are_counted():
  base = _count(_TINY, 40, 40)
  learned = dataclasses.replace(_TINY, positions='learned', max_positions=64)
  assert _count(learned, 40, 40) == base + 2 * 64 * 16
  no_bias = dataclasses.replace(
    _TINY, attention_bias=False, feedforward_bias=False
  )
  # Attentions: 2 + 4, four biases of 16 each; feed-forwards: 4 of 32 + 16.
  assert _count(no_bias, 40, 40) == base - 6 * 4 * 16 - 4 * 48
  assert (
    _count(dataclasses.replace(_TINY, output_bias=True), 40, 40) == base + 40
  )


def test_every_parameter_has_logical_axes():
  model = _model(positions='learned', output_bias=True, tied_embeddings='none')
  source, lengths, target = _inputs()
  boxed = jax.eval_shape(model.init, jax.random.key(0), source, lengths, target)
  leaves = jax.tree.leaves(
    boxed, is_leaf=lambda x: isinstance(x, nn.LogicallyPartitioned)
  )
  for leaf in leaves:
    assert isinstance(leaf, nn.LogicallyPartitioned)
    assert len(leaf.names) == leaf.value.ndim
    assert None not in leaf.names


@pytest.mark.parametrize('norm', ['pre', 'post'])
def test_every_layer_is_returned(norm):
  model = _model(norm=norm, encoder_layers=3, decoder_layers=2)
  parameters = drawn_parameters(model)
  source, lengths, target = _inputs()
  output = model.apply({'params': parameters}, source, lengths, target)
  chex.assert_shape(output.encoder_layers, (3, 7, 16))
  chex.assert_shape(output.decoder_layers, (3, 6, 16))
  assert len(output.encoder_layers) == 4
  assert len(output.decoder_layers) == 3
  same = np.array_equal(output.features, output.decoder_layers[-1])
  assert same == (norm == 'post')


@pytest.mark.extended
@pytest.mark.parametrize('norm', extended_but(['pre', 'post'], ['pre']))
def test_bfloat16_is_close_and_parameters_stay_float32(norm):
  inputs = _inputs()
  model = _model(norm=norm)
  parameters = initial_parameters(model, 0)
  exact = _logits(model, parameters, *inputs)
  half = _model(norm=norm, compute_dtype='bfloat16')
  chex.assert_trees_all_equal_dtypes(initial_parameters(half, 0), parameters)
  output = half.apply({'params': parameters}, *inputs)
  assert output.features.dtype == jnp.bfloat16
  assert {x.dtype for x in output.encoder_layers} == {jnp.dtype(jnp.bfloat16)}
  close = _logits(half, parameters, *inputs)
  assert close.dtype == jnp.float32
  assert np.abs(close - exact).max() < 0.1


def _reference(params, config, source, target):
  """Logits of one sentence pair and weights over the source, in NumPy."""
  seen = []

  def attention(p, x, memory, causal):
    if memory is not x:
      query, keys = dense(p['query'], x), dense(p['key'], memory)
      heads = (
        np.split(query, config.heads, -1),
        np.split(keys, config.heads, -1),
      )
      size = config.width // config.heads
      seen.append(
        [softmax(q @ k.T / np.sqrt(size)) for q, k in zip(*heads, strict=True)]
      )
    mask = np.tri(len(x), dtype=bool) if causal else True
    return multi_head_attention(p, x[None], memory[None], mask, config.heads)[0]

  def sublayer(p, x, function):
    if config.norm == 'pre':
      return x + function(norm(p['norm'], x))
    return norm(p['norm'], x + function(x))

  def norm(p, x):
    return layer_norm(x, p, config.norm_epsilon)

  def feed_forward(p, x):
    return dense(p['out'], relu(dense(p['hidden'], x)))

  def embed(ids):
    angle = np.arange(len(ids))[:, None] / 10_000 ** (
      np.arange(0, config.width, 2) / config.width
    )
    encoding = np.stack([np.sin(angle), np.cos(angle)], -1)
    return params['source_embedding'][ids] * np.sqrt(
      config.width
    ) + encoding.reshape(len(ids), -1)

  def run(stack, x, memory):
    for index in range(2):
      p = params[stack][f'layer_{index}']
      x = sublayer(
        p['self_attention_residual'],
        x,
        lambda h, p=p: attention(p['self_attention'], h, h, memory is not None),
      )
      if memory is not None:
        x = sublayer(
          p['cross_attention_residual'],
          x,
          lambda h, p=p: attention(p['cross_attention'], h, memory, False),
        )
      x = sublayer(
        p['feed_forward_residual'],
        x,
        lambda h, p=p: feed_forward(p['feed_forward'], h),
      )
    if config.norm == 'pre':
      x = norm(params[stack]['final_norm'], x)
    return x

  memory = run('encoder', embed(source), None)
  decoded = run('decoder', embed([_START, *target[:-1]]), memory)
  return decoded @ params['source_embedding'].T, np.array(seen)


@pytest.mark.parametrize('norm', ['pre', 'post'])
def test_against_an_independent_reference(norm):
  model = _model(norm=norm, initialization='fan_in')
  parameters = drawn_parameters(model)
  source, lengths, target = _inputs(5)
  logits = _logits(model, parameters, source, lengths, target)
  _, kept = model.apply(
    {'params': parameters}, source, lengths, target, mutable=['attention']
  )
  weights = cross_attention_weights(kept['attention'])
  params = jax.tree.map(lambda x: np.asarray(x, np.float64), parameters)
  for row, length in enumerate(lengths.tolist()):
    expected, seen = _reference(
      params, model.config, source[row, :length].tolist(), target[row].tolist()
    )
    assert_close(logits[row], expected)
    assert seen.shape == (2, 2, target.shape[1], length)
    assert_close(weights[:, row, ..., :length], seen)


def test_dropout_changes_training_only():
  model = _model(
    dropout=0.5,
    attention_dropout=0.1,
    activation_dropout=0.1,
    embedding_dropout=0.1,
  )
  parameters = drawn_parameters(model)
  inputs = _inputs()

  def features(seed=None):
    rngs = None if seed is None else {'dropout': jax.random.key(seed)}
    return model.apply(
      {'params': parameters}, *inputs, seed is None, rngs=rngs
    ).features

  np.testing.assert_array_equal(features(), features())
  np.testing.assert_array_equal(features(1), features(1))
  assert np.abs(features(1) - features(2)).max() > 0.1
