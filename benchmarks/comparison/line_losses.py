"""Losses of each line of a text, and what two models differ by in them.

They are saved beside the results of a run, so that it can still be compared
when its checkpoints are gone.
"""

import io
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from zipfile import BadZipFile

import numpy as np
from jaxtyping import Float32, Int32

from fusion_jax.errors import InputError
from fusion_jax.files import write_whole


class Losses(NamedTuple):
  """Of each line of a text: nats, and subwords with the end symbol."""

  nats: Float32[np.ndarray, ' L']
  subwords: Int32[np.ndarray, ' L']

  @property
  def mean(self) -> float:
    """Nats a subword."""
    return float(self.nats.sum(dtype=np.float64) / self.subwords.sum())


class Difference(NamedTuple):
  """In nats a subword, with its standard error over lines."""

  nats: float
  error: float

  @property
  def p(self) -> float:
    """Two-sided, of a normal distribution around 0."""
    if self.error == 0:
      return float(self.nats == 0)
    return 2 * statistics.NormalDist().cdf(-abs(self.nats) / self.error)


def difference(system: Losses, baseline: Losses) -> Difference:
  """Compare two models on the same lines.

  r = sum d / sum n, for the differences d in nats and the subwords n of L
  lines, has the error sqrt(L / (L - 1) sum (d - r n)^2) / sum n (the ratio
  estimator of a sample; Cochran 1977, section 2.11).
  """
  apart = np.subtract(system.nats, baseline.nats, dtype=np.float64)
  subwords = baseline.subwords
  total, lines = subwords.sum(), len(subwords)
  ratio = apart.sum() / total
  squares = np.square(apart - ratio * subwords).sum()
  error = math.sqrt(lines / (lines - 1) * squares) / total
  return Difference(float(ratio), float(error))


def joined(parts: Sequence[Losses]) -> Losses:
  """Return the losses of several texts as those of one."""
  return Losses(*map(np.concatenate, zip(*parts, strict=True)))


def save_losses(path: Path, texts: Mapping[str, Losses]) -> None:
  """Write the losses of several texts."""
  arrays = {
    f'{name}/{field}': values
    for name, losses in texts.items()
    for field, values in losses._asdict().items()
  }
  packed = io.BytesIO()
  np.savez_compressed(packed, **arrays)
  path.parent.mkdir(parents=True, exist_ok=True)
  write_whole(path, packed.getvalue())


def read_losses(path: Path) -> dict[str, Losses]:
  """Read what `save_losses` has written."""
  try:
    with np.load(io.BytesIO(path.read_bytes())) as arrays:
      names = dict.fromkeys(name.rpartition('/')[0] for name in arrays)
      return {
        name: Losses(*(arrays[f'{name}/{field}'] for field in Losses._fields))
        for name in names
      }
  except (OSError, EOFError, ValueError, KeyError, BadZipFile) as error:
    raise InputError(f'{path}: not the losses of a run: {error}') from None
