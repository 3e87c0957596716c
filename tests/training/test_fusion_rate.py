"""The learning rate of what only the fusion has."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import reading
from tiers import extended_but

from fusion_jax.config import ModelConfig, OptimizerConfig
from fusion_jax.config.fusion import SideConfig
from fusion_jax.errors import InputError
from fusion_jax.fusion import SCHEMES
from fusion_jax.models.parameter_kinds import path_name
from fusion_jax.models.transformer import Transformer, initial_parameters
from fusion_jax.training.fusion_rate import fusion_rates
from fusion_jax.training.optimizer import make_optimizer

_PLAIN = SideConfig()


def _model(encoder=_PLAIN, decoder=_PLAIN, **changes):
  config = ModelConfig(
    width=8,
    filter=12,
    heads=2,
    encoder_layers=2,
    decoder_layers=2,
    encoder=encoder,
    decoder=decoder,
    **changes,
  )
  return Transformer(config, 11, 11, 2)


def _optimizer(**fields) -> OptimizerConfig:
  return OptimizerConfig(
    schedule='constant', peak=1.0, warmup_steps=1, **fields
  )


def _updates(model, config):
  """The first update of every parameter for a gradient of 1."""
  parameters = initial_parameters(model, 0)
  optimizer = make_optimizer(config, 8, rates=fusion_rates(model, config))
  ones = jax.tree.map(jnp.ones_like, parameters)
  updates, _ = optimizer.update(ones, optimizer.init(parameters), parameters)
  return {
    path_name(path): np.asarray(leaf)
    for path, leaf in jax.tree_util.tree_leaves_with_path(updates)
  }


@pytest.mark.extended
@pytest.mark.parametrize('scan_layers', extended_but([False, True], [True]))
def test_the_rate_reaches_what_the_plain_model_lacks(scan_layers):
  encoder = SideConfig(fusion='iterative')
  decoder = reading('shortcut')
  model = _model(encoder, decoder, scan_layers=scan_layers)
  updates = _updates(model, _optimizer(fusion_rate=0.25))
  new = {
    name
    for name in updates
    if name.startswith('encoder/read_out/')
    or 'self_attention/shortcut_' in name
    or name.endswith('_gate_bias')
  }
  assert len(new) == 2 + 4 + (4 if scan_layers else 8)
  for name, update in updates.items():
    # Adam's first update is the rate, whatever the gradient.
    expected = -0.25 if name in new else -1.0
    np.testing.assert_allclose(update, expected, rtol=1e-5, err_msg=name)


def test_each_side_has_the_rate_of_its_scheme():
  encoder, decoder = SideConfig(fusion='linear'), SideConfig(fusion='hops')
  rates = fusion_rates(_model(encoder, decoder), _optimizer())
  for name, rate in rates.items():
    side = name.partition('/')[0]
    scheme = {'encoder': 'linear', 'decoder': 'hops'}.get(side)
    shared = min(SCHEMES['linear'].rate, SCHEMES['hops'].rate)
    assert rate == (SCHEMES[scheme].rate if scheme else shared), name
  assert any(name.startswith('layer_embedding') for name in rates)


def test_a_rate_of_one_leaves_the_optimizer_as_it_is():
  model = _model(reading('multi_layer', partial=True))
  assert fusion_rates(model, _optimizer()) == {}
  linear = _model(SideConfig(fusion='linear'))
  config = _optimizer(fusion_rate=1.0)
  assert fusion_rates(linear, config) == {}
  assert fusion_rates(_model(), _optimizer(fusion_rate=0.5)) == {}


def test_a_negative_rate_is_refused():
  with pytest.raises(InputError, match=r'optimizer\.fusion_rate'):
    _optimizer(fusion_rate=-1.0)
