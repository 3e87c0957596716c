"""Runs of fusions beside their references: inputs, parameters and comparison.

The modules compute in float32, the references in float64. All parameters are
noise: no initialiser's zero or one hides a term.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import reading, without_unread
from flax import linen as nn

from fusion_jax.config import ModelConfig, SideConfig
from fusion_jax.fusion import SOURCES
from fusion_jax.layers.attention import causal_mask, padding_mask
from fusion_jax.layers.context import Context
from fusion_jax.testing import assert_close

BATCH, LENGTH, WIDTH, HEADS = 2, 5, 8, 2
LENGTHS = np.array([5, 3], np.int32)
KEEP = np.arange(LENGTH) < LENGTHS[:, None]


def model_config(side, depth, name, options, norm='post'):
  """A model whose `side` has `depth` layers and this scheme or source."""
  if name in SOURCES:
    chosen = reading(name, **options)
  else:
    chosen = SideConfig(name, options)
  chosen = without_unread(chosen, side)
  return ModelConfig(
    width=WIDTH,
    filter=12,
    heads=HEADS,
    norm=norm,
    dropout=0.0,
    **{side: chosen, f'{side}_layers': depth},
  )


def context_of(side):
  """Padding in the encoder, causality in the decoder."""
  mask = (
    padding_mask(jnp.asarray(LENGTHS), LENGTH)
    if side == 'encoder'
    else causal_mask(LENGTH)
  )
  return Context(mask=mask, deterministic=True, tokens=jnp.asarray(KEEP))


def mask_of(side):
  return np.asarray(context_of(side).mask)


def random_layers(count, seed=0):
  rng = np.random.default_rng(seed)
  return [rng.normal(size=(BATCH, LENGTH, WIDTH)) for _ in range(count)]


def single(tree):
  return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), tree)


def _noise(shapes):
  """Normal, with deviation fan_in^-0.5 in kernels and 1 elsewhere."""
  rng = np.random.default_rng(1)

  def fill(path, leaf):
    scale = leaf.shape[-2] ** -0.5 if path[-1].key == 'kernel' else 1.0
    return rng.normal(0, scale, leaf.shape)

  return jax.tree_util.tree_map_with_path(fill, shapes)


def run(module, method, *arrays):
  """The module's output, and the parameters it had."""

  def init(*arrays):
    return module.init(jax.random.key(0), *arrays, method=method)

  arrays = single(arrays)
  shapes = nn.unbox(jax.eval_shape(init, *arrays)).get('params', {})
  parameters = _noise(shapes)
  apply = jax.jit(
    lambda p, *arrays: module.apply({'params': p}, *arrays, method=method)
  )
  return apply(single(parameters), *arrays), parameters


def compare(result, expected):
  result, expected = jax.tree.leaves(result), jax.tree.leaves(expected)
  for ours, theirs in zip(result, expected, strict=True):
    assert ours.dtype == jnp.float32
    assert_close(ours, theirs, units=128)


def _words(options):
  return ','.join(f'{k}={v}' for k, v in options.items()) or 'default'


def cases(*variants, **first):
  """Options with their side and depth; the first ones at every depth."""
  places = [('decoder', 1), ('encoder', 3), ('decoder', 6)]
  chosen = [(first, *place) for place in places]
  for index, options in enumerate(variants):
    chosen.append((options, ('decoder', 'encoder')[index % 2], 3))
  return pytest.mark.parametrize(
    ('options', 'side', 'depth'),
    [pytest.param(*case, id=_case_name(*case)) for case in chosen],
  )


def _case_name(options, side, depth):
  return f'{_words(options)}-{side}-{depth}'


def check_read_out(module, depth, side, reference):
  layers, context = random_layers(depth + 1), context_of(side)
  result, parameters = run(
    module, lambda module, *layers: module(layers, context), *layers
  )
  compare(result, reference(parameters, layers))


def _layer_functions(count, library):
  """The same layers in JAX's float32 and NumPy's float64."""
  rng = np.random.default_rng(7)
  kernels = rng.normal(0, WIDTH**-0.5, (count, WIDTH, WIDTH))

  def layer(kernel):
    return lambda x: library.tanh(x @ kernel.astype(x.dtype)) + x / 2

  return [layer(kernel) for kernel in kernels]


def _stack(module, embedding, context, functions):
  """H[0..L] and the output, as a stack with these layers has them."""
  layers, carried = (embedding,), ()
  for function in functions:
    x, carried = module.layer_input(layers, carried, context)
    layers = (*layers, module.layer_output(layers, function(x)))
  return layers, module.layer_input(layers, carried, context)[0]


def check_connection(module, depth, side, reference):
  (embedding,), context = random_layers(1), context_of(side)
  (layers, output), parameters = run(
    module,
    lambda module, x: _stack(module, x, context, _layer_functions(depth, jnp)),
    embedding,
  )
  expected, states = reference(
    parameters, embedding, _layer_functions(depth, np)
  )
  compare(output, expected)
  compare(layers, states)


def _attend(module, context, h, below):
  x = below[-1]
  y = module.attend(x, h, below, context)
  return y, module.residual_input(x, h)


def check_attention(module, below, h, side, reference):
  context = context_of(side)
  result, parameters = run(
    module,
    lambda module, h, *below: _attend(module, context, h, below),
    h,
    *below,
  )
  compare(result, reference(parameters))
