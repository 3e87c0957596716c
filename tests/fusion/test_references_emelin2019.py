"""The fusions of Emelin et al. (2019) against their references."""

import dataclasses

import jax.numpy as jnp
import pytest
from reference_cases import (
  HEADS,
  LENGTH,
  LENGTHS,
  check_attention,
  compare,
  mask_of,
  model_config,
  random_layers,
  run,
)
from references import emelin2019
from references.parts import layer_norm

from fusion_jax.fusion.shortcuts import ShortcutAttention
from fusion_jax.layers.attention import padding_mask


@pytest.mark.parametrize(
  ('side', 'index', 'source', 'fused', 'compatible', 'source_norm'),
  [
    ('encoder', 1, 'lexical', False, False, 'auto'),
    ('decoder', 3, 'lexical', True, False, 'plain'),
    ('encoder', 3, 'lexical', True, True, 'auto'),
    ('decoder', 1, 'non_lexical', False, False, 'auto'),
    ('encoder', 2, 'non_lexical', True, False, 'auto'),
    ('decoder', 3, 'non_lexical', False, True, 'auto'),
    ('encoder', 6, 'non_lexical', False, False, 'auto'),
    ('encoder', 6, 'non_lexical', False, False, 'none'),
  ],
)
def test_shortcut_attention(
  side, index, source, fused, compatible, source_norm
):
  options = {
    'source': source,
    'feature_fusion': fused,
    'author_compat': compatible,
    'source_norm': source_norm,
  }
  config = model_config(side, 6, 'shortcut', options, norm='pre')
  below = random_layers(index)
  h = layer_norm(below[-1])
  check_attention(
    ShortcutAttention(config, side=side),
    below,
    h,
    side,
    lambda p: emelin2019.shortcut_attention(
      p, below, config.side(side).attention_options, h, mask_of(side), HEADS
    ),
  )


@pytest.mark.parametrize(('fused', 'bias'), [(False, True), (True, False)])
def test_shortcut_cross_attention(fused, bias):
  options = {'source': 'lexical', 'where': 'both', 'feature_fusion': fused}
  config = dataclasses.replace(
    model_config('decoder', 6, 'shortcut', options), attention_bias=bias
  )
  x, features, embedding = random_layers(3)
  mask = padding_mask(jnp.asarray(LENGTHS), LENGTH)

  def attend(module, x, features, embedding):
    return module(x, module.memory(features, embedding), mask, True)

  result, parameters = run(
    ShortcutAttention(config, side='decoder'), attend, x, features, embedding
  )
  expected = emelin2019.shortcut_cross_attention(
    parameters,
    x,
    features,
    embedding,
    config.decoder.attention_options,
    mask,
    HEADS,
  )
  compare(result, expected)
