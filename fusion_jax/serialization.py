"""The JSON form of a config, and how two of them differ."""

import functools
import json
from collections.abc import Mapping
from typing import Any

import pydantic

from fusion_jax.config import ExperimentConfig
from fusion_jax.errors import InputError

# Fields that a resumed run may change: they do not alter what is computed.
RESUMABLE = (
  'name',
  'data.root',
  'data.prepared',
  'data.test',
  'training.steps',
  'training.log_every',
  'training.validate_every',
  'training.save_every',
  'training.translate_sentences',
  'training.translate_beam',
  'training.keep_last',
  'training.keep_best',
  'training.metric',
  'training.patience',
  'decoding',
)


@functools.cache
def _adapter(config_class: type) -> pydantic.TypeAdapter:
  return pydantic.TypeAdapter(config_class)


def to_dict(config: Any) -> dict[str, Any]:
  """The config as nested dictionaries of JSON values."""
  return _adapter(type(config)).dump_python(config, mode='json')


def to_json(config: ExperimentConfig) -> str:
  """The config as indented JSON, ending in a newline."""
  return json.dumps(to_dict(config), indent=2) + '\n'


def from_dict(values: Mapping[str, Any]) -> ExperimentConfig:
  """Builds and checks a config.

  Args:
    values: nested dictionaries; missing fields take their defaults.

  Returns:
    The config.

  Raises:
    InputError: an unknown field, a wrong type or a value out of range.
  """
  try:
    return _adapter(ExperimentConfig).validate_python(values)
  except pydantic.ValidationError as error:
    first = error.errors()[0]
    path = '.'.join(str(part) for part in first['loc'])
    if first['type'] in ('unexpected_keyword_argument', 'extra_forbidden'):
      raise InputError(f'config.{path}: no such field') from None
    message = first['msg'][:1].lower() + first['msg'][1:]
    raise InputError(
      f'config.{path}: {message}, got {first["input"]!r}'
    ) from None


def flatten(config: ExperimentConfig) -> dict[str, Any]:
  """The config as one dictionary of dotted names, leaves only."""

  def walk(values: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    leaves = {}
    for name, value in values.items():
      if isinstance(value, Mapping):
        leaves |= walk(value, f'{prefix}{name}.')
      else:
        leaves[prefix + name] = value
    return leaves

  return walk(to_dict(config), '')


def differing_fields(
  saved: ExperimentConfig, given: ExperimentConfig
) -> list[str]:
  """The dotted names in which two configs differ, RESUMABLE ones left out."""
  saved_leaves, given_leaves = flatten(saved), flatten(given)
  return [
    name
    for name, value in given_leaves.items()
    if saved_leaves[name] != value
    and not any(
      name == free or name.startswith(free + '.') for free in RESUMABLE
    )
  ]
