"""What is wrong with a value that was given, in words."""

import difflib
import re
import reprlib
from collections.abc import Iterable
from typing import Any

import pydantic

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
