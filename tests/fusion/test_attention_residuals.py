"""Attention residuals against their equations, in NumPy."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawn import PASS, drawn, normal
from flax import linen as nn
from numpy_parts import layer_norm

from fusion_jax.config import ModelConfig
from fusion_jax.config.fusion import SideConfig
from fusion_jax.fusion.scheme import scheme_of
from fusion_jax.testing import TINY, assert_close

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
      h, held = residual.before(state, PASS)
      inputs.append(h)
      state = residual.after(state, jnp.tanh(factor * h), PASS, held)
    output = self.state.close(state)
    if self.read is not None:
      output = self.read(state, PASS)
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
  module, x = _Sublayers(config), normal(2, 3, 8)
  parameters = drawn(module.init, x)
  got = jax.jit(module.apply)({'params': parameters}, x)
  p, x = jax.tree.map(np.float64, (parameters, x))
  expected = _reference(p, x, config.decoder.options)
  # Nine sublayers, one on the other.
  jax.tree.map(lambda a, b: assert_close(a, b, units=512), got, expected)
