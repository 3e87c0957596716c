"""Which values the fields of a config can have, said by their types.

A number's type is `Annotated` with its bounds; upper ones that no comment
explains are far above what can work. `check_fields` holds every field of a
section to its type; a number without bounds must still be finite.
"""

import argparse
import dataclasses
import difflib
import functools
import math
import operator
import reprlib
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

from fusion_jax.errors import require

_HOLDS = {
  '>': operator.gt,
  '>=': operator.ge,
  '<': operator.lt,
  '<=': operator.le,
}


class Bound(NamedTuple):
  """What holds for a number: that it is `sign` `limit`."""

  sign: Literal['>', '>=', '<', '<=']
  limit: float


# What an int32 can hold.
_Int: TypeAlias = Annotated[int, Bound('<=', 2**31 - 1)]
Positive: TypeAlias = Annotated[_Int, Bound('>=', 1)]
Natural: TypeAlias = Annotated[_Int, Bound('>=', 0)]
# Positions along an axis of an array; with 0 where that chooses one.
Size: TypeAlias = Annotated[Positive, Bound('<=', 2**20)]
SizeOrZero: TypeAlias = Annotated[Natural, Bound('<=', 2**20)]
# Layers and the like, each of which is compiled.
Depth: TypeAlias = Annotated[Positive, Bound('<=', 1_000)]
Beam: TypeAlias = Annotated[Positive, Bound('<=', 4_096)]
# JAX takes a seed modulo 2^32.
Seed: TypeAlias = Annotated[int, Bound('<=', 2**32 - 1), Bound('>=', 0)]

# What float32 can hold, and still be multiplied.
_Float: TypeAlias = Annotated[float, Bound('<=', 10**9)]
NotNegative: TypeAlias = Annotated[_Float, Bound('>=', 0)]
PositiveFloat: TypeAlias = Annotated[_Float, Bound('>=', 1e-30), Bound('>', 0)]
Probability: TypeAlias = Annotated[float, Bound('<=', 1), Bound('>=', 0)]
# Below 1: of what is dropped or smoothed away, something is left.
Share: TypeAlias = Annotated[float, Bound('<', 1), Bound('>=', 0)]


def check_fields(options: Any, section: str = '') -> None:
  """Refuses values that the types of the fields do not have.

  Args:
    options: a dataclass; sections in it are looked at too.
    section: its dotted name; '': of the whole config.

  Raises:
    InputError: names the first such field, and what would be right.
  """
  for name, kind in kinds_of(type(options)).items():
    value, path = getattr(options, name), f'{section}.{name}'.lstrip('.')
    fault = fault_of(value, kind)
    require(not fault, path, fault)
    if dataclasses.is_dataclass(kind):
      check_fields(value, path)


@functools.cache
def kinds_of(options: type) -> Mapping[str, Any]:
  """The types of a dataclass's fields, with their bounds."""
  return typing.get_type_hints(options, include_extras=True)


def fault_of(value: Any, kind: Any) -> str:
  """Says what is wrong with a value; '' where nothing is.

  Args:
    value: of a field.
    kind: the type of the field.
  """
  origin = typing.get_origin(kind)
  if origin is Literal:
    return choice_fault(value, typing.get_args(kind))
  if origin is tuple:
    if not isinstance(value, (tuple, list)):
      return f'must be a tuple, got {shown(value)}'
    faults = (fault_of(item, typing.get_args(kind)[0]) for item in value)
    return next(filter(None, faults), '')
  plain, *bounds = typing.get_args(kind) if origin is Annotated else (kind,)
  if plain in (int, float):
    return _number_fault(value, plain, bounds)
  if plain is str:
    return _text_fault(value)
  name = 'True or False' if plain is bool else f'a {plain.__name__}'
  return (
    '' if isinstance(value, plain) else f'must be {name}, got {shown(value)}'
  )


def choice_fault(value: Any, choices: Iterable[str]) -> str:
  """The fault of a value that must be one of several texts."""
  names = tuple(choices)
  if value in names:
    return ''
  *most, last = map(repr, names)
  text = str(value).lower()
  close = difflib.get_close_matches(text, names, n=1)
  hint = f'; did you mean {close[0]!r}?' if close else ''
  return f'must be {", ".join(most)} or {last}, got {shown(value)}{hint}'


def _number_fault(value: Any, kind: type, bounds: Iterable[Bound]) -> str:
  numbers = (int, float) if kind is float else int
  if isinstance(value, bool) or not isinstance(value, numbers):
    name = 'a number' if kind is float else 'a whole number'
    return f'must be {name}, got {shown(value)}'
  if isinstance(value, float) and math.isnan(value):
    return 'must be finite, got nan'
  # The bounds that were annotated last are the narrowest.
  for sign, limit in reversed(tuple(bounds)):
    if not _HOLDS[sign](value, limit):
      return f'must be {sign} {limit}, got {shown(value)}'
  finite = isinstance(value, int) or math.isfinite(value)
  return '' if finite else f'must be finite, got {value}'


def _text_fault(value: Any) -> str:
  if not isinstance(value, str):
    return f'must be text, got {shown(value)}'
  if '\0' in value or any('\ud800' <= each <= '\udfff' for each in value):
    return f'must be UTF-8 text without NUL, got {shown(value)}'
  return ''


def shown(value: Any) -> str:
  """A value in a message, shortened."""
  if isinstance(value, int):
    # Of very large numbers Python makes no text.
    return str(value) if abs(value) < 10**40 else 'a number of over 40 digits'
  return _SHORT.repr(value)


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 120


def number(kind: Any) -> Callable[[str], Any]:
  """Reads a flag's text as a number within the bounds of a type.

  Args:
    kind: one of the types above, or of a field.

  Returns:
    For `type` of argparse's `add_argument`.
  """
  plain = typing.get_args(kind)[0] if typing.get_origin(kind) else kind

  def read(text: str) -> Any:
    try:
      value = plain(text)
    except ValueError:
      value = text
    if fault := fault_of(value, kind):
      raise argparse.ArgumentTypeError(fault)
    return value

  return read
