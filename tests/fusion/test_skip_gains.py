"""Skip gains against their equation, in NumPy."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawn import PASS, drawn, normal
from numpy_parts import layer_norm

from fusion_jax.config.fusion import SideConfig
from fusion_jax.fusion.residuals import GainResidual
from fusion_jax.models.transformer import Transformer, initial_parameters
from fusion_jax.testing import TINY, assert_close

_NORMS = 'pre', 'post', 'rezero'


def _config(norm, **fields):
  return dataclasses.replace(TINY, norm=norm, **fields)


def _around(module, x, scale=None):
  """The residual around a sublayer that squares its input."""
  h, kept = module.before(x, PASS)
  return module.after(x, h**2, PASS, kept, scale)


def _scale(norm):
  return jnp.float32(0.75) if norm == 'rezero' else None


@pytest.mark.parametrize('norm', _NORMS)
def test_against_its_equation(norm):
  module, own = GainResidual(_config(norm)), normal(2, 3, 8)
  init = functools.partial(module.init, method=_around)
  parameters = drawn(init, own, _scale(norm), mean=1.0)
  exact, x = jax.tree.map(np.float64, (parameters, own))
  gain = exact['skip_gain']

  def normed(x):
    return layer_norm(x, exact['norm'], TINY.norm_epsilon)

  expected = {
    'pre': lambda: gain * x + normed(x) ** 2,
    'post': lambda: normed(gain * x + x**2),
    'rezero': lambda: gain * x + 0.75 * x**2,
  }[norm]()
  found = module.apply(
    {'params': parameters}, own, _scale(norm), method=_around
  )
  assert_close(found, expected)


def test_bfloat16_keeps_the_gain_in_float32():
  module = GainResidual(_config('rezero', compute_dtype='bfloat16'))
  # Between 1 and 2 bfloat16 has steps of 1/128, so that 1.003 would be 1;
  # 1.003 * 1.25 = 1.25375 is nearer to 1.25 than to 1.2578, and
  # 1.003 * 250 = 250.75 to 251 than to 250, where the steps are 1.
  x = jnp.array([1.25, 250.0], jnp.bfloat16)
  gain = {'skip_gain': jnp.float32(1.003)}
  found = module.apply({'params': gain}, x[None, None], method=module.skip)
  assert found.dtype == jnp.bfloat16
  np.testing.assert_array_equal(np.float32(found).ravel(), [1.25, 251.0])


def test_every_sublayer_has_a_gain_of_1():
  side = SideConfig(skip_gains=True)
  layers = {'encoder_layers': 2, 'decoder_layers': 3}
  for sides, expected in (
    ({'encoder': side}, 2 * 2),
    ({'decoder': side}, 3 * 3),
    ({'encoder': side, 'decoder': side}, 2 * 2 + 3 * 3),
  ):
    model = Transformer(_config('post', **layers, **sides), 11, 11, 2)
    leaves = jax.tree_util.tree_leaves_with_path(initial_parameters(model, 0))
    gains = [leaf for path, leaf in leaves if 'skip_gain' in str(path[-1])]
    assert gains == [1.0] * expected
