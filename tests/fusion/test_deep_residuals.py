"""B2T connection and DeepNorm against their equations, in NumPy."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import ATTENTION, CASES
from drawn import PASS, drawn, normal
from flax import linen as nn
from numpy_parts import layer_norm
from tiers import extended_but

from fusion_jax.config import ModelConfig, Side
from fusion_jax.fusion import plugs
from fusion_jax.fusion.residuals import PLAIN, with_initial_gains
from fusion_jax.layers.attention import causal_mask
from fusion_jax.layers.context import Context, Keys, KeyValue
from fusion_jax.models.transformer import (
  Transformer,
  initial_parameters,
  path_name,
)
from fusion_jax.testing import TINY, assert_close

_SUBLAYERS = {'encoder': 2, 'decoder': 3}


def _config(residual):
  depths = {'encoder_layers': 2, 'decoder_layers': 4}
  return dataclasses.replace(TINY, residual=residual, **depths)


class _Sublayers(nn.Module):
  """Two layers of sublayers f_s(x) = tanh((s + 1) x)."""

  config: ModelConfig
  side: Side

  def setup(self):
    self.residuals = [
      PLAIN.module(self.config, self.side, number)
      for number in range(2 * _SUBLAYERS[self.side])
    ]

  def __call__(self, x):
    for number, residual in enumerate(self.residuals):
      y = jnp.tanh((number + 1) * residual.before(x, PASS)[0])
      x = residual.after(x, y, PASS)
    return x


def _reference(residual, side, norms, x):
  """With 2 encoder and 4 decoder layers, as Wang et al. (2022), Table 1."""
  alpha = {'encoder': 0.81 * (2**4 * 4) ** (1 / 16), 'decoder': 12**0.25}
  factor = alpha[side] if residual == 'deepnorm' else 1
  count = _SUBLAYERS[side]
  for number, norm in enumerate(norms):
    if number % count == 0:
      bottom = x
    total = factor * x + np.tanh((number + 1) * x)
    if residual == 'b2t' and number % count == count - 1:
      total = total + bottom
    x = layer_norm(total, norm)
  return x


@pytest.mark.parametrize('side', ['encoder', 'decoder'])
@pytest.mark.parametrize('residual', ['plain', 'b2t', 'deepnorm'])
def test_against_its_equations(residual, side):
  module = _Sublayers(_config(residual), side)
  x = normal(2, 3, 8)
  parameters = drawn(module.init, x, scale=1.0)
  got = module.apply({'params': parameters}, x)
  p, x = jax.tree.map(np.float64, (parameters, x))
  norms = [p[f'residuals_{number}']['norm'] for number in range(len(p))]
  assert_close(got, _reference(residual, side, norms, x), units=512)


# (2^4 4)^(1/16) = 64^(1/16), and 12 x 4 = 48.
_BETA = {'encoder': 0.87 * 64 ** (-1 / 16), 'decoder': 48**-0.25}


def _gain(residual, name):
  parts = name.split('/')
  if parts[-1] != 'kernel' or not parts[1].startswith('layer'):
    return 1
  if residual == 'b2t':
    return {'encoder': 2**-0.5, 'decoder': 4**-0.5}[parts[0]]
  return _BETA[parts[0]] if parts[-2] not in ('query', 'key') else 1


@pytest.mark.parametrize('scan', extended_but([False, True], [False]))
@pytest.mark.parametrize('residual', ['b2t', 'deepnorm'])
def test_matrices_start_smaller(residual, scan):
  def started(kind):
    config = dataclasses.replace(_config(kind), scan_layers=scan)
    model = Transformer(config, 11, 11, 2)
    found = jax.tree_util.tree_leaves_with_path(initial_parameters(model, 0))
    return {path_name(path): leaf for path, leaf in found}

  plain, scaled = started('plain'), started(residual)
  assert plain.keys() == scaled.keys()
  for name, leaf in plain.items():
    np.testing.assert_allclose(
      scaled[name], _gain(residual, name) * leaf, rtol=1e-6, err_msg=name
    )


_SCALED = {
  name: dataclasses.replace(
    config, residual='deepnorm', encoder_layers=4, decoder_layers=4
  )
  for name, config in CASES.items()
  if name in ATTENTION and config.norm == 'post'
}


class _Attention(nn.Module):
  """The self-attentions of decoder layers 1 and 3, and a cross-attention."""

  config: ModelConfig

  def setup(self):
    self.first = plugs.self_attention(self.config, 'decoder', 1)
    self.third = plugs.self_attention(self.config, 'decoder', 3)
    self.cross_attention = plugs.cross_attention(self.config, 3)

  def __call__(self, layers):
    h, mask = layers[-1], causal_mask(layers[-1].shape[1])
    context = Context(mask, deterministic=True)
    outputs = [
      attention.attend(h, h, layers, context)
      for attention in (self.first, self.third)
    ]
    memory = self.cross_attention.memory(layers[1], layers[0])
    if isinstance(memory, Keys):
      memory = KeyValue(memory.keys, context.caches.first_values)
    return *outputs, self.cross_attention(h, memory, mask, True)


@pytest.mark.parametrize('name', extended_but(_SCALED, list(_SCALED)[:1]))
def test_deep_norm_scales_what_the_output_of_an_attention_grows_with(
  name, monkeypatch
):
  # Of 1e4 times a map of queries or keys the softmax makes weights of sum 1.
  # Norms inside an attention would hide what grows, and so does the sigmoid of
  # AGG's feed-forward network.
  monkeypatch.setattr(nn.LayerNorm, '__call__', lambda self, x: x)
  config, random = _SCALED[name], np.random.default_rng(0)
  layers = tuple(jnp.float32(random.normal(size=(3, 2, 3, config.width))))
  module = _Attention(config)
  parameters = nn.unbox(module.init(jax.random.key(0), layers))['params']
  parameters = jax.tree.map(
    lambda leaf: jnp.float32(random.normal(size=leaf.shape)), parameters
  )
  scaled = with_initial_gains(config, {'decoder': {'layer_2': parameters}})
  scaled = jax.tree.leaves(scaled)

  def largest(leaves):
    tree = jax.tree.unflatten(jax.tree.structure(parameters), leaves)
    found = module.apply({'params': tree}, layers)
    return np.array([np.abs(each).max() for each in found])

  named = jax.tree_util.tree_leaves_with_path(parameters)
  leaves = [leaf for _, leaf in named]
  plain = largest(leaves)
  for n, (path, leaf) in enumerate(named):
    gain = 1
    if path[-1].key == 'kernel':
      grown = largest([*leaves[:n], 1e4 * leaf, *leaves[n + 1 :]])
      grows = (grown > 50 * plain).any() or path[-2].key == 'hidden'
      gain = 48**-0.25 if grows else 1
    np.testing.assert_allclose(
      scaled[n], gain * leaf, rtol=1e-6, err_msg=path_name(path)
    )
