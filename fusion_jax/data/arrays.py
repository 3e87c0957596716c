"""The .npy files of a prepared split: opened and checked.

They must fit to what else the folder holds. Corpora that were prepared before
there were digests of files have nothing else that tells of damage.
"""

import tokenize
from pathlib import Path

import numpy as np


def open_array(path: Path, dtype: type[np.integer]) -> np.ndarray:
  """Memory-maps a file.

  Args:
    path: of the file.
    dtype: that it must have.

  Returns:
    The array, of any shape.

  Raises:
    EOFError, OSError, ValueError: it is missing or damaged.
  """
  try:
    array = np.load(path, mmap_mode='r')
  except tokenize.TokenError as error:  # The header is a Python literal.
    raise ValueError(f'{path}: {error}') from error
  if array.dtype != dtype:
    raise ValueError(f'{path}: holds {array.dtype}')
  return array


def are_rows(rows: np.ndarray | None, examples: int, stored: int) -> bool:
  """Whether they name so many of the stored records, in ascending order.

  Args:
    rows: [N], positions of records; None: all of them.
    examples: how many there must be.
    stored: records there are.

  Returns:
    Whether they do.
  """
  if rows is None:
    return examples == stored
  if rows.shape != (examples,):
    return False
  return bool(np.all(np.diff(rows, prepend=-1, append=stored) > 0))


def are_lengths(
  lengths: np.ndarray, examples: int, subwords: np.ndarray, sampled: bool
) -> bool:
  """Whether they are of so many pairs with so many subwords.

  Args:
    lengths: [N, 2], of source and target.
    examples: how many there must be.
    subwords: [2], the sums of the plain segmentation.
    sampled: the lengths may be larger than those of the plain segmentation.

  Returns:
    Whether they are.
  """
  if lengths.shape != (examples, 2) or lengths.min(initial=1) < 1:
    return False
  total = lengths.sum(axis=0, dtype=np.int64)
  return bool(np.all(total >= subwords if sampled else total == subwords))
