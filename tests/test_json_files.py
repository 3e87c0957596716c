"""JSON from outside: one line says where, which field and what is wrong."""

import dataclasses
import json
from pathlib import Path

import pytest

from fusion_jax.config import ExperimentConfig
from fusion_jax.config.serialization import FORMAT, from_json, to_dict
from fusion_jax.errors import InputError
from fusion_jax.json_files import parse_json, read_json


@dataclasses.dataclass
class _Shape:
  name: str
  sizes: list[int] = dataclasses.field(default_factory=list)


def _refusal(read, *arguments) -> str:
  with pytest.raises(InputError) as raised:
    read(*arguments)
  assert '\n' not in str(raised.value)
  return str(raised.value)


def test_what_fits_is_handed_on_whole():
  text = '{"name": "\\ud83d\\ude00", "more": [1.5, null]}'
  found = {'name': '😀', 'more': [1.5, None]}
  assert parse_json(text, 'here', _Shape) == found


@pytest.mark.parametrize(
  ('text', 'message'),
  [
    ('', 'here: not JSON: '),
    ('{"name": ', 'here: not JSON: '),
    (b'\xff', 'here: not JSON: '),
    ('9' * 5_000, 'here: not JSON: '),
    ('[' * 100_000, 'here: nested deeper than 64 levels'),
    ('[' * 90 + ']' * 90, 'here: nested deeper than 64 levels'),
    ('{"a": [1, NaN]}', 'here: a.1: must be finite, got nan'),
    ('{"a": 1e999}', 'here: a: must be finite, got inf'),
    ('{"a": "\\ud800"}', 'here: a: half of a surrogate pair is no character'),
    ('{"\\udc00": 1}', 'here: half of a surrogate pair is no character'),
    ('[]', 'here: must be an object, got []'),
    ('{}', 'here: name: is missing'),
    ('{"name": 3}', 'here: name: must be text, got 3'),
    ('{"name": "a", "sizes": {}}', 'here: sizes: must be a list, got {}'),
    (
      '{"name": "a", "sizes": [1, "x"]}',
      "here: sizes.1: must be a whole number, got 'x'",
    ),
  ],
)
def test_what_does_not_fit_is_named(text, message):
  assert _refusal(parse_json, text, 'here', _Shape).startswith(message)


def test_a_file_is_named(tmp_path):
  missing = tmp_path / 'none'
  assert f'{missing}: cannot be read (' in _refusal(read_json, missing)


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
    ({'training': {'patience': float('inf')}}, 'training.patience: must be fi'),
    ({'data': {'root': 'a\0'}}, 'config.data.root: must be UTF-8 text without'),
    ({'na\nme': 1}, 'config.na\\nme: no such field'),
    ({'format': 0}, 'has the format 0, and this fusion_jax reads format'),
  ],
)
def test_a_config_of_another_shape(tmp_path, change, message):
  path = tmp_path / 'config.json'
  values = {'format': FORMAT} | to_dict(ExperimentConfig()) | change
  path.write_text(json.dumps(values))
  refusal = _refusal(from_json, path)
  assert refusal.startswith(str(tmp_path))
  assert message in refusal


@pytest.mark.parametrize('place', ['/dev/zero', '/'])
def test_what_is_no_file_is_not_read(place):
  said = 'is a folder, a pipe or a device, not a file'
  assert _refusal(read_json, Path(place)) == f'{place}: {said}'
