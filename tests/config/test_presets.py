"""Rows of the papers' tables on top of a config."""

from pathlib import Path

import pytest

from fusion_jax.config import ExperimentConfig, SideConfig
from fusion_jax.config.flags import load_config
from fusion_jax.config.presets import (
  attention,
  both_sides,
  changed,
  choose,
  decoder,
  depth,
  encoder,
)
from fusion_jax.config.serialization import flatten
from fusion_jax.errors import InputError

_CONFIGS = Path(__file__).parents[2] / 'configs'
_BASE = ExperimentConfig()


def _differences(row):
  old, new = flatten(_BASE), flatten(changed(_BASE, row))
  return {name: new[name] for name in new if new[name] != old[name]}


@pytest.mark.parametrize(
  ('row', 'expected'),
  [
    ({}, {}),
    ({'name': 'mine'}, {'name': 'mine'}),
    (
      {'data.batch.tokens': 8, 'data.train': ('a',), 'model.width': 64},
      {'data.batch.tokens': 8, 'data.train': ['a'], 'model.width': 64},
    ),
    (
      depth(12, 9, scan_layers=True),
      {
        'model.encoder_layers': 12,
        'model.decoder_layers': 9,
        'model.scan_layers': True,
      },
    ),
  ],
)
def test_a_row_changes_what_it_names(row, expected):
  assert _differences(row) == expected


def test_rows_of_sides_have_schemes_with_their_options():
  row = both_sides('dlcl', window=2) | decoder('none')
  model = changed(_BASE, row | {'model.encoder.start': 'baseline'}).model
  dlcl = SideConfig('dlcl', {'window': 2}, start='baseline')
  assert (model.encoder, model.decoder) == (dlcl, SideConfig())
  row = encoder('linear', factored=False) | {'model.encoder.options.hidden': 9}
  linear = SideConfig('linear', {'factored': False, 'hidden': 9})
  assert changed(_BASE, row).model.encoder == linear
  model = changed(_BASE, attention('shortcut', feature_fusion=True)).model
  assert model.decoder.attention_options.feature_fusion


def test_a_change_is_checked_as_a_whole():
  """Neither a width of 90 with 8 heads nor 5 heads of 512 would do alone."""
  row = {'model.width': 90, 'model.heads': 5}
  assert changed(_BASE, row).model.head_width == 18
  with pytest.raises(InputError, match=r'config.model.heads: must divide'):
    changed(_BASE, {'model.heads': 5})


def test_rows_are_chosen_by_name():
  rows = {'base': {}, 'deep': depth(2, 2)}
  assert choose(rows, 'deep') == {
    'model.encoder_layers': 2,
    'model.decoder_layers': 2,
  }
  with pytest.raises(
    InputError, match="no variant 'big'; there are base, deep"
  ):
    choose(rows, 'big')


@pytest.mark.parametrize(
  ('name', 'fields'),
  [
    # Dou et al. (2018), sections 3.2 and 4.1.
    (
      'wmt14_ende.py:big_hierarchical_diversity',
      {
        'data.batch.tokens': 8 * 4_096,
        'model.encoder.fusion': 'hierarchical',
        'model.decoder.fusion': 'hierarchical',
        'model.width': 1_024,
        'model.dropout': 0.3,
        'optimizer.warmup_steps': 4_000,
        'training.diversity': 1.0,
        'training.steps': 300_000,
      },
    ),
    # Emelin et al. (2019), appendix A.1, and their released code.
    (
      'wmt14_ende.py:small_lexical_shortcuts',
      {
        'data.batch.tokens': 25_000,
        'model.width': 256,
        'model.filter': 1_024,
        'model.norm': 'pre',
        'model.attention_bias': False,
        'model.encoder.attention': 'shortcut',
        'model.encoder.attention_options.feature_fusion': False,
        'optimizer.schedule': 'vaswani',
        'optimizer.warmup_steps': 6_000,
        'optimizer.beta2': 0.98,
        'training.steps': 150_000,
      },
    ),
    (
      'wmt14_ende.py:big_feature_fusion',
      {
        'model.heads': 16,
        'model.dropout': 0.1,
        'model.attention_dropout': 0.1,
        'model.embedding_dropout': 0.3,
        'model.decoder.attention_options.feature_fusion': True,
        'optimizer.warmup_steps': 16_000,
        'optimizer.beta2': 0.998,
        'training.steps': 300_000,
        'decoding.beam_size': 4,
      },
    ),
    # Yang et al. (2022), section III.
    (
      'wmt14_ende.py:gtrans',
      {
        'model.width': 1_024,
        'model.filter': 4_096,
        'model.dropout': 0.3,
        'optimizer.schedule': 'inverse_sqrt',
        'optimizer.peak': 5e-4,
        'optimizer.warmup_steps': 4_000,
        'training.steps': 80_000,
        'decoding.beam_size': 8,
        'decoding.length_penalty': 'none',
      },
    ),
    (
      'iwslt14_deen.py:gtrans_24_18',
      {
        'model.width': 512,
        'model.filter': 1_024,
        'model.heads': 8,
        'model.encoder_layers': 24,
        'model.decoder_layers': 18,
        'model.scan_layers': True,
        'model.norm': 'post',
        'model.dropout': 0.3,
        'model.tied_embeddings': 'all',
        'model.initialization': 'glorot',
        'training.label_smoothing': 0.1,
      },
    ),
    # Wang et al. (2018), section 4.2.
    (
      'iwslt14_deen.py:mlrf_fnn_sa',
      {
        'model.encoder.fusion': 'feed_forward',
        'model.decoder.fusion': 'hops',
        'model.decoder.options.hops': 4,
        'model.decoder.options.scorer_width': 1_024,
        'model.encoder.options.hidden': 512,
        'model.initialization': 'fan_in',
        'optimizer.warmup_steps': 16_000,
        'training.label_smoothing': 0.0,
        'decoding.beam_size': 8,
        'decoding.alpha': 1.6,
      },
    ),
  ],
)
def test_a_variant_has_its_papers_recipe(name, fields):
  config = flatten(load_config(str(_CONFIGS / name)))
  assert {field: config[field] for field in fields} == fields


def test_dlcl_is_not_scanned():
  """Its layers read all below them."""
  for norm, expected in (('dlcl', False), ('rezero', True)):
    config = load_config(str(_CONFIGS / f'iwslt14_deen.py:{norm}_12_12'))
    assert config.model.scan_layers is expected
