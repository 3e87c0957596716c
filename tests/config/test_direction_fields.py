"""Directions and tags in a config: checks, flags, the saved form."""

import dataclasses
import json

import pytest

from fusion_jax.config import DataConfig, Direction, ExperimentConfig
from fusion_jax.config.flags import override
from fusion_jax.config.serialization import differing_fields, flatten, to_dict
from fusion_jax.errors import InputError

DE_EN = Direction('de', 'en', ('a.{lang}', 'b.{lang}'), weight=2.0)
EN_DE = Direction('en', 'de', ('a.{lang}',), ('valid.{lang}',))
EN_FR = Direction('en', 'fr', ('c.{lang}',))
CONFIG = ExperimentConfig(
  data=DataConfig(directions=(DE_EN, EN_DE, EN_FR), target_tag='<2{lang}>')
)


def test_a_config_has_one_direction_and_no_tags():
  config = ExperimentConfig()
  (only,) = config.data.all_directions
  assert only.name == 'en-de'
  assert only.train == ('embedded:train',)
  assert config.data.all_tags == ()


def test_tags_stand_in_their_order():
  data = dataclasses.replace(CONFIG.data, source_tag='<{lang}>')
  assert data.tags('en', 'fr') == ('<en>', '<2fr>')
  assert CONFIG.data.tags('en', 'fr') == ('<2fr>',)
  assert data.all_tags == ('<de>', '<2en>', '<en>', '<2de>', '<2fr>')
  alone = data.between('fr', 'de')
  assert [each.name for each in alone.all_directions] == ['fr-de']
  assert alone.all_tags == ('<fr>', '<2de>')


def test_a_direction_alone_has_its_own_text():
  directions = (
    Direction('de', 'en', ('a.{lang}',), ('b.{lang}',), ('c.{lang}',)),
    Direction('en', 'de', ('d.{lang}',)),
    Direction('fr', 'en', ('e.{lang}',), ('f.{lang}',)),
  )
  data = DataConfig(directions=directions, target_tag='<2{lang}>')
  for each in directions:
    pair = each.source_language, each.target_language
    assert data.between(*pair).all_directions == (each,)
  zero_shot = data.between('fr', 'de')
  assert zero_shot.valid == zero_shot.test == ()
  one = DataConfig(valid=('x.{lang}',))
  assert one.between('en', 'de') == one


def test_flags_reach_into_a_direction():
  flags = [
    ('data.directions.0.weight', '3'),
    ('data.directions.1.train', 'x.{lang},y.{lang}'),
    ('data.mixing_temperature', '5'),
  ]
  data = override(CONFIG, flags).data
  assert data.directions == (
    dataclasses.replace(DE_EN, weight=3.0),
    dataclasses.replace(EN_DE, train=('x.{lang}', 'y.{lang}')),
    EN_FR,
  )
  assert data.mixing_temperature == 5.0
  # And may give them all.
  given = json.dumps(to_dict(CONFIG)['data']['directions'][1:])
  flags = [('data.target_tag', '<{lang}>'), ('data.directions', given)]
  assert override(ExperimentConfig(), flags).data.directions == (EN_DE, EN_FR)


def test_leaves_of_directions_have_numbers():
  leaves = flatten(CONFIG)
  assert leaves['data.directions.0.weight'] == 2.0
  assert leaves['data.directions.2.train'] == ['c.{lang}']
  assert 'data.directions' not in leaves
  assert flatten(ExperimentConfig())['data.directions'] == []


def test_what_differs_between_directions():
  test = override(CONFIG, [('data.directions.1.test', 't.{lang}')])
  assert differing_fields(CONFIG, test) == []
  heavier = override(CONFIG, [('data.directions.1.weight', '3')])
  assert differing_fields(CONFIG, heavier) == ['data.directions.1.weight']
  data = dataclasses.replace(CONFIG.data, directions=(DE_EN, EN_DE))
  fewer = dataclasses.replace(CONFIG, data=data)
  names = differing_fields(CONFIG, fewer)
  assert names == differing_fields(fewer, CONFIG)
  fields = 'source_language', 'target_language', 'train', 'valid', 'weight'
  assert names == [f'data.directions.2.{field}' for field in fields]


@pytest.mark.parametrize(
  ('name', 'value', 'message'),
  [
    ('directions.0.train', '', 'directions: de-en: its train must name at lea'),
    ('directions.0.weight', '0', 'directions.0.weight: must be > 0, got 0'),
    ('directions.0.weight', '1e999', '0.weight: must be finite, got inf'),
    ('directions.0.weight', 'x', 'directions.0.weight: must be a number, go'),
    ('directions.2.target_language', 'de', 'en-de is there twice; join its c'),
    ('directions.0.target_language', 'de', 'de-de: source and target languag'),
    ('directions.3.weight', '1', 'directions.3: no such field; config.data.di'),
    ('directions.0.wait', '1', 'did you mean config.data.directions.0.weight?'),
    ('directions.0', 'x', 'is a section; give one of its fields: source_lang'),
    ('directions.0.weight.x', '1', 'config.data.directions.0.weight has no f'),
    ('mixing_temperature', '0', 'mixing_temperature: must be > 0, got 0'),
    ('mixing_temperature', '-1', 'mixing_temperature: must be > 0, got -1'),
    (
      'target_tag',
      '',
      "must not be empty with en-de and en-fr; '<2{lang}>' is",
    ),
    ('target_tag', '<2de>', 'target_tag: must have {lang} where the language'),
    ('target_tag', '<2 {lang}>', "target_tag: '<2 en>' is no legal symbol"),
    ('source_tag', '▁{lang}', "source_tag: '▁de' is no legal symbol"),
    ('source_tag', '{lang}\t', 'is no legal symbol'),
    ('train', 'x.{lang}', 'data.train: has no effect with data.directions'),
    ('source_language', 'fr', 'source_language: has no effect with data.dire'),
  ],
)
def test_a_mistake_is_one_line(name, value, message):
  with pytest.raises(InputError) as raised:
    override(CONFIG, [(f'data.{name}', value)])
  assert message in str(raised.value)
  assert '\n' not in str(raised.value)


def test_a_tag_must_not_be_a_symbol_of_the_model():
  with pytest.raises(InputError, match="source_tag: '<s>' is no legal symbol"):
    DataConfig(source_language='s', source_tag='<{lang}>')


def test_directions_without_a_tag_must_be_told_by_their_source():
  data = DataConfig(directions=(DE_EN, EN_DE))
  assert data.all_tags == ()
