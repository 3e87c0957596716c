"""Layer weights that a scheme from outside the package sows and declares."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from fused_runs import fused_run, make_run

from fusion_jax import fusion
from fusion_jax.analysis import layer_weights, position_weights
from fusion_jax.config import SideConfig
from fusion_jax.config import fusion as fusion_options
from fusion_jax.errors import InputError
from fusion_jax.fusion.scheme import on_both_sides
from fusion_jax.layers.sow import sow


class _Fixed(nn.Module):
  """Reads the top layer, and says it weighs the layers 1/4 and 3/4."""

  config: object
  side: str

  @nn.compact
  def __call__(self, layers, context):
    weights = jnp.float32([0.25, 0.75])
    sow(self, 'telemetry', 'layer_weights', weights)
    shape = *layers[-1].shape[:2], 2
    sow(self, 'views', 'layer_weights', jnp.broadcast_to(weights, shape))
    return layers[-1]


class _Silent(nn.Module):
  """Sows nothing."""

  config: object
  side: str

  @nn.compact
  def __call__(self, layers, context):
    return layers[-1]


@pytest.fixture
def declared(tmp_path):
  def run_of(module, *views):
    fusion.register(
      on_both_sides(
        'mine', module, 'layer aggregation', 'a test', 'own', views=views
      )
    )
    return fused_run(make_run(encoder=SideConfig(fusion='mine')), tmp_path)

  yield run_of
  fusion._TABLE.pop('mine', None)
  fusion_options._RULES.pop('mine', None)


def test_both_views_show_what_is_sown(declared):
  analysed = declared(_Fixed, 'layer_weights', 'position_weights')
  finding = layer_weights.VIEW.look(analysed)
  assert finding.numbers == {
    'encoder': {
      'scheme': 'mine',
      'layers': ['H[1]', 'H[2]'],
      'rows': ['output'],
      'weights': [[0.25, 0.75]],
    }
  }
  assert 'encoder (output of mine) H[1] 0.25, H[2] 0.75' in finding.summary
  own = position_weights.VIEW.look(analysed).numbers['encoder']['weights']
  assert own['weights']['sources'] == ['H[1]', 'H[2]']
  assert own['weights']['readers'] == ['output']
  np.testing.assert_allclose(own['weights']['mean']['all'], [[0.25, 0.75]])


def test_a_view_applies_only_where_it_is_declared(declared):
  config = declared(_Fixed, 'position_weights').run.config.model
  assert not layer_weights.VIEW.applies(config)
  assert position_weights.VIEW.applies(config)


def test_a_view_of_what_is_not_sown_is_one_line(declared):
  analysed = declared(_Silent, 'layer_weights')
  with pytest.raises(InputError, match="in 'telemetry', K <= 2; it sows none"):
    layer_weights.VIEW.look(analysed)
