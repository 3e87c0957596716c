"""JSON values with their own digest, so that later changes are detected."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fusion_jax.files import check_regular

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
