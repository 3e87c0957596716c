"""Models of other programs: what is read, and made of the weights."""

import argparse
import dataclasses
import fnmatch
import tomllib
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from flax import traverse_util

from fusion_jax.config import (
  DataConfig,
  DecodingConfig,
  ExperimentConfig,
  ModelConfig,
  TokenizerConfig,
)
from fusion_jax.errors import InputError
from fusion_jax.files import as_type
from fusion_jax.models.transformer import Transformer, initial_parameters
from fusion_jax.tools.importers.vocabularies import Sides


class ProgramNames(NamedTuple):
  """Names of a program; see names.toml."""

  spare: Sequence[str]
  tables: Mapping[str, Sequence[str]]
  prefix: str = ''
  shared: Sequence[str] = ()
  old: Mapping[str, str] = types.MappingProxyType({})


_FILE = Path(__file__).with_name('names.toml')
_NAMES = tomllib.loads(_FILE.read_text('utf-8'))
PROGRAMS = {n: ProgramNames(**v) for n, v in _NAMES['programs'].items()}


class Imported(NamedTuple):
  """Model of another program as a run; `file` is named in messages."""

  config: ExperimentConfig
  sides: Sides
  file: Path
  arrays: Mapping[str, np.ndarray]
  names: ProgramNames


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
  """Options of both programs that decide what the model computes."""

  encoder_layers: int
  decoder_layers: int
  encoder_attention_heads: int
  decoder_attention_heads: int
  dropout: float = 0.1
  attention_dropout: float = 0.0
  activation_dropout: float = 0.0

  def model(self, activation: str, **fields: Any) -> ModelConfig:
    """Return the configuration of the model, with further fields."""
    return ModelConfig(
      heads=self.encoder_attention_heads,
      encoder_layers=self.encoder_layers,
      decoder_layers=self.decoder_layers,
      norm_epsilon=1e-5,
      activation='relu' if activation == 'relu' else 'silu',
      dropout=self.dropout,
      attention_dropout=self.attention_dropout,
      activation_dropout=self.activation_dropout,
      embedding_dropout=self.dropout,
      **fields,
    )


_Options = TypeVar('_Options', bound=Options)


def read_options(
  values: Mapping[str, Any],
  kind: type[_Options],
  same: Sequence[str],
  name: Path,
) -> _Options:
  """Check options; those of `same` must be equal for both sides."""
  named = {field.name for field in dataclasses.fields(kind)}
  known = {n: v for n, v in values.items() if n in named and v is not None}
  options: _Options = as_type(known, kind, str(name))
  for what in same:
    encoder, decoder = (
      getattr(options, f'{side}_{what}') for side in ('encoder', 'decoder')
    )
    if encoder != decoder:
      raise InputError(
        f'{name}: encoder_{what} is {encoder} and decoder_{what} is {decoder}; '
        'both must be the same'
      )
  return options


def languages_of(
  flags: argparse.Namespace, name: Path, source: str, target: str
) -> tuple[str, str]:
  """Return the languages that the user gives, or those of the files."""
  source = flags.source_language or source
  target = flags.target_language or target
  if not (source and target):
    raise InputError(
      f'{name}: does not name its languages; give --source_language and '
      '--target_language, as codes'
    )
  return source, target


def config_of(
  flags: argparse.Namespace,
  languages: tuple[str, str],
  model: ModelConfig,
  decoding: DecodingConfig,
  target_tag: str = '',
) -> ExperimentConfig:
  folder = flags.output.absolute()
  return ExperimentConfig(
    name=flags.input.resolve().name,
    data=DataConfig(
      source_language=languages[0],
      target_language=languages[1],
      train=('train.{lang}',),
      valid=(),
      test=(),
      target_tag=target_tag,
      tokenizer=TokenizerConfig(
        joint=False,
        source_model=str(folder / 'source.model'),
        target_model=str(folder / 'target.model'),
      ),
    ),
    model=model,
    decoding=decoding,
  )


def parameters_of(imported: Imported, model: Transformer) -> dict[str, Any]:
  """Return the weights as parameters of a model."""
  shapes = traverse_util.flatten_dict(
    jax.eval_shape(lambda: initial_parameters(model, 0)), sep='/'
  )
  ties = model.config.ties_sides
  names = {path: _their_name(path, imported, ties) for path in shapes}
  _check_names(imported, list(names.values()))
  parameters = {
    path: _parameter(imported, name, path, shapes[path].shape)
    for path, name in names.items()
  }
  return traverse_util.unflatten_dict(parameters, sep='/')


def _their_name(path: str, imported: Imported, ties_sides: bool) -> str:
  names = imported.names
  if path in names.tables:
    choices = [*names.tables[path]]
    if path == 'source_embedding' and ties_sides:
      choices += names.shared
    return next((n for n in choices if n in imported.arrays), choices[0])
  side, *place, leaf = path.split('/')
  parts = ['layer_norm']
  if place != ['final_norm']:
    number, *part = place
    number = number.removeprefix('layer_')
    parts = ['layers', number, _NAMES['parts']['/'.join(part)]]
  return '.'.join((names.prefix + side, *parts, _NAMES['leaves'][leaf]))


def _check_names(imported: Imported, read: Sequence[str]) -> None:
  arrays, spare = imported.arrays, imported.names.spare
  if missing := [name for name in read if name not in arrays]:
    raise InputError(
      f'{imported.file}: lacks the weight {_first(missing)}, which '
      'the model of its configuration has; give the files of one model'
    )
  unread = sorted(arrays.keys() - set(read))
  if left := [
    name
    for name in unread
    if not any(fnmatch.fnmatchcase(name, pattern) for pattern in spare)
  ]:
    raise InputError(
      f'{imported.file}: has the weight {_first(left)}, which the model '
      'of its configuration lacks; give the files of one plain Transformer'
    )


def _first(names: Sequence[str]) -> str:
  more = f' and {len(names) - 1} more' if len(names) > 1 else ''
  return names[0] + more


def _parameter(
  imported: Imported, name: str, path: str, shape: tuple[int, ...]
) -> np.ndarray:
  value = imported.sides.grown(path, imported.arrays[name])
  transposed = path.endswith('/kernel')
  theirs = shape[::-1] if transposed else shape
  if value.shape != theirs:
    raise InputError(
      f'{imported.file}: the weight {name} has the shape {list(value.shape)}, '
      f'and the model of its configuration needs {list(theirs)}'
    )
  value = np.asarray(value, np.float32)
  if not np.isfinite(value).all():
    raise InputError(f'{imported.file}: the weight {name} is not finite')
  return np.ascontiguousarray(value.T if transposed else value)
