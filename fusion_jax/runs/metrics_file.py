"""Reading of metrics.jsonl, the numbers of a run, even if it is damaged."""

import json
import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fusion_jax.files import check_regular, read_errors

logger = logging.getLogger(__name__)


def read_metrics(path: Path) -> list[dict[str, Any]]:
  """Read the lines of metrics.jsonl.

  Damaged lines are left out, with one warning that counts them. An incomplete
  last line, which a training may be writing, is left out silently.

  Args:
    path: File to read; a file that does not exist has no lines.

  Returns:
    An object for each line: 'step' (an integer), 'kind', and named numbers or
    None.

  Raises:
    InputError: The file cannot be read.
  """
  if not path.exists():
    return []
  check_regular(path)
  with read_errors(path):
    lines = path.read_bytes().split(b'\n')[:-1]
  rows = [_row(line) for line in lines]
  damaged = [number for number, row in enumerate(rows, 1) if row is None]
  if damaged:
    logger.warning(
      '%s: %d damaged of %d lines are left out, the first is line %d',
      path,
      len(damaged),
      len(rows),
      damaged[0],
    )
  return [row for row in rows if row is not None]


def _row(line: bytes) -> dict[str, Any] | None:
  """Return the object of a line; None if it is not one that training writes."""
  try:
    row = json.loads(line)
  except (ValueError, RecursionError):
    return None
  return row if _is_row(row) else None


def _is_row(row: Any) -> bool:
  if not isinstance(row, Mapping) or not {'step', 'kind'} <= row.keys():
    return False
  numbers = [value for name, value in row.items() if name != 'kind']
  return (
    isinstance(row['kind'], str)
    and type(row['step']) is int
    and row['step'] >= 0
    and all(value is None or _is_number(value) for value in numbers)
  )


def _is_number(value: Any) -> bool:
  # math.isfinite fails on integers that are too large for a float.
  return type(value) in (int, float) and abs(value) <= sys.float_info.max
