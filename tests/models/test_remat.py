"""What the backward pass keeps of each layer, and that gradients are equal."""

import functools

import jax
import jax.numpy as jnp
import pytest

from fusion_jax.config import ModelConfig
from fusion_jax.errors import InputError
from fusion_jax.models.transformer import Transformer
from fusion_jax.testing import assert_close, drawn_parameters

_POLICIES = ('nothing', 'dots_without_batch', 'dots')


def _gradient(scan: bool, **remat):
  """Of a scalar of all outputs, by the parameters; and these."""
  config = ModelConfig(
    width=8,
    filter=12,
    heads=2,
    encoder_layers=2,
    decoder_layers=2,
    scan_layers=scan,
    **remat,
  )
  model = Transformer(config, 11, 11, 2)
  ids = jnp.array([[4, 5, 6, 3], [7, 8, 3, 0]])
  lengths = jnp.array([4, 3])
  dropout = {'dropout': jax.random.key(1)}

  def loss(parameters):
    output = model.apply(
      {'params': parameters}, ids, lengths, ids, False, rngs=dropout
    )
    return (output.features**3).sum()

  return jax.grad(loss), drawn_parameters(model)


@functools.cache
def _plain(scan: bool):
  gradient, parameters = _gradient(scan)
  return jax.jit(gradient)(parameters)


@pytest.mark.extended
@pytest.mark.parametrize(
  ('policy', 'scan'), [*zip(_POLICIES, [False, True, False], strict=True)]
)
def test_gradients_do_not_depend_on_what_is_kept(policy, scan):
  gradient, parameters = _gradient(scan, remat=True, remat_policy=policy)
  got = jax.jit(gradient)(parameters)
  assert_close(got, _plain(scan))


@pytest.mark.extended
@pytest.mark.parametrize('scan', [False, True])
def test_what_is_kept_is_not_computed_again(scan):
  def products(**remat):
    gradient, parameters = _gradient(scan, **remat)
    return str(jax.make_jaxpr(gradient)(parameters)).count('dot_general')

  nothing, without_batch, every = (
    products(remat=True, remat_policy=policy) for policy in _POLICIES
  )
  assert nothing > without_batch > every
  # Without recomputation there are no more products than with all kept.
  assert every == products()


def test_a_policy_without_remat_is_refused():
  with pytest.raises(
    InputError, match=r"^config.model.remat_policy: 'dots' needs model.remat"
  ):
    ModelConfig(remat_policy='dots')
