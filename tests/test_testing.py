"""The common checks find a scheme that breaks them."""

import dataclasses

import jax.numpy as jnp
import pytest
from flax import linen as nn

from fusion_jax import register, testing
from fusion_jax.config import SideConfig, fusion
from fusion_jax.errors import InputError
from fusion_jax.fusion.scheme import on_both_sides
from fusion_jax.testing import check_scheme


class _OverTime(nn.Module):
  """Adds the mean over all positions, later ones too."""

  config: object
  side: str

  @nn.compact
  def __call__(self, layers, context):
    return layers[-1] + layers[-1].mean(axis=1, keepdims=True)


class _Unused(nn.Module):
  """Has a parameter that nothing reads."""

  config: object
  side: str

  @nn.compact
  def __call__(self, layers, context):
    start = nn.with_logical_partitioning(nn.initializers.ones, ('layers',))
    self.param('unused', start, (1,))
    return layers[-1]


class _Infinite(nn.Module):
  """Divides by what may be zero."""

  config: object
  side: str

  @nn.compact
  def __call__(self, layers, context):
    top = layers[-1]
    return top / jnp.where(jnp.abs(layers[0]) > 0, 1.0, 0.0)


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
  """Registers into a table of its own."""
  schemes = fusion.ROWS['fusion']
  monkeypatch.setattr(schemes, 'data', {**schemes.data})


def _register(module, **declared):
  register(
    on_both_sides('broken', module, 'layer aggregation', 'a test', **declared)
  )


@pytest.mark.parametrize(
  ('module', 'message'),
  [
    (_OverTime, "broken, encoder, norm='pre': check_padding: "),
    pytest.param(
      _Infinite, 'check_extreme_inputs: ', marks=pytest.mark.extended
    ),
    pytest.param(
      _Unused, 'no gradient reaches encoder/', marks=pytest.mark.extended
    ),
  ],
)
def test_what_is_broken_is_named(module, message):
  _register(module)
  with pytest.raises(AssertionError, match=message):
    check_scheme('broken')


class _Hard(nn.Module):
  """Reads the one layer whose logit is the largest."""

  config: object
  side: str

  @nn.compact
  def __call__(self, layers, context):
    start = nn.with_logical_partitioning(nn.initializers.zeros, ('layers',))
    logits = self.param('logits', start, (len(layers),))
    return jnp.stack(layers)[jnp.argmax(logits)]


@pytest.mark.parametrize('pattern', ['*/read_out/logits', '*/other'])
def test_parameters_without_a_gradient_are_declared(pattern):
  _register(_Hard, no_gradient=(pattern,))
  fused = testing.FusedModel(
    dataclasses.replace(
      testing.TINY, norm='post', decoder=SideConfig(fusion='broken')
    )
  )
  # Layers above the one that is read have no gradient either.
  logits = jnp.float32([0, 0, 0, 1])
  fused.parameters['decoder']['read_out']['logits'] = logits
  if pattern == '*/other':
    with pytest.raises(AssertionError, match='no gradient reaches decoder/'):
      testing.check_gradients(fused)
  else:
    testing.check_gradients(fused)


def test_an_unknown_name_is_one_line():
  with pytest.raises(InputError, match="got 'linaer'; did you mean 'linear'"):
    check_scheme('linaer')
