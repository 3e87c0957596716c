"""Rows of the papers' tables on top of a config."""

import tomllib
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
_RECIPES = tomllib.loads(Path(__file__).with_name('recipes.toml').read_text())


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


@pytest.mark.parametrize('name', _RECIPES)
def test_a_variant_has_its_papers_recipe(name):
  config = flatten(load_config(str(_CONFIGS / name)))
  assert {field: config[field] for field in _RECIPES[name]} == _RECIPES[name]


def test_dlcl_is_not_scanned():
  """Its layers read all below them."""
  for norm, expected in (('dlcl', False), ('rezero', True)):
    config = load_config(str(_CONFIGS / f'iwslt14_deen.py:{norm}_12_12'))
    assert config.model.scan_layers is expected
