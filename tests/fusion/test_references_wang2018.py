"""The fusions of Wang et al. (2018) against their references."""

from flax import linen as nn
from reference_cases import cases, check_read_out, model_config
from references import wang2018

from fusion_jax.config import ModelConfig
from fusion_jax.fusion import average, feed_forward, hops


@cases({'include_embedding': False, 'norm': 'plain'}, {'norm': 'none'})
def test_average(options, side, depth):
  config = model_config(side, depth, 'average', options)
  check_read_out(
    average.Average(config, side),
    depth,
    side,
    lambda p, layers: wang2018.average(p, layers, config.side(side).options),
  )


class _WithTable(nn.Module):
  """A fusion and the table of both sides, as a model holds them."""

  config: ModelConfig
  side: str
  fusion: type[nn.Module]

  def setup(self):
    self.table = feed_forward.LayerEmbedding(self.config)
    used = self.config.side(self.side).options.layer_embedding
    table = self.table if used else None
    self.inner = self.fusion(self.config, self.side, table)

  def __call__(self, layers, context):
    return self.inner(layers, context)


def _check_with_table(module, name, reference, options, side, depth):
  small = {'hidden': 7} | ({'scorer_width': 5} if name == 'hops' else {})
  config = model_config(side, depth, name, small | options)
  options = config.side(side).options

  def expected(parameters, layers):
    table = parameters.get('table', {}).get('embedding')
    assert (table is not None) == options.layer_embedding
    return reference(parameters['inner'], layers, options, table)

  check_read_out(_WithTable(config, side, module), depth, side, expected)


@cases(
  {'include_embedding': False, 'norm': 'plain'},
  {'layer_embedding': False, 'norm': 'none'},
)
def test_feed_forward(options, side, depth):
  _check_with_table(
    feed_forward.FeedForwardFusion,
    'feed_forward',
    wang2018.feed_forward,
    options,
    side,
    depth,
  )


@cases(
  {'hops': 2, 'scorer_activation': 'relu', 'norm': 'plain'},
  {'independent': 'per_layer', 'norm': 'none'},
  {'independent': 'per_hop', 'hops': 3, 'include_embedding': False},
  {'feature_wise': True, 'hops': 2},
  {'feature_wise': True, 'hops': 3, 'independent': 'per_hop'},
  {'feature_wise': True, 'hops': 1, 'independent': 'per_layer'},
  {
    'independent': 'per_layer',
    'include_embedding': False,
    'layer_embedding': False,
    'hops': 1,
  },
)
def test_hops(options, side, depth):
  _check_with_table(hops.Hops, 'hops', wang2018.hops, options, side, depth)
