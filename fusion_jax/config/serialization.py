"""JSON form of a config, its format number, and comparison of two configs."""

import fnmatch
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pydantic

from fusion_jax.bounds import adapter, first_fault, shown
from fusion_jax.config import ExperimentConfig
from fusion_jax.errors import InputError
from fusion_jax.files import read_json

# Format of run directories: what is written, and the only one that is read. It
# goes up when an older version must not read them, or the other way round.
FORMAT = 4

# Fields that a resumed run may change: they do not alter what is computed.
RESUMABLE = (
  'name',
  'data.root',
  'data.prepared',
  'data.test',
  'data.directions.*.test',
  'model.attention_implementation',
  'model.flatten_positions',
  'training.steps',
  'training.max_skipped',
  'training.log_every',
  'training.validate_every',
  'training.save_every',
  'training.translate_sentences',
  'training.translate_beam',
  'training.wandb',
  'training.keep_last',
  'training.keep_best',
  'training.metric',
  'training.patience',
  'decoding',
  'parallel',
)


def to_dict(config: Any) -> dict[str, Any]:
  """Return the config as nested dictionaries of JSON values."""
  return adapter(config.__class__).dump_python(config, mode='json')


def to_json(config: ExperimentConfig) -> str:
  """Return the config and its format as indented JSON, ending in a newline."""
  values = {'format': FORMAT} | to_dict(config)
  return json.dumps(values, indent=2) + '\n'


def from_json(path: Path) -> ExperimentConfig:
  """Read a config that `to_json` wrote."""
  values = read_json(path, dict)
  check_format(values, path.parent)
  del values['format']
  try:
    return from_dict(values)
  except InputError as error:
    raise InputError(f'{path}: {error}') from None


def check_format(values: Mapping[str, Any], directory: Path) -> None:
  """Refuse what another version wrote in another format."""
  written = values.get('format')
  if written != FORMAT:
    raise InputError(
      f'{directory} has the format {shown(written)}, and this fusion_jax reads '
      f'format {FORMAT} alone; use the version that wrote it'
    )


def from_dict(values: Mapping[str, Any]) -> ExperimentConfig:
  """Build and check a config."""
  try:
    return adapter(ExperimentConfig).validate_json(json.dumps(values))
  except pydantic.ValidationError as error:
    field, message = first_fault(error)
    unknown = 'unexpected_keyword_argument', 'extra_forbidden'
    if error.errors()[0]['type'] in unknown:
      message = (
        'no such field; remove it, or update fusion_jax if a newer one wrote it'
      )
    raise InputError(f'config.{field}: {message}') from None


def fields_of(value: Any) -> dict[str, Any] | None:
  """Return the fields of a JSON value; a list's are named '0', '1', ..."""
  if isinstance(value, dict):
    return value
  if isinstance(value, list) and all(isinstance(v, dict) for v in value):
    return {str(number): section for number, section in enumerate(value)}
  return None


def flatten(config: ExperimentConfig) -> dict[str, Any]:
  """Return the leaves of the config in one dictionary of dotted names."""

  def walk(values: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    leaves: dict[str, Any] = {}
    for name, value in values.items():
      if fields := fields_of(value):
        leaves |= walk(fields, f'{prefix}{name}.')
      elif fields is None or isinstance(value, list):
        leaves[prefix + name] = value
    return leaves

  return walk(to_dict(config), '')


def differing_fields(
  saved: ExperimentConfig, given: ExperimentConfig
) -> list[str]:
  """Return the dotted names in which two configs differ, without RESUMABLE.

  A name that only one config has is included.
  """
  saved_leaves, given_leaves = flatten(saved), flatten(given)
  free = resumable_fields(given)
  return [
    name
    for name in given_leaves | saved_leaves
    if saved_leaves.get(name, _ABSENT) != given_leaves.get(name, _ABSENT)
    and not is_among(name, free)
  ]


_ABSENT = object()


def resumable_fields(config: ExperimentConfig) -> tuple[str, ...]:
  """Return RESUMABLE, without 'training.steps' where a cosine ends there."""
  fixed = {'training.steps'} if config.optimizer.schedule == 'cosine' else ()
  return tuple(name for name in RESUMABLE if name not in fixed)


def is_among(name: str, fields: Iterable[str]) -> bool:
  """Return whether a dotted name is one of some fields, or is in a section."""
  return any(
    fnmatch.fnmatchcase(name, pattern)
    for field in fields
    for pattern in (field, field + '.*')
  )
