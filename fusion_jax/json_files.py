"""JSON files: read and validated, or with a digest that shows later changes."""

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pydantic

from fusion_jax.bounds import adapter, first_fault, shown
from fusion_jax.errors import InputError
from fusion_jax.files import check_regular

# Deeper than any JSON file known to us, our own or from elsewhere.
_DEEPEST = 64


def read_json(path: Path, kind: Any = Any) -> Any:
  """Read a JSON file and check its type."""
  try:
    check_regular(path)
    content = path.read_bytes()
  except OSError as error:
    raise InputError(f'{path}: cannot be read ({error.strerror})') from None
  return parse_json(content, str(path), kind)


def parse_json(text: str | bytes, where: str, kind: Any = Any) -> Any:
  """Parse JSON with finite numbers and with texts that UTF-8 can encode."""
  try:
    found = json.loads(text)
  except RecursionError:
    raise _too_deep(where) from None
  except ValueError as error:
    raise InputError(f'{where}: not JSON: {error}') from None
  _check_values(found, where)
  check_shape(found, kind, where)
  return found


def check_shape(value: Any, kind: Any, where: str) -> None:
  """Refuse JSON values of the wrong type."""
  as_type(value, kind, where)


def as_type(value: Any, kind: Any, where: str) -> Any:
  """Return JSON values as a type; see `check_shape`."""
  try:
    return adapter(kind).validate_python(value)
  except pydantic.ValidationError as error:
    field, message = first_fault(error)
    raise InputError(f'{_place(where, field)}: {message}') from None


def _check_values(value: Any, where: str) -> None:
  level = [('', value)]
  for _ in range(_DEEPEST):
    for field, each in level:
      fault = _fault(each)
      if fault:
        raise InputError(f'{_place(where, field)}: {fault}')
    level = [part for field, each in level for part in _parts(field, each)]
    if not level:
      return
  raise _too_deep(where)


def _fault(value: Any) -> str:
  if isinstance(value, float) and not math.isfinite(value):
    return f'must be finite, got {value}'
  texts: Iterable[Any] = value if isinstance(value, dict) else (value,)
  for text in texts:
    if isinstance(text, str) and not _is_unicode(text):
      return f'half of a surrogate pair is no character, got {shown(text)}'
  return ''


def _is_unicode(text: str) -> bool:
  try:
    text.encode()
  except UnicodeEncodeError:
    return False
  return True


def _parts(field: str, value: Any) -> Iterator[tuple[str, Any]]:
  parts: Iterable[tuple[Any, Any]] = ()
  if isinstance(value, dict):
    parts = value.items()
  elif isinstance(value, list):
    parts = enumerate(value)
  return ((f'{field}.{name}'.lstrip('.'), part) for name, part in parts)


def _place(where: str, field: str) -> str:
  return f'{where}: {field}' if field else where


def _too_deep(where: str) -> InputError:
  return InputError(f'{where}: nested deeper than {_DEEPEST} levels')


_SEAL = 'sha256'


class DamagedError(Exception):
  """Content differs from what was written; the message is one line."""


def sealed(values: Mapping[str, Any]) -> dict[str, Any]:
  """Return values as JSON reads them back, with the SHA-256 of their text."""
  content: dict[str, Any] = json.loads(json.dumps(values))
  return content | {_SEAL: _digest(content)}


def check_seal(values: Mapping[str, Any], name: str) -> None:
  """Compare values with their digest."""
  content = {key: value for key, value in values.items() if key != _SEAL}
  if values.get(_SEAL) != _digest(content):
    raise DamagedError(f'{name} does not agree with its digest')


def file_digest(path: Path) -> str:
  """Return the SHA-256 of a file in hexadecimal.

  Raises:
    InputError: It is a folder, a pipe or a device.
    OSError: It cannot be read.
  """
  check_regular(path)
  with path.open('rb') as file:
    return hashlib.file_digest(file, 'sha256').hexdigest()


def _digest(values: Mapping[str, Any]) -> str:
  canonical = json.dumps(values, sort_keys=True)
  return hashlib.sha256(canonical.encode()).hexdigest()
