import dataclasses
import json
import tomllib
from pathlib import Path

import pytest

from fusion_jax.config import (
  PRESETS,
  DataConfig,
  ExperimentConfig,
  ModelConfig,
  OptimizerConfig,
  TokenizerConfig,
)
from fusion_jax.config.serialization import (
  FORMAT,
  differing_fields,
  flatten,
  from_dict,
  from_json,
  resumable_fields,
  to_dict,
  to_json,
)
from fusion_jax.errors import InputError

_REFUSED = tomllib.loads(Path(__file__).with_name('refused.toml').read_text())[
  'refused'
]


def test_the_saved_form_reads_back(tmp_path):
  config = ExperimentConfig(
    name='x', data=DataConfig(train=('a.{lang}', 'b.{lang}.gz'))
  )
  assert from_dict(to_dict(config)) == config
  path = tmp_path / 'config.json'
  path.write_text(to_json(config))
  assert path.read_text().endswith('}\n')
  assert from_json(path) == config


@pytest.mark.parametrize('row', _REFUSED, ids=lambda row: row['message'])
def test_a_bad_value_is_one_line_with_its_field(row):
  with pytest.raises(InputError, match=row['message']) as error:
    from_dict(row['values'])
  assert '\n' not in str(error.value)


def test_differing_fields_leave_out_what_a_resumed_run_may_change():
  config = ExperimentConfig()
  assert differing_fields(config, config) == []
  other = dataclasses.replace(
    config,
    model=ModelConfig(width=256, dropout=0.2),
    training=dataclasses.replace(config.training, steps=7, patience=3),
    decoding=dataclasses.replace(config.decoding, beam_size=9),
  )
  assert differing_fields(config, other) == ['model.width', 'model.dropout']


def test_a_cosine_ends_where_it_was_begun():
  config = ExperimentConfig(optimizer=OptimizerConfig(schedule='cosine'))
  other = dataclasses.replace(
    config,
    training=dataclasses.replace(config.training, steps=9_000, max_skipped=3),
  )
  assert differing_fields(config, other) == ['training.steps']
  assert 'training.steps' not in resumable_fields(config)


def test_flatten_names_every_leaf():
  leaves = flatten(ExperimentConfig())
  assert leaves['data.tokenizer.vocabulary_size'] == 32_000
  assert not any(isinstance(value, dict) for value in leaves.values())


def test_presets_are_those_of_the_paper():
  # Vaswani et al. (2017), Table 3: N, d_model, d_ff, h of base and big.
  sizes = {
    name: (p.encoder_layers, p.width, p.filter, p.heads)
    for name, p in PRESETS.items()
  }
  assert sizes['base'] == (6, 512, 2048, 8)
  assert sizes['big'] == (6, 1024, 4096, 16)
  assert PRESETS['base'].head_width == PRESETS['big'].head_width == 64


def test_models_per_side_come_in_pairs():
  with pytest.raises(InputError, match='give both'):
    TokenizerConfig(joint=False, source_model='a.model')
  with pytest.raises(InputError, match='source_model serves both'):
    TokenizerConfig(joint=True, source_model='a', target_model='b')


@pytest.mark.parametrize(
  ('change', 'message'),
  [
    ({'model': []}, 'config.model: must be an object, got []'),
    ({'model': {'encoder': 'x'}}, 'config.model.encoder: must be an object, g'),
    (
      {'model': {'encoder': {'fusion': 'hops', 'options': {'hops': 'x'}}}},
      'config.model.encoder.options.hops: must be a whole number',
    ),
    (
      {'model': {'encoder': {'fusion': ['linear']}}},
      "config.model.encoder.fusion: must be text, got ['linear']",
    ),
    ({'optimizer': 3}, 'config.optimizer: must be an object, got 3'),
    ({'training': {'patience': float('inf')}}, 'not JSON: Out of range float'),
    ({'data': {'root': 'a\0'}}, 'config.data.root: must be UTF-8 text without'),
    ({'na\nme': 1}, 'config.na\\nme: no such field'),
    ({'format': 0}, 'has the format 0, and this fusion_jax reads format'),
  ],
)
def test_a_config_of_another_shape(tmp_path, change, message):
  path = tmp_path / 'config.json'
  values = {'format': FORMAT} | to_dict(ExperimentConfig()) | change
  path.write_text(json.dumps(values))
  with pytest.raises(InputError) as raised:
    from_json(path)
  assert str(raised.value).startswith(str(tmp_path))
  assert message in str(raised.value)
  assert '\n' not in str(raised.value)
