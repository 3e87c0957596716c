"""Transparent attention and DLCL against their references."""

import dataclasses

import pytest
from reference_cases import (
  cases,
  check_connection,
  compare,
  context_of,
  model_config,
  random_layers,
  run,
)
from references import baselines

from fusion_jax.fusion import dlcl, transparent


def _check_dlcl(options, side, depth, norm):
  config = model_config(side, depth, 'dlcl', options, norm)

  def reference(parameters, x, functions):
    inputs, outputs = baselines.dlcl(
      parameters, x, functions, config.side(side).options, norm
    )
    return inputs[-1], outputs

  check_connection(dlcl.Dlcl(config, side), depth, side, reference)


@cases(
  {'weights': 'vector', 'start': 'one'}, {'normalize': 'softmax', 'window': 2}
)
def test_dlcl_post_norm(options, side, depth):
  _check_dlcl(options, side, depth, 'post')


@cases(
  {'weights': 'vector', 'normalize': 'softmax', 'frozen': True}, {'window': 1}
)
def test_dlcl_pre_norm(options, side, depth):
  _check_dlcl(options, side, depth, 'pre')


@pytest.mark.parametrize('norm', ['pre', 'post'])
@pytest.mark.parametrize(
  'options',
  [{'start': 'top'}, {'dilation': 2, 'weights': 'vector'}],
)
def test_depth_weighted_averages(options, norm):
  for side, depth in (('encoder', 3), ('decoder', 6)):
    _check_dlcl({'norms': 'none'} | options, side, depth, norm)


@pytest.mark.parametrize('norm', ['pre', 'post'])
@pytest.mark.parametrize('dilation', [1, 3])
def test_sums_after_some_layers_only(norm, dilation):
  for period in (2, 6):
    _check_dlcl({'period': period, 'dilation': dilation}, 'decoder', 6, norm)


@pytest.mark.parametrize('feature_wise', [False, True])
@pytest.mark.parametrize('depth', [1, 3, 6])
def test_transparent_attention(depth, feature_wise):
  options = {'feature_wise': feature_wise}
  config = model_config('encoder', depth, 'transparent', options)
  config = dataclasses.replace(config, decoder_layers=4)
  layers, context = random_layers(depth + 1), context_of('encoder')
  memories, parameters = run(
    transparent.TransparentAttention(config, 'encoder'),
    lambda module, *layers: module(layers, context),
    *layers,
  )
  assert len(memories) == 4
  expected = baselines.transparent_attention(
    parameters, layers, config.encoder.options
  )
  compare(list(memories), expected)
