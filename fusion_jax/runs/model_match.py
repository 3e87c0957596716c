"""Checks that a checkpoint fits the model, by fields and by array shapes."""

import fnmatch
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from fusion_jax.config import ExperimentConfig
from fusion_jax.config.serialization import flatten
from fusion_jax.errors import InputError
from fusion_jax.models.parameter_kinds import path_name
from fusion_jax.models.transformer import Parameters

# Fields that decide what a trained model computes; tags are part of its input.
_DECISIVE = ('model.*', 'data.source_tag', 'data.target_tag')

# Exceptions: dropout and remat matter in training only, and trained parameters
# do not depend on how they were initialised.
_FREE = (
  'model.attention_implementation',
  'model.dropout',
  'model.*_dropout',
  'model.*.options.dropout',
  'model.dropout_generator',
  'model.flatten_positions',
  'model.initialization',
  'model.remat',
  'model.remat_policy',
)


def model_fields(config: ExperimentConfig) -> dict[str, Any]:
  """Return the fields that decide what a trained model computes.

  Their names are dotted.
  """
  return {
    name: value
    for name, value in flatten(config).items()
    if _matches(name, _DECISIVE) and not _matches(name, _FREE)
  }


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
  return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def check_fields(
  path: Path, stored: Mapping[str, Any], wanted: Mapping[str, Any]
) -> None:
  """Refuse a checkpoint of another model, even if its arrays fit."""
  different = [
    f'{name} is {stored[name]!r} there and {wanted[name]!r} here'
    for name in wanted
    if name in stored and stored[name] != wanted[name]
  ]
  if different:
    raise _another_model(path, ', '.join(different))


def check_model(
  path: Path, meta: Mapping[str, Any], wanted: Parameters
) -> None:
  """Refuse a checkpoint whose parameters do not fit."""
  stored = _stored_shapes(path, meta)
  difference = stored and _difference(stored, _shapes(wanted))
  if difference:
    raise _another_model(path, difference)


def _another_model(path: Path, difference: str) -> InputError:
  return InputError(
    f'{path}: holds another model than that of config.json: {difference}; '
    'put back the config.json that it was trained with, or give another '
    '--workdir'
  )


def _stored_shapes(
  path: Path, meta: Mapping[str, Any]
) -> dict[str, tuple[int, ...]]:
  """Return the shapes of a checkpoint's parameters; none if it is damaged."""
  if 'arrays' in meta:
    return {
      name.removeprefix('parameters/'): tuple(array['shape'])
      for name, array in meta['arrays'].items()
      if name.startswith('parameters/')
    }
  try:
    with ocp.StandardCheckpointer() as checkpointer:
      found = checkpointer.metadata(path / 'parameters').item_metadata
  except (OSError, ValueError, KeyError):
    return {}
  return {} if found is None else _shapes(found.tree)


def _shapes(tree: Any) -> dict[str, tuple[int, ...]]:
  return {
    path_name(path): tuple(leaf.shape)
    for path, leaf in jax.tree.leaves_with_path(tree)
  }


def _difference(
  stored: dict[str, tuple[int, ...]], wanted: dict[str, tuple[int, ...]]
) -> str:
  """Describe the first parameter that differs; '' if none does."""
  for name in sorted(stored | wanted):
    there, here = stored.get(name), wanted.get(name)
    if there is None:
      return f'it has no {name}'
    if here is None:
      return f'it has {name}, which this model lacks'
    if there != here:
      return f'{name} is {list(there)} there and {list(here)} here'
  return ''
