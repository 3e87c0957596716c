"""Hyper-connections against their equations, in NumPy."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawn import PASS, drawn, normal
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.ad_checkpoint import print_saved_residuals
from numpy_parts import layer_norm

from fusion_jax.config.fusion import SideConfig
from fusion_jax.fusion.hyper_connections import (
  HyperResidual,
  Streams,
  sinkhorn,
  write_streams,
)
from fusion_jax.testing import TINY, assert_close

_KINDS = 'static', 'dynamic', 'identity_mix', 'manifold'


def _config(kind, streams=4, **side):
  options = {'kind': kind, 'streams': streams}
  fused = SideConfig('hyper_connections', options, **side)
  return dataclasses.replace(TINY, norm='pre', encoder=fused, decoder=fused)


def _around(module, x, y):
  h, weights = module.before(x, PASS)
  return h, module.after(x, y, PASS, weights)


def _parameters(module, x, y):
  init = functools.partial(module.init, method=_around)
  return drawn(init, x, y)


def _apply(module, parameters, x, y):
  apply = jax.jit(
    lambda p, x, y: module.apply({'params': p}, x, y, method=_around)
  )
  return apply(parameters, x, y)


def _sigmoid(x):
  return 1 / (1 + np.exp(-x))


def _weights(p, x, kind):
  """Weights of reading, mixing and writing; p are parameters in float64.

  Here x is [B, T, N, D].
  """
  count = x.shape[-2]
  if kind == 'static':
    return p['read'], p['mix'], p['write']
  kernel = p['generator']['kernel']
  if kind == 'dynamic':
    found = np.tanh(layer_norm(x) @ kernel)
    return (
      p['read'] + p['read_scale'] * found[..., 0],
      p['mix'] + p['read_scale'] * found[..., 2:],
      p['write'] + p['write_scale'] * found[..., 1],
    )
  z = x.reshape(*x.shape[:-2], -1)
  z = z / np.sqrt(np.square(z).mean(-1, keepdims=True) + 1e-6) @ kernel
  floor = 1e-6 if kind == 'identity_mix' else 0
  read = _sigmoid(p['read_scale'] * z[..., :count] + p['read']) + floor
  written = p['write_scale'] * z[..., count : 2 * count] + p['write']
  write = 2 * _sigmoid(written) + floor
  if kind == 'identity_mix':
    return read, np.eye(count), write
  logits = z[..., 2 * count :].reshape(*z.shape[:-1], count, count)
  mix = np.exp(p['mix_scale'] * logits + p['mix'])
  for _ in range(20):
    mix = mix / mix.sum(-1, keepdims=True)
    mix = mix / mix.sum(-2, keepdims=True)
  return read, mix, write


@pytest.mark.parametrize('streams', [2, 4])
@pytest.mark.parametrize('kind', _KINDS)
def test_against_its_equations(kind, streams):
  module = HyperResidual(_config(kind, streams), 'encoder', 0)
  x, y = normal(2, streams, 3, 8), normal(2, 3, 8, seed=1)
  parameters = _parameters(module, x, y)
  before, after = _apply(module, parameters, x, y)
  p, x, y = jax.tree.map(np.float64, (parameters, x, y))
  x = np.swapaxes(x, 1, 2)
  read, mix, write = _weights(p, x, kind)
  h = np.einsum('...i,...id->...d', read, x)
  assert_close(before, layer_norm(h, p['norm']), units=128)
  mixed = np.einsum('...ij,...id->...jd', mix, x)
  wanted = mixed + write[..., None] * y[..., None, :]
  assert_close(after, np.swapaxes(wanted, 1, 2), units=128)


def test_a_layer_is_the_mean_of_its_streams():
  streams, x = Streams(2), jnp.array([[[1.0, -3.0]]])
  np.testing.assert_array_equal(streams.close(streams.open(x)), x)
  state = jnp.stack([x, 3 * x], 1)
  np.testing.assert_array_equal(streams.close(state), 2 * x)


@pytest.mark.parametrize('dtype', [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize('shared', [True, False])
def test_gradients_of_mixing_against_their_equations(shared, dtype):
  streams = normal(2, 4, 3, 8).astype(dtype)
  mix = normal(4, 4, 1) if shared else normal(2, 4, 4, 3)
  gradient = normal(2, 4, 3, 8, seed=2).astype(dtype)

  def written(streams, mix):
    return write_streams(streams, jnp.zeros((2, 3, 8)), mix, jnp.ones((4, 1)))

  found = jax.vjp(written, streams, mix)[1](gradient)
  assert [leaf.dtype for leaf in found] == [dtype, jnp.float32]
  x, r, g = jax.tree.map(np.float64, (streams, mix, gradient))
  r = np.broadcast_to(r, (2, 4, 4, 3))
  of_mix = np.einsum('bitd,bjtd->bijt', x, g)
  if shared:
    of_mix = of_mix.sum((0, -1))[..., None]
  coarser = float(jnp.finfo(dtype).eps / jnp.finfo(jnp.float32).eps)
  of_streams = np.einsum('bijt,bjtd->bitd', r, g)
  assert_close(np.float64(found[0]), of_streams, units=8 * coarser)
  assert_close(found[1], of_mix, units=32)


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 6), st.floats(0, 4), st.integers(0, 99))
def test_mixes_are_doubly_stochastic_and_so_are_their_products(
  count, scale, seed
):
  logits = normal(count, count, 2, seed=seed, scale=scale)
  mixes = jnp.moveaxis(sinkhorn(logits, 20), -1, 0)
  for mix in (*mixes, mixes[0] @ mixes[1]):
    assert (np.asarray(mix) >= 0).all()
    np.testing.assert_allclose(mix.sum(-2), 1, atol=1e-3)
  # The last round was that of the columns: rows are the nearer to 1, the
  # smaller the logits.
  np.testing.assert_allclose(mixes.sum(-1), 1, atol=1e-3 + 0.02 * scale)


@pytest.mark.parametrize('scale', [30.0, 1000.0])
def test_sinkhorn_stands_logits_whose_exponentials_overflow(scale):
  logits = normal(4, 4, 50, scale=scale)
  mix, pull = jax.vjp(functools.partial(sinkhorn, rounds=20), logits)
  np.testing.assert_allclose(mix.sum(0), 1, atol=1e-5)
  (gradient,) = pull(normal(4, 4, 50, seed=1))
  assert np.isfinite(gradient).all()


@pytest.mark.parametrize('kind', _KINDS)
def test_the_backward_pass_keeps_the_streams_once(kind, capsys):
  """Of two sublayers: the state between them, and no other streams."""
  modules = [HyperResidual(_config(kind), 'encoder', n) for n in range(2)]
  x, y = normal(2, 4, 3, 8), normal(2, 3, 8, seed=1)
  parameters = [_parameters(module, x, y) for module in modules]

  def both(parameters, x, y):
    for module, own in zip(modules, parameters, strict=True):
      h, x = module.apply({'params': own}, x, y, method=_around)
      y = jnp.tanh(h)
    return x.sum()

  print_saved_residuals(both, parameters, x, y)
  kept = [
    line
    for line in capsys.readouterr().out.splitlines()
    if line.startswith('f32[2,4,3,8]') and 'from the argument' not in line
  ]
  assert len(kept) == 1
