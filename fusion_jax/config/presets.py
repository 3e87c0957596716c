"""Rows of the papers' tables, for the files in `configs/`.

A row holds its changes of its paper's baseline: dotted names of fields of
`ExperimentConfig`, as on the command line, and their values. `|` joins rows;
the right one wins. `presets.toml` has them in a short form.
"""

import dataclasses
import tomllib
from collections.abc import Mapping
from importlib import resources
from typing import Any, TypeVar

from fusion_jax.config import PRESETS
from fusion_jax.config.fusion import OPTIONS_OF
from fusion_jax.errors import InputError

Row = dict[str, Any]
Config = TypeVar('Config')


def choose(rows: Mapping[str, Row], variant: str) -> Row:
  """Return the row of a variant."""
  if variant not in rows:
    raise InputError(
      f'--config: no variant {variant!r}; there are {", ".join(rows)}'
    )
  return rows[variant]


def changed(config: Config, row: Row) -> Config:
  """Return a frozen dataclass with the changes of a row."""
  whole: Any = config
  values: Row = {}
  parts: dict[str, Row] = {}
  for name, value in row.items():
    field, _, rest = name.partition('.')
    if rest:
      parts.setdefault(field, {})[rest] = value
    elif isinstance(value, Mapping):
      values[field] = type(getattr(config, field))(**value)
    else:
      values[field] = value
  # What a section has may depend on the values beside it.
  whole = dataclasses.replace(whole, **values)
  return dataclasses.replace(
    whole,
    **{
      name: changed(getattr(whole, name), part) for name, part in parts.items()
    },
  )


def encoder(fusion: str, /, **options: Any) -> Row:
  """Return a row with the scheme of the encoder and its options."""
  return {'model.encoder': _side({'fusion': fusion} | options)}


def decoder(fusion: str, /, **options: Any) -> Row:
  """Return a row with the scheme of the decoder and its options."""
  return {'model.decoder': _side({'fusion': fusion} | options)}


def both_sides(fusion: str, /, **options: Any) -> Row:
  """Return a row with one scheme for both sides and its options."""
  return encoder(fusion, **options) | decoder(fusion, **options)


def attention(name: str, /, **options: Any) -> Row:
  """Return a row with one source of attention for both sides."""
  side = _side({'attention': name} | options)
  return {'model.encoder': side, 'model.decoder': side}


def depth(encoder_layers: int, decoder_layers: int, **fields: Any) -> Row:
  """Return a row with the depth of both stacks and other model fields."""
  layers = {'encoder_layers': encoder_layers, 'decoder_layers': decoder_layers}
  return {f'model.{field}': value for field, value in (layers | fields).items()}


def _side(written: str | Row) -> Row:
  """Return the fields of a side: what is beside a name are its options."""
  row = {'fusion': written} if isinstance(written, str) else dict(written)
  for field, section in OPTIONS_OF.items():
    if field in row:
      name = row.pop(field)
      return {field: name, section: row}
  return row


def _row(written: Row) -> Row:
  row: Row = {}
  for name, value in written.items():
    if name in ('encoder', 'decoder', 'both'):
      sides = ('encoder', 'decoder') if name == 'both' else (name,)
      row |= {f'model.{side}': _side(value) for side in sides}
    else:
      row |= {f'{name}.{field}': changed for field, changed in value.items()}
  return row


# Transformer big, on top of base (Vaswani et al. 2017, Table 3).
BIG: Row = {
  f'model.{field}': getattr(PRESETS['big'], field)
  for field in ('width', 'filter', 'heads', 'dropout')
} | {'training.steps': 300_000}

_TABLES = tomllib.loads(
  resources.files(__package__).joinpath('presets.toml').read_text('utf-8')
)


def _rows(paper: str) -> Mapping[str, Row]:
  return {name: _row(written) for name, written in _TABLES[paper].items()}


DOU_2018 = _rows('DOU_2018')
DOU_2019 = _rows('DOU_2019')
WANG_2018 = _rows('WANG_2018')
EMELIN_2019 = _rows('EMELIN_2019')
YANG_2022 = _rows('YANG_2022')
SINCE_2020 = _rows('SINCE_2020')
