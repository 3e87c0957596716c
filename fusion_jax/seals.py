"""JSON values with a digest of their own, so that a change of them is found."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_SEAL = 'sha256'


class DamagedError(Exception):
  """What was read is not what was written; the message is one line."""


def sealed(values: Mapping[str, Any]) -> dict[str, Any]:
  """The values as JSON gives them back, and the SHA-256 of their text."""
  values = json.loads(json.dumps(values))
  return values | {_SEAL: _digest(values)}


def check_seal(values: Mapping[str, Any], name: str) -> None:
  """Compares values with their digest.

  Args:
    values: of `sealed`; those that have no digest pass.
    name: what they are called in the message.

  Raises:
    DamagedError: they are not those that were sealed.
  """
  content = {key: value for key, value in values.items() if key != _SEAL}
  if _SEAL in values and values[_SEAL] != _digest(content):
    raise DamagedError(f'{name} does not agree with its digest')


def file_digest(path: Path) -> str:
  """The SHA-256 of a file, in hexadecimal."""
  with path.open('rb') as file:
    return hashlib.file_digest(file, 'sha256').hexdigest()


def _digest(values: Mapping[str, Any]) -> str:
  canonical = json.dumps(values, sort_keys=True)
  return hashlib.sha256(canonical.encode()).hexdigest()
