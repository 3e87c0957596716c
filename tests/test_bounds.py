"""No number of a config is taken that cannot work."""

import argparse
import dataclasses
import math

import pytest

from fusion_jax import bounds
from fusion_jax.config import (
  DataConfig,
  Direction,
  ExperimentConfig,
  SideConfig,
)
from fusion_jax.config.fusion import OPTIONS_OF
from fusion_jax.config.serialization import (
  fields_of,
  flatten,
  from_dict,
  to_dict,
)
from fusion_jax.errors import InputError
from fusion_jax.fusion import SCHEMES, SOURCES

_CONFIG = ExperimentConfig(
  data=DataConfig(directions=(Direction('de', 'en', ('a.{lang}',)),))
)
_LEAVES = flatten(_CONFIG)
_NUMBERS = [
  name
  for name, value in _LEAVES.items()
  if isinstance(value, (int, float)) and not isinstance(value, bool)
]
_OPTIONS = [
  (field, name, option)
  for field, table in (('fusion', SCHEMES), ('attention', SOURCES))
  for name, row in table.items()
  for option, value in to_dict(row.options()).items()
  if isinstance(value, (int, float)) and not isinstance(value, bool)
]
_WILD = math.nan, math.inf, -math.inf, -1, 2**63, 1e300
# What of it is allowed, and why.
_ALLOWED = {('parallel.data', -1): 'the devices that the other axes leave'}


def _from_json(name, value):
  values = to_dict(_CONFIG)
  *sections, field = name.split('.')
  parent = values
  for section in sections:
    parent = fields_of(parent[section])
  parent[field] = value
  return from_dict(values)


def _directly(options, name, value):
  section, _, rest = name.partition('.')
  if isinstance(options, tuple):
    return (_directly(options[int(section)], rest, value),)
  if rest:
    value = _directly(getattr(options, section), rest, value)
  return dataclasses.replace(options, **{section: value})


@pytest.mark.parametrize('name', _NUMBERS)
def test_a_wild_number_is_refused_by_its_name(name):
  for value in _WILD:
    if (name, value) in _ALLOWED:
      _from_json(name, value)
      continue
    builds = [_from_json]
    # Of another type than the field: jaxtyping refuses it first in tests.
    if type(value) is type(_LEAVES[name]):
      builds.append(lambda *given: _directly(_CONFIG, *given))
    for build in builds:
      with pytest.raises(InputError) as raised:
        build(name, value)
      message = str(raised.value)
      assert message.startswith(f'config.{name.split(".")[0]}.'), message
      assert f'{name.split(".")[-1]}: ' in message
      assert '\n' not in message


def test_there_are_numbers_of_every_part():
  parts = {name.split('.')[0] for name in _NUMBERS}
  others = {'name'}
  assert parts == {f.name for f in dataclasses.fields(_CONFIG)} - others
  assert 'data.directions.0.weight' in _NUMBERS


@pytest.mark.parametrize(('field', 'name', 'option'), _OPTIONS)
def test_a_wild_number_of_a_scheme_is_refused(field, name, option):
  for value in _WILD:
    side = {field: name, OPTIONS_OF[field]: {option: value}}
    for build in (_encoder_from_json, SideConfig):
      with pytest.raises(InputError, match=f'options.{option}: ') as raised:
        build(**side)
      assert '\n' not in str(raised.value)


def _encoder_from_json(**side):
  return from_dict({'model': {'encoder': side}})


@pytest.mark.parametrize(
  ('name', 'value'),
  [
    ('model.encoder_layers', 100_000),
    ('model.width', 2**40),
    ('data.batch.tokens', 10**15),
    ('training.seed', 2**32),
    ('decoding.max_length_extra', 10**9),
    ('optimizer.epsilon', 1e-300),
    ('decoding.temperature', 1e-300),
    ('model.norm_epsilon', 0.0),
    pytest.param('training.steps', 10**5_000, id='5,000 digits'),
    ('name', 'a\0b'),
    ('data.root', '\ud800'),
  ],
)
def test_more_that_cannot_work(name, value):
  with pytest.raises(InputError) as raised:
    _directly(_CONFIG, name, value)
  assert len(str(raised.value)) < 200


def test_the_nearest_choice_is_named():
  with pytest.raises(InputError, match=r"got 'Pre'; did you mean 'pre'\?"):
    from_dict({'model': {'norm': 'Pre'}})
  with pytest.raises(InputError, match=r"did you mean 'em_routing'\?"):
    from_dict({'model': {'encoder': {'fusion': 'em_ruting'}}})


@pytest.mark.parametrize(
  ('kind', 'text', 'expected'),
  [
    (bounds.Natural, '0', 0),
    (bounds.Positive, '1_000', 1_000),
    (bounds.PositiveFloat, '1e-3', 1e-3),
    (bounds.Positive, '0', 'must be >= 1, got 0'),
    (bounds.Natural, '-1', 'must be >= 0, got -1'),
    (bounds.Natural, 'x', "must be a whole number, got 'x'"),
    (bounds.Natural, '1.5', "must be a whole number, got '1.5'"),
    (bounds.Natural, '9' * 10, 'must be <= 2147483647, got 9999999999'),
    (bounds.NotNegative, 'nan', 'must be finite, got nan'),
    (bounds.NotNegative, 'inf', 'must be finite, got inf'),
    (bounds.NotNegative, '2e9', 'must be <= 1000000000, got 2000000000.0'),
    (bounds.PositiveFloat, '-1', 'must be > 0, got -1.0'),
  ],
)
def test_numbers_of_flags(kind, text, expected):
  read = bounds.number(kind)
  if not isinstance(expected, str):
    assert read(text) == expected
    return
  with pytest.raises(argparse.ArgumentTypeError) as raised:
    read(text)
  assert str(raised.value) == expected
