"""Opening and checking the .npy files of a prepared split.

Their content must be consistent with the rest of the folder.
"""

import tokenize
from pathlib import Path

import numpy as np


def open_array(path: Path, dtype: type[np.integer]) -> np.ndarray:
  """Memory-map a file."""
  try:
    array = np.load(path, mmap_mode='r')
  except tokenize.TokenError as error:  # The header is a Python literal.
    raise ValueError(f'{path}: {error}') from error
  if array.dtype != dtype:
    raise ValueError(f'{path}: holds {array.dtype}')
  return array


def are_rows(rows: np.ndarray | None, examples: int, stored: int) -> bool:
  """Return whether the rows are ascending positions of stored records."""
  if rows is None:
    return examples == stored
  if rows.shape != (examples,):
    return False
  return bool(np.all(np.diff(rows, prepend=-1, append=stored) > 0))


def are_lengths(
  lengths: np.ndarray, examples: int, subwords: np.ndarray, sampled: bool
) -> bool:
  """Return whether lengths match the counts of examples and subwords."""
  if lengths.shape != (examples, 2) or lengths.min(initial=1) < 1:
    return False
  total = lengths.sum(axis=0, dtype=np.int64)
  return bool(np.all(total >= subwords if sampled else total == subwords))
