"""The fusions of Dou et al. (2018) against their references."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference_cases import (
  BATCH,
  HEADS,
  KEEP,
  LENGTH,
  LENGTHS,
  WIDTH,
  cases,
  check_attention,
  check_connection,
  check_read_out,
  compare,
  context_of,
  mask_of,
  model_config,
  random_layers,
  run,
  single,
)
from references import dou2018

from fusion_jax.config import TrainingConfig
from fusion_jax.data.batching import Batch
from fusion_jax.fusion import dense, linear, tree
from fusion_jax.fusion.multi_layer import MultiLayerAttention
from fusion_jax.models.transformer import ModelOutput, OutputLayer
from fusion_jax.training.gradients import batch_diversity, count_tokens


@cases(
  {'hidden': 5, 'bias': False, 'output_norm': True},
  {'factored': False},
  {'factored': False, 'bias': False, 'output_norm': True},
)
def test_linear(options, side, depth):
  config = model_config(side, depth, 'linear', options)
  check_read_out(
    linear.Linear(config, side),
    depth,
    side,
    lambda p, layers: dou2018.linear(p, layers, config.side(side).options),
  )


@cases(
  {'activation': 'relu', 'residual': 'top', 'hidden': 5},
  {'activation': 'attention', 'residual': 'none'},
)
def test_iterative(options, side, depth):
  config = model_config(side, depth, 'iterative', options)
  check_read_out(
    tree.Iterative(config, side),
    depth,
    side,
    lambda p, layers: dou2018.iterative(
      p, layers, config.side(side).options, mask_of(side), HEADS
    ),
  )


@pytest.mark.parametrize(
  ('side', 'activation', 'residual', 'top'),
  [
    ('encoder', 'sigmoid', 'top', 0),
    ('decoder', 'relu', 'top', 2),
    ('encoder', 'attention', 'all', 0),
    ('decoder', 'attention', 'top', 1),
  ],
)
def test_agg_node(side, activation, residual, top):
  options = {'activation': activation, 'residual': residual, 'hidden': 7}
  config = model_config(side, 6, 'hierarchical', options)
  inputs, context = random_layers(3), context_of(side)
  result, parameters = run(
    tree.AggNode(config, config.side(side).options),
    lambda module, *inputs: module(inputs, top, context),
    *inputs,
  )
  expected = dou2018.agg(
    parameters, inputs, top, config.side(side).options, mask_of(side), HEADS
  )
  compare(result, expected)


@cases(
  {'include_embedding': True},
  {'post_sum_norm': True},
  {'include_embedding': True, 'post_sum_norm': True},
)
def test_dense_connection(options, side, depth):
  config = model_config(side, depth, 'dense', options)

  def reference(parameters, x, functions):
    states = dou2018.dense_connection(
      parameters, x, functions, config.side(side).options
    )
    return states[-1], states

  check_connection(dense.DenseConnection(config, side), depth, side, reference)


def _check_hierarchical(options, side, depth, norm):
  config = model_config(side, depth, 'hierarchical', options, norm)
  check_connection(
    tree.Hierarchical(config, side),
    depth,
    side,
    lambda p, x, functions: dou2018.hierarchical(
      p,
      x,
      functions,
      config.side(side).options,
      mask_of(side),
      HEADS,
      input_norm=norm == 'pre',
    ),
  )


@cases(
  {'residual': 'top', 'activation': 'relu'},
  {'group_size': 4, 'residual': 'none'},
  {'group_size': 1, 'residual': 'top'},
  {'feedback': False, 'residual': 'top'},
  {'activation': 'attention', 'group_size': 3},
)
def test_hierarchical_post_norm(options, side, depth):
  _check_hierarchical(options, side, depth, 'post')


@cases({'feedback': False, 'residual': 'top'})
def test_hierarchical_pre_norm(options, side, depth):
  _check_hierarchical(options, side, depth, 'pre')


@pytest.mark.parametrize(
  ('side', 'index', 'options'),
  [
    ('decoder', 1, {'layers': 2}),
    ('encoder', 2, {'layers': 2}),
    ('encoder', 3, {'layers': 2}),
    ('decoder', 3, {'layers': 3}),
    ('decoder', 6, {'layers': 3}),
    ('encoder', 2, {'layers': 4, 'partial': True}),
    ('decoder', 3, {'layers': 4, 'partial': True}),
    ('encoder', 4, {'layers': 4, 'partial': True}),
  ],
)
def test_multi_layer_attention(side, index, options):
  config = model_config(side, 6, 'multi_layer', options)
  below = random_layers(index)
  check_attention(
    MultiLayerAttention(config, side=side, index=index),
    below,
    below[-1],
    side,
    lambda p: (
      dou2018.multi_layer_attention(
        p, below, config.side(side).attention_options, mask_of(side), HEADS
      ),
      below[-1],
    ),
  )


@pytest.mark.parametrize(
  ('sides', 'depths'), [('sum', (3, 6)), ('mean', (1, 3)), ('sum', (1, 1))]
)
def test_diversity(sides, depths):
  encoder, decoder = (random_layers(n + 1, seed=n) for n in depths)
  ids = np.zeros((BATCH, LENGTH), np.int32)
  full = np.full(BATCH, LENGTH, np.int32)
  batch = Batch(ids, ids, LENGTHS, full)

  @jax.jit
  def diversity(encoder, decoder):
    layer = OutputLayer(jnp.zeros((2, WIDTH)), None)
    output = ModelOutput(decoder[-1], layer, encoder, decoder, encoder[-1])
    training = TrainingConfig(diversity_sides=sides)
    return batch_diversity(output, batch, training, count_tokens(batch))

  result = diversity(*single((tuple(encoder), tuple(decoder))))
  expected = dou2018.diversity_reward(
    [(encoder, KEEP), (decoder, np.ones_like(KEEP))], sides
  )
  compare(result, expected)
