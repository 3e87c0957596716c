"""Types of fields and flags, with their bounds, and what is wrong in words.

Upper bounds that no comment explains are far above what can work.
"""

import argparse
import difflib
import functools
import re
import reprlib
import typing
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Final, TypeAlias

import pydantic
from pydantic import AfterValidator, Field

# By the beginnings of pydantic's names of faults.
_FAULTS = {
  'dataclass': 'must be an object',
  'dict': 'must be an object',
  'list': 'must be a list',
  'tuple': 'must be a list',
  'string_unicode': 'must be UTF-8 text',
  'string': 'must be text',
  'int': 'must be a whole number',
  'float': 'must be a number',
  'finite': 'must be finite',
  'bool': 'must be true or false',
}

# The fault of an option of a scheme, whose fields pydantic does not know.
OPTION: Final = 'scheme_option'

_SIGNS = {
  'greater than or equal to': '>=',
  'less than or equal to': '<=',
  'greater than': '>',
  'less than': '<',
}

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 120


def first_fault(error: pydantic.ValidationError) -> tuple[str, str]:
  """Return the dotted name of the first wrong field, and what is wrong."""
  first = error.errors()[0]
  field = '.'.join(map(str, first['loc']))
  kind = first['type']
  if kind in ('missing', 'missing_argument'):
    return field, 'is missing'
  if kind == 'value_error':
    return field, str(first['ctx']['error'])
  if kind == OPTION:
    return f'{field}.{first["ctx"]["option"]}', first['ctx']['message']
  if kind == 'literal_error':
    expected = first['ctx']['expected']
    choices = re.findall("'([^']*)'", expected)
    if not choices:
      return field, f'must be {expected}, got {shown(first["input"])}'
    return field, choice_fault(first['input'], choices)
  named = (text for name, text in _FAULTS.items() if kind.startswith(name))
  message = next(named, '') or first['msg']
  message = message.replace('Input should be', 'must be')
  for words, sign in _SIGNS.items():
    message = message.replace(words, sign)
  return field, f'{message}, got {shown(first["input"])}'


def choice_fault(value: Any, choices: Iterable[str]) -> str:
  """Return what is wrong with a value that must be one of several texts."""
  names = tuple(choices)
  if value in names:
    return ''
  *most, last = map(repr, names)
  close = difflib.get_close_matches(str(value).lower(), names, n=1)
  hint = f'; did you mean {close[0]!r}?' if close else ''
  listed = f'{", ".join(most)} or {last}' if most else last
  return f'must be {listed}, got {shown(value)}{hint}'


def shown(value: Any) -> str:
  """Return a value as it stands in a message, shortened."""
  if isinstance(value, int):
    # Of very large numbers Python makes no text.
    return str(value) if abs(value) < 10**40 else 'a number of over 40 digits'
  return _SHORT.repr(value)


def _not_tiny(value: float) -> float:
  """Refuse what is 0 as a float32, or as the square of one."""
  if value < 1e-30:
    raise ValueError(f'must be >= 1e-30, got {value}')
  return value


# What an int32 can hold.
_Int: TypeAlias = Annotated[int, Field(le=2**31 - 1)]
Positive: TypeAlias = Annotated[_Int, Field(ge=1)]
Natural: TypeAlias = Annotated[_Int, Field(ge=0)]
# Positions along an axis of an array; with 0 where that chooses one.
Size: TypeAlias = Annotated[int, Field(ge=1, le=2**20)]
SizeOrZero: TypeAlias = Annotated[int, Field(ge=0, le=2**20)]
# Layers and the like, each of which is compiled.
Depth: TypeAlias = Annotated[int, Field(ge=1, le=1_000)]
Beam: TypeAlias = Annotated[int, Field(ge=1, le=4_096)]
# JAX takes a seed modulo 2^32.
Seed: TypeAlias = Annotated[int, Field(ge=0, le=2**32 - 1)]

# What float32 can hold, and still be multiplied.
NotNegative: TypeAlias = Annotated[float, Field(ge=0, le=10**9)]
PositiveFloat: TypeAlias = Annotated[
  float, Field(gt=0, le=10**9), AfterValidator(_not_tiny)
]
Probability: TypeAlias = Annotated[float, Field(ge=0, le=1)]
# Below 1: of what is dropped or smoothed away, something is left.
Share: TypeAlias = Annotated[float, Field(ge=0, lt=1)]


def _writable(text: str) -> str:
  """Refuse what is no UTF-8, or has a character that no file name can have."""
  if re.search('[\0\ud800-\udfff]', text):
    raise ValueError(f'must be UTF-8 text without NUL, got {shown(text)}')
  return text


Text: TypeAlias = Annotated[str, AfterValidator(_writable)]
# JSON has lists only.
Texts: TypeAlias = Annotated[tuple[Text, ...], Field(strict=False)]


def number(kind: Any) -> Callable[[str], Any]:
  """Return a reader of a flag's text as a number within bounds."""
  plain = typing.get_args(kind)[0]

  def read(text: str) -> Any:
    try:
      value = plain(text)
    except ValueError:
      value = text
    try:
      return adapter(kind, finite=True).validate_python(value, strict=True)
    except pydantic.ValidationError as error:
      raise argparse.ArgumentTypeError(first_fault(error)[1]) from None

  return read


@functools.cache
def adapter(kind: Any, finite: bool = False) -> pydantic.TypeAdapter:
  """Return Pydantic's reader and writer of a type, made once."""
  config = pydantic.ConfigDict(allow_inf_nan=False) if finite else None
  return pydantic.TypeAdapter(kind, config=config)
