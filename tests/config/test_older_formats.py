"""Configs of run directories that earlier versions wrote."""

import dataclasses
import json

import pytest

from fusion_jax.config import ExperimentConfig, ModelConfig
from fusion_jax.config.fusion import SideConfig
from fusion_jax.config.serialization import differing_fields, from_json, to_dict
from fusion_jax.errors import InputError
from fusion_jax.fusion.capsules import RoutingOptions
from fusion_jax.fusion.shortcuts import ShortcutOptions
from fusion_jax.fusion.tree import AggOptions

# What format 1 had no fields for.
_LATER = {
  'routing': (
    'form',
    'vote_norm',
    'agreement',
    'agreement_scale',
    'average',
    'floor',
  ),
  'shortcut': ('source_norm',),
}
# Defaults of format 1 that are not today's.
_FIRST = {
  'agg': {'zero_out': False},
  'routing': {
    'residual': 'none',
    'stop_gradient': False,
    'variance_floor': 1e-4,
    'route_gain': 0.0,
  },
}


def _saved(tmp_path, **side):
  """Reads what format 1 would have written for a model."""
  fused = SideConfig(**side)
  model = ModelConfig(norm='pre', encoder=fused, decoder=fused)
  values = to_dict(ExperimentConfig(model=model))
  del values['optimizer']['fusion_rate']
  for name in ('diversity_reward', 'diversity_start', 'diversity_rise'):
    del values['training'][name]
  for name in ('encoder', 'decoder'):
    for section, fields in _LATER.items():
      for field in fields:
        del values['model'][name][section][field]
    for section, fields in _FIRST.items():
      values['model'][name][section] |= fields
  path = tmp_path / 'config.json'
  path.write_text(json.dumps({'format': 1} | values))
  return from_json(path)


def test_a_plain_run_is_the_same_run(tmp_path):
  given = ExperimentConfig(model=ModelConfig(norm='pre'))
  assert differing_fields(_saved(tmp_path), given) == []


@pytest.mark.parametrize(
  ('scheme', 'own'),
  [
    ('dynamic_routing', {'agreement': 'product', 'average': 'gain'}),
    ('em_routing', {'variance_floor': 1e-4}),
  ],
)
def test_a_router_keeps_its_form(scheme, own, tmp_path):
  routing = _saved(tmp_path, fusion=scheme).model.encoder.routing
  assert routing == RoutingOptions(
    vote_norm='none', residual='none', stop_gradient=False, **own
  )


def test_options_that_nothing_reads_are_dropped(tmp_path):
  values = to_dict(ExperimentConfig())
  values['model']['encoder'] |= {
    'fusion': 'average',
    'mlrf': {'hops': 6, 'norm': 'plain'},
    'routing': {'iterations': 5},
  }
  path = tmp_path / 'config.json'
  path.write_text(json.dumps({'format': 2} | values))
  side = from_json(path).model.encoder
  assert side == SideConfig('average', {'norm': 'plain'})
  path.write_text(json.dumps({'format': 3} | values))
  message = 'encoder.mlrf.hops: 6 has no effect .*encoder.fusion=.average'
  with pytest.raises(InputError, match=message):
    from_json(path)


def test_trees_shortcuts_and_rates_keep_theirs(tmp_path):
  saved = _saved(tmp_path, fusion='iterative')
  assert saved.model.decoder.agg == AggOptions(zero_out=False)
  assert _saved(tmp_path, fusion='linear').optimizer.fusion_rate == 1.0
  options = ShortcutOptions(source='non_lexical')
  saved = _saved(tmp_path, attention='shortcut', attention_options=options)
  expected = dataclasses.replace(options, source_norm='none')
  assert saved.model.encoder.shortcut == expected
  assert saved.optimizer.fusion_rate == ExperimentConfig().optimizer.fusion_rate
