"""Sections of a config: frozen dataclasses that refuse values that cannot work.

The type of a field has its bounds, and the text below a field is its help.
"""

import difflib
import functools
from collections.abc import Callable
from typing import Any, TypeVar, dataclass_transform

import pydantic
from pydantic.fields import FieldInfo

from fusion_jax.bounds import first_fault, shown
from fusion_jax.errors import InputError

_Section = TypeVar('_Section')

_CHECKED = pydantic.ConfigDict(
  allow_inf_nan=False,
  extra='forbid',
  strict=True,
  use_attribute_docstrings=True,
)


@dataclass_transform(frozen_default=True)
def section(path: str) -> Callable[[type[_Section]], type[_Section]]:
  """Return a decorator that makes a class a section of the config."""

  def decorate(cls: type[_Section]) -> type[_Section]:
    made: Any = pydantic.dataclasses.dataclass(frozen=True, config=_CHECKED)(
      cls
    )
    _inherit_help(made)
    build = made.__init__

    @functools.wraps(build)
    def checked(self, *values, **fields):
      try:
        build(self, *values, **fields)
      except pydantic.ValidationError as error:
        field, message = _fault(error, made)
        place = '.'.join(filter(None, ('config', path, field)))
        raise InputError(f'{place}: {message}') from None

    made.__init__ = checked
    return made

  return decorate


def _inherit_help(options: type) -> None:
  """Give inherited fields their text, which pydantic reads in one class."""
  for base in options.__mro__[1:]:
    for name, field in getattr(base, '__pydantic_fields__', {}).items():
      ours = fields_of_section(options)[name]
      ours.description = ours.description or field.description


def _fault(error: pydantic.ValidationError, options: type) -> tuple[str, str]:
  """Return the first wrong field, and what is wrong in words of Python."""
  field, message = first_fault(error)
  position, dot, rest = field.partition('.')
  if position.isdecimal():  # Of a value that was given without its name.
    field = [*fields_of_section(options)][int(position)] + dot + rest
  first = error.errors()[0]
  if first['type'].startswith('dataclass'):
    name, given = first['ctx']['class_name'], shown(first['input'])
    return field, f'must be a {name}, got {given}'
  if first['type'] == 'unexpected_keyword_argument':
    close = difflib.get_close_matches(field, fields_of_section(options), n=1)
    hint = f'; did you mean {close[0]}?' if close else ''
    return field, f'no such field{hint}'
  return field, message


def fields_of_section(options: type) -> dict[str, FieldInfo]:
  """Return the fields of a section, with their types, bounds and help."""
  assert pydantic.dataclasses.is_pydantic_dataclass(options)
  return options.__pydantic_fields__
