"""Reads metrics.jsonl, the numbers of a run, whatever has happened to it."""

import json
import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fusion_jax.files import read_errors

logger = logging.getLogger(__name__)


def read_metrics(path: Path) -> list[dict[str, Any]]:
  """Read the lines of metrics.jsonl.

  Lines that are damaged are left out, with one warning that counts them. A last
  line without its end, which a training may be writing, is left out silently.

  Args:
    path: Name of the file; one that is not there has no lines.

  Returns:
    An object for each line: 'step' (an integer), 'kind', and named numbers or
    None.

  Raises:
    InputError: It cannot be read.
  """
  if not path.exists():
    return []
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
  """What a line says; None where it is no object as training writes them."""
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
  # math.isfinite fails on whole numbers that no float can hold.
  return type(value) in (int, float) and abs(value) <= sys.float_info.max
