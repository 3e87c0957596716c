"""The fusions of Dou et al. (2019) against their references."""

from reference_cases import cases, check_read_out, model_config
from references import dou2019

from fusion_jax.fusion import dynamic_combination, dynamic_routing, em_routing


@cases({'hidden': 5, 'normalize': 'softmax', 'output_norm': True})
def test_dynamic_combination(options, side, depth):
  config = model_config(side, depth, 'dynamic_combination', options)
  check_read_out(
    dynamic_combination.DynamicCombination(config, side),
    depth,
    side,
    lambda p, layers: dou2019.dynamic_combination(
      p, layers, config.side(side).options
    ),
  )


_LITERAL = {'vote_norm': 'none', 'agreement': 'product', 'average': 'gain'}


@cases(
  {'capsules': 2, 'iterations': 2, 'residual': 'top'},
  {'capsules': 1, 'iterations': 1, 'output_norm': False},
  {'capsules': 4, 'route_axis': 'input'},
  {'capsules': 4, 'route_axis': 'input', 'output_norm': False},
  {'route_gain': 1.0, 'residual': 'all', 'stop_gradient': False, **_LITERAL},
  {'capsules': 4, 'residual': 'none', **_LITERAL},
  {'capsules': 4, 'agreement': 'scaled', 'agreement_scale': 2.0},
  {'capsules': 2, 'vote_norm': 'none', 'average': 'gain'},
  {'vote_hidden': 7, 'vote_activation': 'relu', 'iterations': 4},
  {'vote_projection': 'block', 'capsules': 4},
  {
    'vote_projection': 'block',
    'context': 'own',
    'vote_activation': 'relu',
    'output_norm': False,
  },
)
def test_dynamic_routing(options, side, depth):
  config = model_config(side, depth, 'dynamic_routing', options)
  check_read_out(
    dynamic_routing.DynamicRouting(config, side),
    depth,
    side,
    lambda p, layers: dou2019.dynamic_routing(
      p, layers, config.side(side).options
    ),
  )


@cases(
  {'capsules': 2, 'iterations': 2, 'residual': 'top'},
  {'capsules': 4, 'iterations': 1, 'output_norm': False},
  {'capsules': 4, 'activation': 'per_output', 'residual': 'all'},
  {'activation': 'none', 'betas': 'zero', 'output_norm': False},
  {'temperature': 'hinton', 'iterations': 4, 'vote_hidden': 7},
  {'capsules': 4, 'emit': 'mean', 'log_density_scale': 0.5, 'iterations': 4},
  {'capsules': 4, 'vote_projection': 'block', 'cost_norm': True},
  {
    'vote_projection': 'block',
    'context': 'own',
    'vote_activation': 'none',
    'variance_floor': 0.1,
  },
  {'cost_norm': True, 'capsules': 2, 'output_norm': False, 'iterations': 2},
  {'vote_norm': 'none', 'residual': 'none', 'stop_gradient': False},
  {'vote_norm': 'none', 'floor': 'relative', 'variance_floor': 0.1},
)
def test_em_routing(options, side, depth):
  config = model_config(side, depth, 'em_routing', options)
  check_read_out(
    em_routing.EmRouting(config, side),
    depth,
    side,
    lambda p, layers: dou2019.em_routing(p, layers, config.side(side).options),
  )
