"""Attention residuals against their equations, in NumPy."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from hypothesis import given, settings
from hypothesis import strategies as st
from references.parts import layer_norm

from fusion_jax.config import ModelConfig
from fusion_jax.config.fusion import SideConfig
from fusion_jax.fusion.attention_residuals import (
  source_scores,
  weighted_sources,
)
from fusion_jax.fusion.scheme import scheme_of
from fusion_jax.layers.attention import causal_mask
from fusion_jax.layers.context import Context
from fusion_jax.testing import TINY, assert_close

_PASS = Context(causal_mask(1), deterministic=True)
_LAYERS = 3
_FACTORS = 1.0, -0.7, 2.0


def _config(**options):
  side = SideConfig('attention_residuals', options)
  return dataclasses.replace(
    TINY, norm='pre', decoder_layers=_LAYERS, decoder=side
  )


class _Sublayers(nn.Module):
  """A decoder whose sublayers are f_s(h) = tanh(c_s h)."""

  config: ModelConfig

  def setup(self):
    plug = scheme_of(self.config, 'decoder').residual
    self.state = plug.state(self.config, 'decoder')
    self.residuals = [
      plug.module(self.config, 'decoder', number)
      for number in range(3 * _LAYERS)
    ]
    self.read = plug.read(self.config, 'decoder')

  def __call__(self, x):
    state, inputs = self.state.open(x), []
    for residual, factor in zip(
      self.residuals, _FACTORS * _LAYERS, strict=True
    ):
      h, held = residual.before(state, _PASS)
      inputs.append(h)
      state = residual.after(state, jnp.tanh(factor * h), _PASS, held)
    output = self.state.close(state)
    if self.read is not None:
      output = self.read(state, _PASS)
    return inputs, output


def _mean(parameters, sources, heads):
  """Weighted mean of the sources, part by part."""
  if len(sources) == 1:
    return sources[0]
  query = parameters['query'] * parameters['key_scale']
  read = np.zeros_like(sources[0])
  for part in np.split(np.arange(len(query)), heads):
    logits = [
      (v / np.sqrt(np.square(v).mean(-1, keepdims=True) + 1e-6))[..., part]
      @ query[part]
      for v in sources
    ]
    exp = np.exp(logits)
    for a, v in zip(exp / exp.sum(0), sources, strict=True):
      read[..., part] += a[..., None] * v[..., part]
  return read


def _attended(p, x, outputs, block, options):
  """What a place reads that has these outputs below it."""
  sums = [sum(outputs[i : i + block]) for i in range(0, len(outputs), block)]
  if options.kind == 'replace':
    sources = [x, *sums]
    return len(sources) * _mean(p.get('attention'), sources, options.heads)
  h = x + sum(sums, np.zeros_like(x))
  if not sums:
    return h
  if options.embedding:
    sums = [x, *sums]
  return h + p['gate'] * _mean(p.get('attention'), sums, options.heads)


def _reference(p, x, options):
  inputs, outputs, whole = [], [], []
  for number in range(3 * _LAYERS):
    own = p[f'residuals_{number}']
    if options.sources == 'sublayer':
      h = _attended(own, x, outputs, options.block, options)
    elif number % 3 == 0:
      whole = [sum(outputs[i : i + 3]) for i in range(0, len(outputs), 3)]
      h = _attended(own, x, whole, options.block, options)
    else:
      h = h + outputs[-1]
    inputs.append(layer_norm(h, own['norm']))
    outputs.append(np.tanh(_FACTORS[number % 3] * inputs[-1]))
  if options.kind == 'delta':
    return inputs, x + sum(outputs)
  count = 3 if options.sources == 'layer' else 1
  return inputs, _attended(
    p['read'], x, outputs, options.block * count, options
  )


def _normal(*shape, seed=0):
  return jnp.float32(np.random.default_rng(seed).normal(size=shape))


def _parameters(module, x):
  shapes = nn.unbox(jax.eval_shape(module.init, jax.random.key(0), x))
  random = np.random.default_rng(7)
  return jax.tree.map(
    lambda leaf: jnp.float32(random.normal(0, 0.5, leaf.shape)),
    shapes['params'],
  )


@pytest.mark.parametrize(
  'kind', ['replace', 'delta', pytest.param('delta-embedding', id='embedding')]
)
@pytest.mark.parametrize(
  'options',
  [
    {},
    {'block': 2},
    {'block': 9, 'heads': 4},
    {'sources': 'layer', 'heads': 2},
    {'sources': 'layer', 'block': 2},
  ],
  ids=str,
)
def test_against_its_equations(kind, options):
  kind, _, embedding = kind.partition('-')
  config = _config(kind=kind, embedding=bool(embedding), **options)
  module, x = _Sublayers(config), _normal(2, 3, 8)
  parameters = _parameters(module, x)
  got = jax.jit(module.apply)({'params': parameters}, x)
  p, x = jax.tree.map(np.float64, (parameters, x))
  expected = _reference(p, x, config.decoder.options)
  # Nine sublayers, one on the other.
  jax.tree.map(lambda a, b: assert_close(a, b, units=512), got, expected)


@pytest.mark.parametrize(
  'options', [{}, {'block': 2}, {'sources': 'layer'}, {'kind': 'delta'}]
)
def test_without_queries_it_is_the_plain_residual(options):
  x = _normal(2, 3, 8)
  plain = _Sublayers(_config()).clone(
    config=dataclasses.replace(_config(), decoder=SideConfig())
  )
  fused = _Sublayers(_config(**options))
  variables = nn.unbox(fused.init(jax.random.key(0), x))
  wanted = plain.apply(nn.unbox(plain.init(jax.random.key(0), x)), x)
  got = fused.apply(variables, x)
  jax.tree.map(lambda a, b: assert_close(a, b, units=64), got, wanted)


def test_differences_are_added_to_the_plain_residual_from_0_on():
  x = _normal(2, 3, 8)
  module = _Sublayers(_config(kind='delta'))
  variables = nn.unbox(module.init(jax.random.key(0), x))['params']
  gates = [own['gate'] for own in variables.values() if 'gate' in own]
  assert gates == [0] * 8


def _weights(query, sources):
  scores = source_scores(query, sources, 2, 0.0)
  assert scores.max() <= 1
  return scores / scores.sum(0)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 4), st.floats(0.1, 1000), st.integers(0, 99))
def test_weights_sum_to_one_and_see_no_size(count, size, seed):
  query = _normal(8, seed=seed)
  sources = tuple(_normal(2, 3, 8, seed=seed + n) for n in range(count))
  weights = _weights(query, sources)
  assert_close(weights.sum(0), np.ones((2, 3, 2)))
  grown = (size * sources[0], *sources[1:])
  assert_close(_weights(query, grown), weights, units=64)
  turned = _weights(query, sources[::-1])
  assert_close(turned, weights[::-1])


def test_a_mean_by_hand():
  # Logits log(3) and -log(3) of the first half, 0 and 0 of the second.
  query = jnp.array([np.log(3.0), 0.0])
  sources = jnp.array([[[1.0, 1.0]]]), jnp.array([[[-2.0, 2.0]]])
  weights = _weights(query, sources)
  np.testing.assert_allclose(weights[:, 0, 0], [[0.9, 0.5], [0.1, 0.5]], 1e-6)
  for scale in 1.0, 3.0:
    read = weighted_sources(scale * weights, sources)
    np.testing.assert_allclose(read, 2 * np.array([[[0.7, 1.5]]]), rtol=1e-6)
